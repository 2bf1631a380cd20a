"""Tokens to logits: a forward pass as a fixed program of named ops, and what runs it."""
