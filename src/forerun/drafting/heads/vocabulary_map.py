"""The map of a draft head's tokens to its target's, of which they may be a part: EAGLE-3's `d2t`."""

from typing import TYPE_CHECKING, Final

from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.checkpoints.safetensors.stored_bytes import read_ids
from forerun.core.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

MAP: Final = "d2t"


def read_target_ids(stored: StoredTensor, num_tokens: int, *, is_offset: bool) -> "Tensor":
    """int64 [W], the target's tokens that the head's W outputs stand for, ascending.

    Args:
        num_tokens: W.
        is_offset: the map holds differences: the target's id of the head's token j is j + map[j]; else ids.

    Raises:
        CheckpointError: it is damaged.
    """
    import torch  # commands describe a head without it

    read = read_ids(stored)
    ids = read + torch.arange(len(read)) if is_offset else read
    if len(ids) != num_tokens or not bool((ids[1:] > ids[:-1]).all()) or int(ids[0]) < 0:
        raise CheckpointError(
            f"{stored.path}: {MAP} must give {num_tokens} tokens of the target in ascending order: fetch the head again"
        )
    return ids
