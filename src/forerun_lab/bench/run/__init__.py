"""Measurement: contestants answer the same questions in turn, and the machine is recorded."""
