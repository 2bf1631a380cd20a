"""Decoders of one request's rounds, and the host's loop."""
