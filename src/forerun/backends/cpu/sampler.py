"""Rows of scores to tokens, in one call.

Legend: T rows, V vocabulary, K best tokens.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerun.backends.cpu.binding import library
from forerun.sampling.noise import KeyedRows

NoiseKeys = NDArray[np.int32]  # [T, 3]: low and high half of a row's key, and 1; all 0 for no noise
LEADER = np.dtype([("token", np.int32), ("best", np.float32), ("second", np.float32)])
MAX_TOPK = 16  # of the kernel


def sample_rows(
    scores_TV: Tensor, noise: KeyedRows | None, temperature: float
) -> tuple[list[int], list[float], list[float]]:
    """The best token of each row by score / temperature + noise, its total, and the next best total."""
    num_rows, vocab_size = scores_TV.shape
    leaders, keys = np.empty(num_rows, LEADER), keys_of(noise, num_rows)
    library().forerun_choose_rows(
        scores_TV.data_ptr(), scores_TV.stride(0), num_rows, vocab_size, temperature, address(keys), address(leaders),
        torch.get_num_threads(),
    )  # fmt: skip
    return leaders["token"].tolist(), leaders["best"].tolist(), leaders["second"].tolist()


def topk_rows(
    scores_TV: Tensor, noise: KeyedRows | None, k: int, temperature: float
) -> tuple[list[list[int]], list[list[float]]]:
    """The `k` best tokens of each row by score / temperature + noise, [T][K], and the log-softmax of their totals."""
    num_rows, vocab_size = scores_TV.shape
    count, keys = min(k, vocab_size), keys_of(noise, num_rows)
    tokens = np.empty((num_rows, count), np.int32)
    totals = np.empty((num_rows, count), np.float32)
    log_sums = np.empty((num_rows, 1), np.float32)
    library().forerun_rank_rows(
        scores_TV.data_ptr(), scores_TV.stride(0), num_rows, vocab_size, temperature, address(keys), count,
        address(tokens), address(totals), address(log_sums), torch.get_num_threads(),
    )  # fmt: skip
    return tokens.tolist(), (totals - log_sums).tolist()


def keys_of(noise: KeyedRows | None, num_rows: int) -> NoiseKeys:
    return np.zeros((num_rows, 3), np.int32) if noise is None else noise.keys


def address(array: NDArray[np.generic]) -> int:
    """Where an array's memory begins; several times quicker than `array.ctypes.data`."""
    return array.__array_interface__["data"][0]  # type: ignore[no-any-return]
