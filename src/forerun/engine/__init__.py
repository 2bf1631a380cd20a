"""The engine: it takes prompts and returns texts."""
