"""Rows of a cache move in all layers at once, as if all were read before one is written."""

import pytest
import torch

from forerun.backends.gpu.tree.move_slots import move_slots


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("sources", [[], [3], [5, 6, 9], [4, 5, 6, 7], [9, 3, 4, 5]], ids=str)
def test_slots_move_in_order_in_every_layer(dtype: torch.dtype, sources: list[int]) -> None:
    before = torch.randint(-100, 100, (2, 3, 12, 2, 24)).to(dtype)
    moves = torch.tensor([len(sources), 3, *sources, *[77] * (16 - len(sources))], dtype=torch.int32)
    after = before.clone()
    wanted = before.clone()
    wanted[:, :, 3 : 3 + len(sources)] = before[:, :, sources]
    move_slots(after, moves)
    assert torch.equal(after, wanted)


def test_a_row_longer_than_one_program_takes_moves_whole() -> None:
    storage = torch.randn(2, 1, 6, 5, 256)
    wanted = storage.clone()
    wanted[:, :, 1:3] = storage[:, :, [4, 5]]
    move_slots(storage, torch.tensor([2, 1, 4, 5], dtype=torch.int32))
    assert torch.equal(storage, wanted)
