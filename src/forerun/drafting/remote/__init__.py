"""A drafter in a process of its own, which goes on growing while the target verifies (SwiftSpec, arXiv 2506.11309)."""
