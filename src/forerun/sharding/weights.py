"""One rank's part of a model's weights."""

from typing import Final

from torch import Tensor

from forerun.core.model_spec import ModelSpec
from forerun.model.weights import Table, Weight, WeightSource
from forerun.sharding.plan import ShardPlan, Share
from forerun.sharding.slicing import Piece, take, take_columns, take_rows

LEADER: Final = 0  # the rank that adds the biases of products that all ranks have a part of


class ShardedWeights:
    """A WeightSource of a rank's part of the weights of another.

    Queries, keys, values, gate, up and head are divided by outputs; what follows them is divided by inputs.
    """

    def __init__(self, whole: WeightSource, spec: ModelSpec, plan: ShardPlan) -> None:
        self._whole, self._spec, self._plan = whole, spec, plan

    def table(self) -> Table:
        return self._whole.table()

    def linear(self, name: str) -> tuple[Weight, Tensor | None]:
        weight, bias_O = self._whole.linear(name)
        columns = columns_of(name, self._spec, self._plan)
        if columns is not None:
            return take_columns(weight, columns), bias_O if self._plan.rank == LEADER else None
        sections = rows_of(name, self._spec, self._plan)
        rows = [piece for section in sections for piece in section]
        return take_rows(weight, sections), None if bias_O is None else take(bias_O, rows)

    def vector(self, name: str) -> Tensor:
        return self._whole.vector(name)


def columns_of(name: str, spec: ModelSpec, plan: ShardPlan) -> Piece | None:
    """The inputs of a linear layer that a rank multiplies with; None where it has all of them."""
    match name.rpartition(".")[2]:
        case "attention_out":
            return piece_of(plan.heads).scaled(spec.head_dim)
        case "mlp_out":
            return piece_of(plan.intermediate)
        case _:
            return None


def rows_of(name: str, spec: ModelSpec, plan: ShardPlan) -> list[list[Piece]]:
    """The outputs of a linear layer that a rank has, by the weights that make it up."""
    match name.rpartition(".")[2]:
        case "qkv":
            queries = piece_of(plan.heads).scaled(spec.head_dim)
            copies = [Piece(start=0, stop=0, padding=1) if idx is None else Piece(start=idx, stop=idx + 1)
                      for idx in plan.kv_head_idxs]  # fmt: skip
            keys = [copy.scaled(spec.head_dim, spec.q_size) for copy in copies]
            values = [copy.scaled(spec.head_dim, spec.q_size + spec.kv_size) for copy in copies]
            return [[queries], keys, values]
        case "gate_up":
            gate = piece_of(plan.intermediate)
            return [[gate], [gate.scaled(1, spec.intermediate_size)]]
        case "head":
            return [[piece_of(plan.vocab)]]
        case unknown:
            raise AssertionError(f"no rank knows its part of {unknown}")


def piece_of(share: Share) -> Piece:
    """The real elements of a share, and its padding."""
    start = min(share.start, share.real)
    return Piece(start=start, stop=start + share.num_real, padding=share.size - share.num_real)
