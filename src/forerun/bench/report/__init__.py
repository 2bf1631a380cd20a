"""A run in rows with intervals, compared with another, and shown: terminal, Markdown, one page for the browser."""
