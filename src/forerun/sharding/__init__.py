"""One model divided among several ranks."""
