"""Access control, connection limits and strict parsing."""
