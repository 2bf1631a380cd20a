"""A forward pass as a fixed program of named ops over named buffers.

The program is data: an executor decides how to run it (op by op, in one native call, or as a CUDA graph), and two
executors can be compared buffer by buffer. Skipped sublayers, taps, row skips and tree masks are inputs of a pass and
do not change the program.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from forerun.core.mixers import GatedDeltaNet, Mamba2, ShortConvolution
from forerun.core.model_spec import Gate, ModelSpec
from forerun.core.sublayers import NOTHING, SkipSet, Sublayer

OpKind = Literal[
    "embed", "mask", "norm", "norm_qk", "norm_add", "add", "linear", "linear_add", "add_partials", "sum_partials",
    "rope_append", "tree_attention", "sigmoid_mul", "convolve", "gated_convolution", "delta_net", "mamba",
    "silu_mul", "gelu_mul", "relu2", "experts", "layer_inputs", "gate_input", "scale", "tap", "select_rows",
]  # fmt: skip

Program: TypeAlias = "tuple[Op, ...]"
GATES: Final[Mapping[Gate, OpKind]] = {"silu": "silu_mul", "gelu_tanh": "gelu_mul", "relu2": "relu2"}  # without experts
NUM_HEAD_OPS: Final = 3  # the last ones of a program: rows, norm and scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One step: reads buffers, writes one buffer, with the weights named `weights` (plus ".weight", ".bias").

    Args:
        sublayer: the sublayer that the op belongs to, if any; a pass that skips the sublayer skips the op.
        tapped: for a tap, the layer whose output it copies in passes that request it.
        behind: the layer after whose sublayers the op runs.
    """

    kind: OpKind
    reads: tuple[str, ...]
    writes: str
    weights: str = ""
    sublayer: Sublayer | None = None
    tapped: int | None = None
    behind: int | None = None

    def is_part_of(self, skipped: SkipSet, taps: tuple[int, ...]) -> bool:
        """True in a pass without these sublayers and with these taps."""
        return self.sublayer not in skipped and (self.tapped is None or self.tapped in taps)

    @property
    def layer(self) -> int:
        """The op's layer, or -1 if it belongs to none."""
        if self.tapped is not None:
            return self.tapped
        if self.behind is not None:
            return self.behind
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
    if spec.layer_input_size:
        ops += [
            Op(kind="linear", reads=("x",), writes="layer_projection", weights="layer_inputs"),
            Op(kind="layer_inputs", reads=("layer_projection",), writes="layer_inputs", weights="layer_inputs_norm"),
        ]
    for layer in range(spec.num_layers):
        tap = Op(kind="tap", reads=("x",), writes="features", tapped=layer)
        scale = Op(kind="scale", reads=("x",), writes="x", weights=f"layers.{layer}.layer_scale")
        own = layer_input_ops(layer) if spec.layer_input_size else []
        own += [scale] if spec.layer_scale else []
        mixer = [] if layer in spec.mlp_only else mixer_ops(spec, layer)
        mlp = [] if layer in spec.mixer_only else mlp_ops(spec.of_layer(layer), layer)
        ops += [*mixer, *mlp, *own, tap]
    if is_shared:
        ops = [part for op in ops for part in shared_ops(op)]
    return (
        *(op for op in ops if op.sublayer not in unused),
        Op(kind="select_rows", reads=("x",), writes="x"),
        Op(kind="norm", reads=("x",), writes="h", weights="final_norm"),
        Op(kind="linear", reads=("h",), writes="logits", weights="head"),
    )


def mixer_ops(spec: ModelSpec, layer: int) -> list[Op]:
    """Attention, or what the layer has in place of it."""
    part = f"layers.{layer}."
    first = Op(kind="linear", reads=("h",), writes="mixer_in", weights=part + "mixer_in")
    match spec.mixer_of(layer):
        case None:
            return attention_ops(spec, layer)
        case ShortConvolution():
            ops = [Op(kind="gated_convolution", reads=("mixer_in",), writes="mixed", weights=part + "convolution")]
        case GatedDeltaNet():
            ops = [
                Op(kind="convolve", reads=("mixer_in",), writes="convolved", weights=part + "convolution"),
                Op(kind="delta_net", reads=("convolved", "mixer_in"), writes="mixed", weights=part + "delta_net"),
            ]
        case Mamba2():
            ops = [
                Op(kind="convolve", reads=("mixer_in",), writes="convolved", weights=part + "convolution"),
                Op(kind="mamba", reads=("convolved", "mixer_in"), writes="mixed", weights=part + "mamba"),
            ]
    assert spec.norms == "before", "no family yet has such layers with other norms"
    return sublayer_ops(spec, (layer, "attention"), [first, *ops], "mixed")


