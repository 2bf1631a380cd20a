"""A summary for people: a table for the terminal, Markdown for a README, one page for the browser."""
