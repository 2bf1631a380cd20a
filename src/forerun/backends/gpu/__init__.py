"""The GPU's kernels in Triton, and rounds that a GPU plays by itself."""
