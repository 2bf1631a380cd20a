"""Every use of every op: the list of what `forerun bench kernels` measures.

Legend: T rows, N heads, D head size, I input features, O output features.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from math import prod
from typing import Final

from forerun.backends.choose import Kernels
from forerun.bench.kernel_attention import prepare_mask_subjects, tree_attention_subjects
from forerun.bench.kernel_subject import Bound, Cost, Setting, Subject
from forerun.checkpoints.names import fused_shapes, tensor_plan
from forerun.model.program import Op, build_program
from forerun.model.rope import rope_table


def op_names() -> list[str]:
    """Every op of the dispatch table."""
    return [field.name for field in fields(Kernels) if field.name not in ("name", "row_exact")]


def subjects(setting: Setting) -> list[Subject]:
    """Every use of every op of the dispatch table."""
    missing = [name for name in op_names() if name not in BUILDERS]
    assert not missing, f"new ops {missing} need an entry in BUILDERS, or nobody measures them"
    return [subject for name in op_names() for subject in BUILDERS[name](setting)]


def linear_subjects(setting: Setting) -> list[Subject]:
    """The matrix products of a layer and the head, as the model's program has them."""
    ops = [op for op in build_program(setting.spec) if op.kind in ("linear", "linear_add")]
    is_first = [op.sublayer is None or op.layer == 0 for op in ops]
    shapes = fused_shapes(tensor_plan(setting.spec))
    return [linear_subject(setting, op, shapes) for op, is_wanted in zip(ops, is_first, strict=True) if is_wanted]


def linear_subject(setting: Setting, op: Op, shapes: dict[str, tuple[int, ...]]) -> Subject:
    num_out, num_in = shapes[f"{op.weights}.weight"]
    has_bias, has_residual = f"{op.weights}.bias" in shapes, op.kind == "linear_add"
    part = "head" if op.sublayer is None else op.weights.removeprefix("layers.0.")

    def bind(kernels: Kernels, num_copies: int) -> Callable[[int], Bound]:
        weight_OI = setting.random(num_out, num_in, seed=1, scale=num_in**-0.5)
        bias_O = setting.random(num_out, seed=2) if has_bias else None
        layers = [kernels.pack_linear(weight_OI.clone(), bias_O) for _ in range(num_copies)]

        def at(num_rows: int) -> Bound:
            x_TI = setting.random(num_rows, num_in, seed=3)
            residual_TO = setting.random(num_rows, num_out, seed=4) if has_residual else None
            return Bound(calls=tuple(partial(layer, x_TI, residual_TO) for layer in layers))

        return at

    def cost(num_rows: int) -> Cost:
        per_row = num_in + num_out * (1 + has_residual)
        return Cost(
            moved_bytes=setting.num_bytes(num_out * (num_in + has_bias) + num_rows * per_row),
            num_operations=2 * num_rows * num_out * num_in,
        )

    return Subject(
        op="pack_linear",
        part=part + (" + residual" if has_residual else ""),
        bind=bind,
        cost=cost,
        copy_bytes=setting.num_bytes(num_out * num_in),
        num_in_model=1 if op.sublayer is None else setting.spec.num_layers,
    )


def norm_subjects(setting: Setting) -> list[Subject]:
    """The norm of the hidden state, and of query heads where the family has it."""
    spec = setting.spec
    shapes = {"hidden": (spec.hidden_size,)} | ({"q_norm": (spec.num_heads, spec.head_dim)} if spec.qk_norm else {})
    return [norm_subject(setting, part, shape) for part, shape in shapes.items()]


def norm_subject(setting: Setting, part: str, shape: tuple[int, ...]) -> Subject:
    def bind(kernels: Kernels, num_copies: int) -> Callable[[int], Bound]:
        norm = kernels.pack_norm(setting.random(shape[-1], seed=5), setting.spec.norm_eps)

        def at(num_rows: int) -> Bound:
            x = setting.random(num_rows, *shape, seed=6)
            return Bound(calls=(lambda: norm(x),) * num_copies)

        return at

    def cost(num_rows: int) -> Cost:
        return Cost(moved_bytes=setting.num_bytes(2 * num_rows * prod(shape) + shape[-1]))

    return Subject(op="pack_norm", part=part, bind=bind, cost=cost)


def rotate_subjects(setting: Setting) -> list[Subject]:
    """Queries and keys turned: a view of the fused product, unless a norm of the heads has copied it."""
    spec = setting.spec
    num_turned = spec.num_heads + spec.num_kv_heads
    num_all = num_turned if spec.qk_norm else num_turned + spec.num_kv_heads

    def bind(kernels: Kernels, num_copies: int) -> Callable[[int], Bound]:
        def at(num_rows: int) -> Bound:
            x_TND = setting.random(num_rows, num_all, spec.head_dim, seed=7)[:, :num_turned]
            table_T2D = rope_table(spec.rope, spec.head_dim, num_rows, dtype=setting.dtype, device=str(setting.device))
            cos_T1D, sin_T1D = table_T2D[:, :1], table_T2D[:, 1:]
            return Bound(calls=(lambda: kernels.rotate(x_TND, cos_T1D, sin_T1D),) * num_copies)

        return at

    def cost(num_rows: int) -> Cost:
        return Cost(moved_bytes=setting.num_bytes(2 * num_rows * (num_turned + 1) * spec.head_dim))

    return [Subject(op="rotate", part="q and k", bind=bind, cost=cost)]


def silu_mul_subjects(setting: Setting) -> list[Subject]:
    """The gate of the MLP."""
    width = setting.spec.intermediate_size

    def bind(kernels: Kernels, num_copies: int) -> Callable[[int], Bound]:
        def at(num_rows: int) -> Bound:
            gate_up = setting.random(num_rows, 2 * width, seed=8)
            return Bound(calls=(lambda: kernels.silu_mul(gate_up),) * num_copies)

        return at

    return [
        Subject(
            op="silu_mul",
            part="gate and up",
            bind=bind,
            cost=lambda num_rows: Cost(moved_bytes=setting.num_bytes(3 * num_rows * width)),
        )
    ]


BUILDERS: Final[dict[str, Callable[[Setting], list[Subject]]]] = {
    "pack_linear": linear_subjects,
    "pack_norm": norm_subjects,
    "rotate": rotate_subjects,
    "silu_mul": silu_mul_subjects,
    "prepare_mask": prepare_mask_subjects,
    "tree_attention": tree_attention_subjects,
}
