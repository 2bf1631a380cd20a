"""Data sets, found or downloaded, their questions, and the prompts made of them."""
