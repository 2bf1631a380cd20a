"""Summarise a run in rows with confidence intervals, compare two runs, and show them: terminal, Markdown, HTML."""
