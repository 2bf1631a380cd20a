"""One rank's part of a model's weights."""

from typing import Final

from torch import Tensor

from forerun.core.model_spec import ModelSpec
from forerun.model.slicing import take
from forerun.model.weights import WHOLE, Part, Piece, Table, Weight, WeightSource
from forerun.sharding.plan import ShardPlan, Share

LEADER: Final = 0  # the rank that adds the biases of products that are summed over ranks


class ShardedWeights:
    """A WeightSource with a rank's part of another source's weights; it reads only that part where possible.

    Queries, keys, values, gate, up and head are divided by outputs; the layers after them are divided by inputs.
    """

    def __init__(self, whole: WeightSource, spec: ModelSpec, plan: ShardPlan) -> None:
        self._whole = whole
        self._spec = spec
        self._plan = plan

    def table(self) -> Table:
        return self._whole.table()

    def linear(self, name: str, part: Part = WHOLE) -> tuple[Weight, Tensor | None]:
        assert part == WHOLE, f"a rank's part of {name} is not divided again"
        own = part_of(name, self._spec, self._plan)
        weight, bias_O = self._whole.linear(name, own)
        is_others = own.columns is not None and self._plan.rank != LEADER
        return weight, None if is_others else bias_O

    def vector(self, name: str) -> Tensor:
        whole = self._whole.vector(name)
        kind = name.rpartition(".")[2]
        if not self._spec.qk_norm_whole or kind not in ("q_norm", "k_norm"):
            return whole
        own = part_of(name.removesuffix(kind) + "qkv", self._spec, self._plan).rows
        assert own is not None, "queries and keys are divided by outputs"
        queries, keys, _ = own
        return take(whole, queries if kind == "q_norm" else [piece.scaled(1, -self._spec.q_size) for piece in keys])


def part_of(name: str, spec: ModelSpec, plan: ShardPlan) -> Part:
    """A rank's part of a linear layer."""
    match name.rpartition(".")[2]:
        case "qkv":
            queries = piece_of(plan.heads).scaled(spec.head_dim)
            copies = [
                Piece(start=0, stop=0, padding=1) if idx is None else Piece(start=idx, stop=idx + 1)
                for idx in plan.kv_head_idxs
            ]
            keys = [copy.scaled(spec.head_dim, spec.q_size) for copy in copies]
            values = [copy.scaled(spec.head_dim, spec.q_size + spec.kv_size) for copy in copies]
            return Part(rows=([queries], keys, values))
        case "gate_up":
            gate = piece_of(plan.intermediate)
            return Part(rows=([gate], [gate.scaled(1, spec.intermediate_size)]))
        case "head":
            return Part(rows=([piece_of(plan.vocab)],))
        case "attention_out":
            return Part(columns=piece_of(plan.heads).scaled(spec.head_dim))
        case "mlp_out":
            return Part(columns=piece_of(plan.intermediate))
        case unknown:
            raise AssertionError(f"no rule divides {unknown} among ranks")


def piece_of(share: Share) -> Piece:
    """The real elements of a share, and its padding."""
    start = min(share.start, share.real)
    return Piece(start=start, stop=start + share.num_real, padding=share.size - share.num_real)