def attention_ops(spec: ModelSpec, layer: int) -> list[Op]:
    part = f"layers.{layer}."
    name: Sublayer = (layer, "attention")
    ops = [
        Op(kind="linear", reads=("x" if spec.norms == "after" else "h",), writes="qkv", weights=part + "qkv"),
        Op(kind="rope_append", reads=("qkv",), writes="q", weights=part),
        Op(
            kind="tree_attention",
            reads=("q", "mask"),
            writes="mixed",
            weights=part + "sinks" if spec.attention_sinks else "",
        ),
    ]
    if spec.qk_norm_whole:
        ops.insert(1, Op(kind="norm_qk", reads=("qkv",), writes="qkv", weights=part))
    if spec.gates_attention:
        ops += [
            Op(kind="linear", reads=("h",), writes="output_gate", weights=part + "attention_gate"),
            Op(kind="sigmoid_mul", reads=("mixed", "output_gate"), writes="mixed"),
        ]
    return sublayer_ops(spec, name, ops, "mixed")


def mlp_ops(spec: ModelSpec, layer: int) -> list[Op]:
    part = f"layers.{layer}."
    name: Sublayer = (layer, "mlp")
    if spec.num_experts:
        return expert_ops(spec, name)
    ops = [
        Op(kind="linear", reads=("x" if spec.norms == "after" else "h",), writes="gate_up", weights=part + "gate_up"),
        Op(kind=GATES[spec.gate], reads=("gate_up",), writes="gated"),
    ]
    return sublayer_ops(spec, name, ops, "gated")


def expert_ops(spec: ModelSpec, name: Sublayer) -> list[Op]:
    """A mixture of experts. The last op has two weights for each, see `products_of_experts`."""
    assert spec.norms == "before", "no family yet has experts with a norm on their output"
    part = f"layers.{name[0]}."
    return [
        Op(kind="norm", reads=("x",), writes="h", weights=part + "mlp_norm", sublayer=name),
        Op(kind="linear", reads=("h",), writes="router", weights=part + "router", sublayer=name),
        Op(kind="experts", reads=("h", "router", "x"), writes="x", weights=part + "experts", sublayer=name),
        *(shared_expert_ops(spec, name) if spec.shared_size else []),
    ]


def shared_expert_ops(spec: ModelSpec, name: Sublayer) -> list[Op]:
    """An MLP for every token besides its experts, with or without a gate."""
    part = f"layers.{name[0]}.shared_"
    ops = [
        Op(kind="linear", reads=("h",), writes="gate_up", weights=part + "gate_up"),
        Op(kind=GATES[spec.gate], reads=("gate_up",), writes="gated"),
    ]
    if spec.gates_shared:
        ops += [
            Op(kind="linear", reads=("gated",), writes="branch", weights=part + "out"),
            Op(kind="linear", reads=("h",), writes="shared_gate", weights=part + "gate"),
            Op(kind="sigmoid_mul", reads=("branch", "shared_gate"), writes="branch"),
            Op(kind="add", reads=("branch", "x"), writes="x"),
        ]
    else:
        ops.append(Op(kind="linear_add", reads=("gated", "x"), writes="x", weights=part + "out"))
    return [replace(op, sublayer=name) for op in ops]


def products_of_experts(op: Op, num_experts: int) -> list[tuple[Op, Op]]:
    """For each expert its product with gate and up, and its last product, with the names of their weights."""
    parts = [f"{op.weights}.{expert}" for expert in range(num_experts)]
    return [
        (replace(op, writes="gate_up", weights=f"{part}.gate_up"), replace(op, weights=f"{part}.out")) for part in parts
    ]


def layer_input_ops(layer: int) -> list[Op]:
    """A layer's own embedding of the token, gated by the residual stream and added to it after the sublayers."""
    part = f"layers.{layer}.layer_input_"
    return [
        Op(kind="linear", reads=("x",), writes="gate_input", weights=part + "gate", behind=layer),
        Op(kind="gate_input", reads=("gate_input", "layer_inputs"), writes="gate_input", behind=layer),
        Op(kind="linear", reads=("gate_input",), writes="branch", weights=part + "out", behind=layer),
        Op(kind="norm_add", reads=("branch", "x"), writes="x", weights=part + "post_norm", behind=layer),
    ]


def sublayer_ops(spec: ModelSpec, name: Sublayer, ops: list[Op], last: str) -> list[Op]:
    """A sublayer's ops between its norms, its last product and the addition to the residual stream.

    Args:
        last: the buffer that the last product reads.
    """
    layer, kind = name
    part = f"layers.{layer}.{kind}"
    out = f"layers.{layer}.{kind}_out"
    before = [Op(kind="norm", reads=("x",), writes="h", weights=f"{part}_norm")] if spec.norms != "after" else []
    if spec.norms == "before":
        end = [Op(kind="linear_add", reads=(last, "x"), writes="x", weights=out)]
    else:
        end = [
            Op(kind="linear", reads=(last,), writes="branch", weights=out),
            Op(kind="norm_add", reads=("branch", "x"), writes="x", weights=f"{part}_post_norm"),
        ]
    return [replace(op, sublayer=name) for op in (*before, *ops, *end)]


def shared_ops(op: Op) -> tuple[Op, ...]:
    """Split the last product of a sublayer into the product and its sum over the ranks."""
    if op.kind == "linear_add":
        factor, residual = op.reads
        return (
            replace(op, kind="linear", reads=(factor,), writes="partial"),
            replace(op, kind="add_partials", reads=("partial", residual), weights=""),
        )
    if op.writes == "branch":
        return (
            replace(op, writes="partial"),
            replace(op, kind="sum_partials", reads=("partial",), weights=""),
        )
    return (op,)
