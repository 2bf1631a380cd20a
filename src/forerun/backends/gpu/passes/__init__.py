"""A forward pass in five kernels per layer."""
