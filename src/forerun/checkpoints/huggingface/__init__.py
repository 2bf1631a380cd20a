"""A folder of files in Hugging Face's layout."""
