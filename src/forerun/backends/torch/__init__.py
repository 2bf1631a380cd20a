"""Torch's own calls, op by op: the specification, and the fewest calls that do the same."""
