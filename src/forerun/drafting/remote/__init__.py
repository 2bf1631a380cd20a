"""A drafter in another process, which grows its tree while the target verifies (SwiftSpec, arXiv 2506.11309)."""
