"""Torch without autograd, for as long as a block runs."""

from contextlib import AbstractContextManager
from typing import Any

import torch


def inference() -> AbstractContextManager[Any]:
    """As `torch.inference_mode()`, but entered and left by single instructions.

    That one is written in Python: an interrupt inside its `__enter__` or `__exit__` leaves the mode on in the caller's
    thread for as long as the traceback is referenced, and a notebook keeps it.
    """
    return torch._C._InferenceMode(True)
