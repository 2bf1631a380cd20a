"""Sampling: from logits to tokens."""
