"""The answers of a run: records on disk and in memory, and every number computed from them."""
