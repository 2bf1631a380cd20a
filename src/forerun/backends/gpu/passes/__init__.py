"""A forward pass in five kernels a layer."""
