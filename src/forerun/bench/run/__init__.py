"""Measuring: contestants answer the same questions in turn, on a machine that is described."""
