"""Communication between processes."""
