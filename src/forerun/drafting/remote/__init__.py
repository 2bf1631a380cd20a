"""A drafter in another process, which goes on growing while the target verifies (SwiftSpec, arXiv 2506.11309)."""
