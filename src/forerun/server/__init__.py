"""An OpenAI-compatible server: one engine for many clients."""
