"""From a request to the engine and back: prompts, the queue, the engine's thread."""
