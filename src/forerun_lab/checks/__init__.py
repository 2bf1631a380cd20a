"""Measurements of this checkout, one module each, run with python -m; results are in benchmarks/results."""
