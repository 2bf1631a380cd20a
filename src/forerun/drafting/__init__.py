"""The drafters, which propose the trees that the target verifies."""
