"""The wires between processes."""
