"""One model on several ranks."""
