"""What a model writes, read while it is written: thoughts, content and calls of tools."""
