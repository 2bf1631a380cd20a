"""Benchmarks of drafters and peers side by side: data sets, runs, records, reports."""
