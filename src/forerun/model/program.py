"""A forward pass as a fixed program of named ops over named buffers.

The program is data: an executor decides how to run it (op by op, in one native call, or as a CUDA graph), and two
executors can be compared buffer by buffer. Skipped sublayers, taps, row skips and tree masks are inputs of a pass and
do not change the program.
"""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from forerun.core.model_spec import ModelSpec
from forerun.core.sublayers import NOTHING, SkipSet, Sublayer

OpKind = Literal[
    "embed", "mask", "norm", "linear", "linear_add", "add_partials", "rope_append", "tree_attention", "silu_mul", "tap",
    "select_rows",
]  # fmt: skip

Program: TypeAlias = "tuple[Op, ...]"
NUM_HEAD_OPS: Final = 3  # the last ones of a program: rows, norm and scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One step: reads buffers, writes one buffer, with the weights named `weights` (plus ".weight", ".bias").

    Args:
        sublayer: the sublayer that the op belongs to, if any; a pass that skips the sublayer skips the op.
        tapped: for a tap, the layer whose output it copies in passes that request it.
    """

    kind: OpKind
    reads: tuple[str, ...]
    writes: str
    weights: str = ""
    sublayer: Sublayer | None = None
    tapped: int | None = None

    def is_part_of(self, skipped: SkipSet, taps: tuple[int, ...]) -> bool:
        """True in a pass without these sublayers and with these taps."""
        return self.sublayer not in skipped and (self.tapped is None or self.tapped in taps)

    @property
    def layer(self) -> int:
        """The op's layer, or -1 if it belongs to none."""
        if self.tapped is not None:
            return self.tapped
        return -1 if self.sublayer is None else self.sublayer[0]


def build_program(spec: ModelSpec, unused: SkipSet = NOTHING, *, is_shared: bool = False) -> Program:
    """The ops of one forward pass, in order, without the sublayers `unused`.

    Args:
        is_shared: each rank has a part of every sublayer; the last product of a sublayer is summed over the ranks
            before the residual is added.
    """
    ops = [
        Op(kind="mask", reads=("ancestry",), writes="mask"),
        Op(kind="embed", reads=("token_ids",), writes="x", weights="embedding"),
    ]
    for layer in range(spec.num_layers):
        ops += [*attention_ops(layer), *mlp_ops(layer), Op(kind="tap", reads=("x",), writes="features", tapped=layer)]
    if is_shared:
        ops = [part for op in ops for part in (split_linear_add(op) if op.kind == "linear_add" else (op,))]
    return (
        *(op for op in ops if op.sublayer not in unused),
        Op(kind="select_rows", reads=("x",), writes="x"),
        Op(kind="norm", reads=("x",), writes="h", weights="final_norm"),
        Op(kind="linear", reads=("h",), writes="logits", weights="head"),
    )


def attention_ops(layer: int) -> list[Op]:
    part = f"layers.{layer}."
    name: Sublayer = (layer, "attention")
    return [
        Op(kind="norm", reads=("x",), writes="h", weights=part + "attention_norm", sublayer=name),
        Op(kind="linear", reads=("h",), writes="qkv", weights=part + "qkv", sublayer=name),
        Op(kind="rope_append", reads=("qkv",), writes="q", weights=part, sublayer=name),
        Op(kind="tree_attention", reads=("q", "mask"), writes="mixed", sublayer=name),
        Op(kind="linear_add", reads=("mixed", "x"), writes="x", weights=part + "attention_out", sublayer=name),
    ]


def mlp_ops(layer: int) -> list[Op]:
    part = f"layers.{layer}."
    name: Sublayer = (layer, "mlp")
    return [
        Op(kind="norm", reads=("x",), writes="h", weights=part + "mlp_norm", sublayer=name),
        Op(kind="linear", reads=("h",), writes="gate_up", weights=part + "gate_up", sublayer=name),
        Op(kind="silu_mul", reads=("gate_up",), writes="gated", sublayer=name),
        Op(kind="linear_add", reads=("gated", "x"), writes="x", weights=part + "mlp_out", sublayer=name),
    ]


def split_linear_add(op: Op) -> tuple[Op, Op]:
    """Split an op into the product and the addition to the residual, so that the ranks' products can be summed."""
    reads, residual = op.reads
    return (
        Op(kind="linear", reads=(reads,), writes="partial", weights=op.weights, sublayer=op.sublayer),
        Op(kind="add_partials", reads=("partial", residual), writes=op.writes, sublayer=op.sublayer),
    )
