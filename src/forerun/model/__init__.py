"""Tokens to logits: the program of a pass, its inputs, the tree KV cache, the runner."""
