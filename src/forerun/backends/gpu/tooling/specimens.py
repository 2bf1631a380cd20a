"""Every kernel as real models launch it, to be compiled where there may be no GPU.

Launchers are called with tensors on the meta device, so that types, constants, alignment and options are exactly those
of a launch on a GPU.

Legend: R rows, W nodes of a batch, C children, A match lengths, N nodes of a chain, P places of the text, V vocabulary,
S slots, K key/value heads, D head size.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import torch

from forerun.backends.gpu.choosing.head import choose_tokens, rank_tokens
from forerun.backends.gpu.choosing.noise import Noise
from forerun.backends.gpu.choosing.selection import Choice, Draw, Ranking, choose_from_scores, rank_from_scores
from forerun.backends.gpu.choosing.tile_maxima import Leaders
from forerun.backends.gpu.passes.attention import AttentionWorkspace, text_attention, tree_attention
from forerun.backends.gpu.passes.embed import embed
from forerun.backends.gpu.passes.launching import NextNorm, NormFold, Workspace
from forerun.backends.gpu.passes.linear import linear, linear_add, linear_silu
from forerun.backends.gpu.passes.qkv import qkv
from forerun.backends.gpu.tooling.specimen import (
    COMPUTE,
    DEVICE,
    MAX_ROWS,
    MODELS,
    NUM_SLOTS,
    VOCAB_SIZE,
    PackedModel,
    Specimen,
    cache,
    empty,
    packed_model,
    row_table,
)
from forerun.backends.gpu.tree.accept import accept
from forerun.backends.gpu.tree.cut import cut
from forerun.backends.gpu.tree.device_tree import DeviceTree
from forerun.backends.gpu.tree.grow import grow
from forerun.backends.gpu.tree.lookup import hang_lookup
from forerun.backends.gpu.tree.move_slots import move_slots
from forerun.core.drafter_config import MAX_MATCH
from forerun.core.model_spec import ModelSpec, WeightFormat

NO_MODEL: Final = "any model"
NUM_CHILDREN: Final = 4
SPARE_SLOT: Final = NUM_SLOTS - 1
FORMATS: Final[tuple[tuple[str, WeightFormat], ...]] = (
    ("Llama-3.2-1B", "plain"),
    ("Llama-3.1-8B", "plain"),
    ("Llama-3.1-8B", "int8"),
    ("Llama-3.1-8B", "int4"),
    ("Llama-3.1-70B", "int4"),
)
ROWS_OF_LINEARS: Final = (8, 32, 64)  # one tile, two tiles, several blocks of rows
ROWS_OF_HEAD: Final = (8, 32)
ROWS_OF_ATTENTION: Final = ((1, 8), (8, 1), (32, 8))  # with splits of the prefix


def specimens() -> Iterator[Specimen]:
    """All of them. The model is named together with its weights' format where there are weights."""
    yield from _tree_specimens()
    yield from _score_specimens()
    for name, spec in MODELS.items():
        yield from _cache_specimens(name, spec)
        yield from _attention_specimens(name, spec)
    for name, weight_format in FORMATS:
        label = f"{name} {'bfloat16' if weight_format == 'plain' else weight_format}"
        packed = packed_model(MODELS[name], weight_format)
        for num_rows in ROWS_OF_LINEARS:
            yield from _linear_specimens(label, MODELS[name], packed, num_rows)
        for num_rows in ROWS_OF_HEAD:
            yield from _head_specimens(label, MODELS[name], packed, num_rows)


