"""Converts text to token ids and back: tokenizers, chat templates, stop strings. Does not import torch."""
