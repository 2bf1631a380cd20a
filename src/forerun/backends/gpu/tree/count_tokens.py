"""Counts the tokens of a round for the penalties of the next one."""

import triton
import triton.language as tl

from forerun.backends.gpu.kernel_parts import await_inputs, launch_options
from forerun.backends.gpu.sampling.score_shaping import RequestSettings
from forerun.backends.gpu.tree import device_tree as layout
from forerun.backends.gpu.tree.device_tree import NUM_TOKENS, DeviceTree

OUTCOME_HEADER = tl.constexpr(layout.OUTCOME_HEADER)


def count_tokens(tree: DeviceTree, settings: RequestSettings, *, overlaps: bool) -> None:
    """Count the tokens of the last `walk`."""
    count_kernel[(1,)](
        tree.outcome, settings, CAPACITY=tree.capacity, OVERLAPS=overlaps,
        **launch_options(num_warps=1, overlaps=overlaps),
    )  # fmt: skip


@triton.jit
def count_kernel(outcome, settings, CAPACITY: tl.constexpr, OVERLAPS: tl.constexpr):
    """written[token] += 1, seen[token] = 1 for the tokens of an outcome. There is one program."""
    await_inputs(OVERLAPS)
    place = tl.arange(0, CAPACITY)
    is_written = place < tl.load(outcome + NUM_TOKENS)
    tokens = tl.load(outcome + OUTCOME_HEADER + place, mask=is_written, other=0)
    tl.atomic_add(settings.written + tokens, 1, mask=is_written)
    tl.store(settings.seen + tokens, tl.full((CAPACITY,), 1, tl.int32), mask=is_written)
