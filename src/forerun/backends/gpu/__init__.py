"""Triton kernels for GPUs, and rounds that run without the host."""
