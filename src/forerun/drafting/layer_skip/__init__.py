"""Self-speculation: the target drafts with some of its sublayers skipped."""
