"""GGUF files; every value is checked before it is used."""
