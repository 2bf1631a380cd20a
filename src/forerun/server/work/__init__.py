"""Processing of requests: prompts, the queue, and the engine's thread."""
