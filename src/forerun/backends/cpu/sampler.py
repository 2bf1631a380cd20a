"""Rows of scores to tokens, in one call.

Legend: T rows, V vocabulary, C children.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerun.backends.cpu.binding import fault, library

NoiseKeys = NDArray[np.int32]  # [T, 3]: low and high half of a row's key, and 1; all 0 for no noise
LEADER = np.dtype([("token", np.int32), ("best", np.float32), ("second", np.float32)])
MOST_CHILDREN = 16


def can_sample(scores_TV: Tensor) -> bool:
    """True where these scores are of the kind that the library reads."""
    return scores_TV.dtype == torch.float32 and scores_TV.is_cpu and scores_TV.stride(-1) == 1 and fault() is None


def choose_rows(scores_TV: Tensor, keys: NoiseKeys, temperature: float) -> tuple[list[int], list[float], list[float]]:
    """The best token of each row by score / temperature + noise, its total, and the next best total."""
    num_rows, vocab_size = scores_TV.shape
    leaders = np.empty(num_rows, LEADER)
    library().forerun_choose_rows(
        scores_TV.data_ptr(), scores_TV.stride(0), num_rows, vocab_size, temperature, address(keys), address(leaders),
        torch.get_num_threads(),
    )  # fmt: skip
    return leaders["token"].tolist(), leaders["best"].tolist(), leaders["second"].tolist()


def rank_rows(
    scores_TV: Tensor, keys: NoiseKeys, temperature: float, num_children: int
) -> tuple[list[list[int]], list[list[float]]]:
    """The best tokens of each row by score / temperature + noise, [T][C], and the log-softmax of their totals."""
    num_rows, vocab_size = scores_TV.shape
    count = min(num_children, vocab_size)
    tokens = np.empty((num_rows, count), np.int32)
    totals = np.empty((num_rows, count), np.float32)
    log_sums = np.empty((num_rows, 1), np.float32)
    library().forerun_rank_rows(
        scores_TV.data_ptr(), scores_TV.stride(0), num_rows, vocab_size, temperature, address(keys), count,
        address(tokens), address(totals), address(log_sums), torch.get_num_threads(),
    )  # fmt: skip
    return tokens.tolist(), (totals - log_sums).tolist()


def address(array: NDArray[np.generic]) -> int:
    """Where an array's memory begins; several times quicker than `array.ctypes.data`."""
    return array.__array_interface__["data"][0]  # type: ignore[no-any-return]
