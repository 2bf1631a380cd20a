"""GGUF files, of which nothing is believed that was not checked."""
