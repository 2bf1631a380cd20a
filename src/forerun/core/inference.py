"""Torch without autograd inside a `with` block."""

from contextlib import AbstractContextManager
from typing import Any

import torch


def inference() -> AbstractContextManager[Any]:
    """Like `torch.inference_mode()`, but an interrupt cannot leave the mode on.

    torch's is written in Python: an interrupt inside its `__enter__` or `__exit__` leaves the mode on in the caller's
    thread while the traceback is referenced, and a notebook keeps the traceback.
    """
    return torch._C._InferenceMode(True)
