"""The CPU kernels in C++ (see cpp/), plain functions over pointers, and their Python side."""
