"""A Hugging Face folder or hub name to a filled model."""
