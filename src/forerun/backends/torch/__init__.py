"""Ops as torch calls: `reference` is the specification, `fused` does the same with the fewest calls."""
