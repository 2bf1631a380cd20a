"""A conversation in the terminal: what is typed, what is kept, and what commands do to it."""
