"""Scores to tokens."""
