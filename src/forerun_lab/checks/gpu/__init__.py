"""The sections of `gpu_check`."""
