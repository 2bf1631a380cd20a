"""The GPU's kernels in Triton. Nothing here is imported unless a model runs on them."""
