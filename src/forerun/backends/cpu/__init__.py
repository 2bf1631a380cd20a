"""The CPU kernels in C++ and their Python bindings."""
