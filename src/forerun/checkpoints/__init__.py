"""Stored models of any format, opened as a CheckpointSource."""
