"""The GPU's kernels in Triton, and rounds without the host."""
