"""Drafters and peers measured side by side: data sets, runs, records, reports."""
