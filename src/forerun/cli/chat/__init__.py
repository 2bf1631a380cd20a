"""A chat in the terminal: input, conversation, files and commands."""
