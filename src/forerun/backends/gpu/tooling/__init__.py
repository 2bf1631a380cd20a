"""What the compiler makes of the kernels, at the shapes of real models."""
