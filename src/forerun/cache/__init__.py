"""The tree KV cache."""