def _tree_specimens() -> Iterator[Specimen]:
    """A tree of 32 nodes that grows by four at a time."""
    tree = DeviceTree(verify_width=32, draft_width=4, num_children=NUM_CHILDREN, min_mass=0.01, device=DEVICE)
    rows, text_P = row_table(), empty(NUM_SLOTS, dtype=torch.int32)
    children = (empty(4, NUM_CHILDREN, dtype=torch.int32), empty(4, NUM_CHILDREN))
    chosen = (empty(32, dtype=torch.int32), empty(32), empty(32))
    costs_AN = empty(MAX_MATCH + 1, tree.verify_width - 1)
    steps = {
        "grow first": partial(grow, tree, rows, vocab_size=VOCAB_SIZE, spare_slot=SPARE_SLOT),
        "grow": partial(grow, tree, rows, *children, vocab_size=VOCAB_SIZE, spare_slot=SPARE_SLOT),
        "cut": partial(cut, tree, rows, *children, spare_slot=SPARE_SLOT),
        "accept": partial(accept, tree, *chosen, text_P),
        "hang_lookup": partial(hang_lookup, tree, text_P, costs_AN),
    }
    for name, step in steps.items():
        launch = partial(_launch, step)
        yield Specimen(name=name, model=NO_MODEL, num_rows=32, launch=launch, is_product=False)


def _score_specimens() -> Iterator[Specimen]:
    """Scores in memory, where something else has shaped them."""
    num_rows, scores_RV = 8, empty(8, VOCAB_SIZE)
    choose = partial(choose_from_scores, scores_RV, _draw(), _choice(num_rows), _leaders(ranks=False))
    rank = partial(
        rank_from_scores, scores_RV, _draw(), _ranking(num_rows), _leaders(ranks=True), num_children=NUM_CHILDREN,
        vocab_size=VOCAB_SIZE,
    )  # fmt: skip
    for name, step in {"choose_from_scores": choose, "rank_from_scores": rank}.items():
        launch = partial(_launch, step)
        yield Specimen(name=name, model=NO_MODEL, num_rows=num_rows, launch=launch, is_product=False)


def _cache_specimens(model: str, spec: ModelSpec) -> Iterator[Specimen]:
    """What does not depend on the format of weights."""
    table_VH = empty(VOCAB_SIZE, spec.hidden_size, dtype=COMPUTE)
    x, rows = empty(MAX_ROWS, spec.hidden_size), row_table()
    start = partial(embed, table_VH, rows.token_ids, x, _next_norm(spec, 1), num_rows=32)
    yield Specimen(name="embed", model=model, num_rows=32, launch=partial(_launch, start), is_product=False)
    move = partial(move_slots, cache(spec), empty(2 + 32, dtype=torch.int32))
    yield Specimen(name="move_slots", model=model, num_rows=32, launch=partial(_launch, move), is_product=False)


def _attention_specimens(model: str, spec: ModelSpec) -> Iterator[Specimen]:
    keys_SKD, values_SKD = cache(spec)[:, 0]
    q, mixed = (empty(MAX_ROWS, spec.q_size, dtype=COMPUTE) for _ in range(2))
    rows, num_heads = row_table(), spec.num_heads
    workspace = AttentionWorkspace.for_heads(
        max_rows=MAX_ROWS, num_heads=num_heads, head_dim=spec.head_dim, max_splits=65, device=DEVICE
    )
    for num_rows, num_splits in ROWS_OF_ATTENTION:
        attend = partial(
            tree_attention, q, keys_SKD, values_SKD, mixed, rows, num_rows=num_rows, num_heads=num_heads,
            num_splits=num_splits, workspace=workspace, is_settled=True,
        )  # fmt: skip
        yield Specimen(name="tree_attention", model=model, num_rows=num_rows, launch=partial(_launch, attend))
    read = partial(text_attention, q, keys_SKD, values_SKD, mixed, rows, num_rows=MAX_ROWS, num_heads=num_heads)
    yield Specimen(name="text_attention", model=model, num_rows=MAX_ROWS, launch=partial(_launch, read))


