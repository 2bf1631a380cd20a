"""The drafters: who proposes the tree that the target verifies."""
