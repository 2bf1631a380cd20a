"""Kernels that sample tokens from scores."""
