"""Rounds of one request: who plays them, and the host's own loop."""
