"""What is asked: data sets found or fetched, questions, and the prompts made of them."""
