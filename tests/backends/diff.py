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

    def of_rows(some: TreeCache, op: Op) -> dict[str, Tensor]:
        """What the op has left in the pass's slots, by what it is; keys and values as they are read."""
        if op.kind == "rope_append":
            keys_SKD, values_SKD = some.read(op.layer, inputs.num_slots)
            return {"keys": keys_SKD[rows], "values": values_SKD[rows]}
        if op.kind not in ("convolve", "gated_convolution", "delta_net") or some.mixer_rows is None:
            return {}
        ring = some.mixer_rows.ring(inputs.first_slot, inputs.num_slots)
        inputs_SC, rows_SR = some.mixer_rows.layer(op.layer)
        return {"rows": rows_SR[ring]} if op.kind == "delta_net" else {"inputs": inputs_SC[ring]}

    def take_over(op: Op, buffer: Tensor) -> None:
        if op not in written:
            return
        theirs = of_rows(cache, op)
        pairs = [(op.writes, written[op].view(buffer.shape), buffer)]
        pairs += [(what, mine, theirs[what]) for what, mine in of_rows(tried_cache, op).items()]
        for what, mine, other in pairs:
            difference = (mine.double() - other.double()).abs().max().item()
            found.append(Difference(op=op, what=what, largest=difference, scale=other.abs().max().item()))
            other.copy_(mine)
        if op.kind == "rope_append":
            for mine, other in zip(tried_cache.layer(op.layer), cache.layer(op.layer), strict=True):
                other[rows] = mine[rows]

    reference.run(inputs, take_over)
    return found
