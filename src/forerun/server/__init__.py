"""An OpenAI-compatible server: one engine, many callers."""
