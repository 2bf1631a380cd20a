"""Decoders, which play the rounds of one request, among them the host's loop."""
