"""Parses a model's answer while it is written: thoughts, content and tool calls."""
