"""Logits to token."""
