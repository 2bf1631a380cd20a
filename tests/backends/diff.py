"""Where two executors part: every named buffer compared after every op."""

from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.model.executor import Executor, ForwardInput
from forerun.model.program import Op
from forerun.model.tree_cache import TreeCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One buffer after one op.

    Args:
        what: the buffer, or "keys" or "values" where the op wrote to the cache.
        largest: absolute difference of any two elements.
        scale: the largest absolute element there should be.
    """

    op: Op
    what: str
    largest: float
    scale: float

    @property
    def relative(self) -> float:
        return self.largest / max(self.scale, 1e-30)


@torch.inference_mode()
def diff_buffers(
    tried: Executor, tried_cache: TreeCache, reference: Executor, cache: TreeCache, inputs: ForwardInput
) -> list[Difference]:
    """Run one pass on both, op by op.

    After each op the reference takes over what the tried executor has written, so that a difference is that of one op
    and not of all before it. Both caches must hold the same text and have room for the pass.

    Returns:
        A difference for every buffer that both name, in the program's order.
    """
    written: dict[Op, Tensor] = {}
    tried.run(inputs, lambda op, buffer: written.update({op: buffer.clone()}))
    found: list[Difference] = []
    rows = slice(inputs.first_slot, inputs.num_slots)

    def take_over(op: Op, buffer: Tensor) -> None:
        if op not in written:
            return
        pairs = [(op.writes, written[op].view(buffer.shape), buffer)]
        if op.kind == "rope_append":
            pairs.append(("keys", tried_cache.keys_LSKD[op.layer, rows], cache.keys_LSKD[op.layer, rows]))
            pairs.append(("values", tried_cache.values_LSKD[op.layer, rows], cache.values_LSKD[op.layer, rows]))
        for what, mine, theirs in pairs:
            difference = (mine.double() - theirs.double()).abs().max().item()
            found.append(Difference(op=op, what=what, largest=difference, scale=theirs.abs().max().item()))
            theirs.copy_(mine)

    reference.run(inputs, take_over)
    return found