def _linear_specimens(model: str, spec: ModelSpec, packed: PackedModel, num_rows: int) -> Iterator[Specimen]:
    rows, fold = row_table(), _norm_fold(spec, packed)
    workspace = _workspace(packed)
    h, x = empty(MAX_ROWS, spec.hidden_size, dtype=COMPUTE), empty(MAX_ROWS, spec.hidden_size)
    q, mixed = (empty(MAX_ROWS, spec.q_size, dtype=COMPUTE) for _ in range(2))
    gated = empty(MAX_ROWS, spec.intermediate_size, dtype=COMPUTE)
    keys_SKD, values_SKD = cache(spec)[:, 0]
    turns_P2D = empty(NUM_SLOTS, 2, spec.head_dim)
    next_norm = _next_norm(spec, packed.attention_out.num_out // packed.attention_out.tiles.block_out)
    add = partial(
        linear_add, x=x, num_rows=num_rows, next_norm=next_norm, gates=rows.gates, num_sublayers=rows.num_sublayers,
        workspace=workspace,
    )  # fmt: skip
    steps = {
        "qkv": partial(
            qkv, h, packed.qkv, q, keys_SKD, values_SKD, turns_P2D, rows, num_rows=num_rows, spec=spec,
            head_norms=None, fold=fold, workspace=workspace,
        ),
        "linear_add, attention": partial(add, mixed, packed.attention_out, sublayer=2),
        "linear_silu": partial(
            linear_silu, h, packed.gate_up, gated, num_rows=num_rows, fold=fold, workspace=workspace
        ),
        "linear_add, mlp": partial(add, gated, packed.mlp_out, sublayer=3),
    }  # fmt: skip
    for name, step in steps.items():
        yield Specimen(name=name, model=model, num_rows=num_rows, launch=partial(_launch, step))


def _head_specimens(model: str, spec: ModelSpec, packed: PackedModel, num_rows: int) -> Iterator[Specimen]:
    h, y = empty(MAX_ROWS, spec.hidden_size, dtype=COMPUTE), empty(MAX_ROWS, VOCAB_SIZE)
    fold, workspace = _norm_fold(spec, packed), _workspace(packed)
    rest: dict[str, Any] = {"num_rows": num_rows, "first_row": 0, "fold": fold, "workspace": workspace}
    steps = {
        "linear, head": partial(linear, h, packed.head, y, **rest),
        "choose_tokens": partial(
            choose_tokens, h, packed.head, _draw(), _choice(num_rows), leaders=_leaders(ranks=False), **rest
        ),
        "rank_tokens": partial(
            rank_tokens, h, packed.head, _draw(), _ranking(num_rows), num_children=NUM_CHILDREN, vocab_size=VOCAB_SIZE,
            leaders=_leaders(ranks=True), **rest,
        ),
    }  # fmt: skip
    for name, step in steps.items():
        yield Specimen(name=name, model=model, num_rows=num_rows, launch=partial(_launch, step))


def _launch(step: partial[None], overlaps: bool) -> None:
    step(overlaps=overlaps)


def _workspace(packed: PackedModel) -> Workspace:
    linears = (packed.qkv, packed.attention_out, packed.gate_up, packed.mlp_out, packed.head)
    return Workspace.for_linears(linears, max_rows=MAX_ROWS, device=DEVICE)


def _norm_fold(spec: ModelSpec, packed: PackedModel) -> NormFold:
    tiles = packed.attention_out.num_out // packed.attention_out.tiles.block_out
    squares = empty(tiles, MAX_ROWS)
    return NormFold(squares=squares, num_tiles=tiles, size=spec.hidden_size, eps=spec.norm_eps, scale=1.0)


def _next_norm(spec: ModelSpec, tiles: int) -> NextNorm:
    h = empty(MAX_ROWS, spec.hidden_size, dtype=COMPUTE)
    return NextNorm(weight=empty(spec.hidden_size), h=h, squares=empty(tiles, MAX_ROWS), scale=1.0)


def _draw() -> Draw:
    """A sampled one."""
    noise = Noise(seed_mix=empty(1, dtype=torch.int64), positions_T=row_table().positions)
    return Draw(temperature=empty(1), noise=noise)


def _choice(num_rows: int) -> Choice:
    return Choice(tokens=empty(num_rows, dtype=torch.int32), best=empty(num_rows), second=empty(num_rows))


def _ranking(num_rows: int) -> Ranking:
    return Ranking(tokens=empty(num_rows, NUM_CHILDREN, dtype=torch.int32), log_probs=empty(num_rows, NUM_CHILDREN))


def _leaders(*, ranks: bool) -> Leaders:
    return Leaders.for_vocabulary(VOCAB_SIZE, block=64, max_rows=MAX_ROWS, ranks=ranks, device=DEVICE)
