"""Every kernel as real models launch it, to be compiled where there may be no GPU.

Launchers are called with tensors on the meta device, so that types, constants, alignment and options are exactly those
of a launch on a GPU.

Legend: R rows, W nodes of a batch, C children, A match lengths, N nodes of a chain, P places of the text, V vocabulary,
S slots, K key/value heads, D head size.
"""

from collections.abc import Container, Iterator
from functools import partial
from typing import Final

import torch
from torch import Tensor

from forerun.backends.gpu.passes.add_partials import add_partials, num_tiles_of, sum_partials
from forerun.backends.gpu.passes.attention import AttentionWorkspace, text_attention, tree_attention
from forerun.backends.gpu.passes.embed import embed
from forerun.backends.gpu.passes.exchange import MemoryShape, Peers, RankExchange, meet_all
from forerun.backends.gpu.passes.linear import linear, linear_add, linear_gate, linear_partial
from forerun.backends.gpu.passes.linear_buffers import InputNorm, NextNorm, NormShape, SplitWorkspace
from forerun.backends.gpu.passes.packed_linear import pack
from forerun.backends.gpu.passes.qkv import qkv
from forerun.backends.gpu.sampling.gumbel_noise import Draw
from forerun.backends.gpu.sampling.join_tiles import Sampled, TopK
from forerun.backends.gpu.sampling.output_projection import OutputProjection, sample_tokens, topk_tokens
from forerun.backends.gpu.sampling.score_shaping import RequestSettings, RowPaths, ScoreRows, shape_scores
from forerun.backends.gpu.sampling.stored_scores import draw_tiles
from forerun.backends.gpu.sampling.tile_maxima import TileMaxima
from forerun.backends.gpu.sampling.truncation import Filters, drop, find_cutoffs
from forerun.backends.gpu.tree.count_tokens import count_tokens
from forerun.backends.gpu.tree.device_tree import DeviceTree
from forerun.backends.gpu.tree.grow import grow
from forerun.backends.gpu.tree.move_slots import move_slots
from forerun.backends.gpu.tree.prompt_lookup import add_lookup_chain
from forerun.backends.gpu.tree.verify_rows import fill_verify_rows
from forerun.backends.gpu.tree.walk import walk
from forerun.core.drafter_config import MAX_MATCH
from forerun.core.model_spec import ModelSpec, WeightFormat
from tests.backends.gpu.compile_case import (
    COMPUTE,
    DEVICE,
    MAX_ROWS,
    MODELS,
    NUM_SLOTS,
    VOCAB_SIZE,
    CompileCase,
    PackedModel,
    cache,
    empty,
    packed_model,
    row_table,
    weight,
)
from tests.backends.gpu.compile_mechanisms import mechanism_cases

NO_MODEL: Final = "any model"
NUM_CHILDREN: Final = 4
SPARE_SLOT: Final = NUM_SLOTS - 1
NUM_RANKS: Final = 8
FORMATS: Final[tuple[tuple[str, WeightFormat], ...]] = (
    ("Llama-3.2-1B", "plain"),
    ("Llama-3.1-8B", "plain"),
    ("Llama-3.1-8B", "int8"),
    ("Llama-3.1-8B", "int4"),
    ("Llama-3.1-70B", "int4"),
)
ROWS_OF_LINEARS: Final = (8, 32, 64, 128)  # one tile of rows, two, four, eight
ROWS_OF_HEAD: Final = (8, 32, 64)
ROWS_OF_ATTENTION: Final = ((1, 8), (8, 1), (32, 8))  # with splits of the prefix


def compile_cases(models: Container[str] | None = None) -> Iterator[CompileCase]:
    """All of them; weights, which take long to pack, of these models alone if they are given.

    A model is named together with its weights' format where there are weights.
    """
    yield from _tree_cases()
    yield from _score_cases()
    yield from mechanism_cases()
    for name, spec in MODELS.items():
        yield from _cache_cases(name, spec)
        yield from _attention_cases(name, spec)
        yield from _rank_cases(name, spec)
    for name, weight_format in FORMATS:
        label = f"{name} {'bfloat16' if weight_format == 'plain' else weight_format}"
        if models is not None and label not in models:
            continue
        packed = packed_model(MODELS[name], weight_format)
        for num_rows in ROWS_OF_LINEARS:
            yield from _linear_cases(label, MODELS[name], packed, num_rows)
        yield from _partial_cases(label, MODELS[name], weight_format)
        for num_rows in ROWS_OF_HEAD:
            yield from _head_cases(label, MODELS[name], packed, num_rows)


def _tree_cases() -> Iterator[CompileCase]:
    """A tree of 32 nodes that grows by four at a time."""
    tree, rereading, following = (
        DeviceTree(
            verify_width=32, draft_width=4, num_children=NUM_CHILDREN, min_mass=0.01, device=DEVICE, **changes
        )
        for changes in ({}, {"rereads": True}, {"follows": True})
    )  # fmt: skip
    rows = row_table()
    text_P = empty(NUM_SLOTS, dtype=torch.int32)
    children = _topk(4)
    draft_ids = empty(VOCAB_SIZE, dtype=torch.int32)
    costs_AN = empty(MAX_MATCH + 1, tree.verify_width - 1)
    steps = {
        "grow first": partial(grow, tree, rows, text_P, spare_slot=SPARE_SLOT),
        "grow first, reread": partial(grow, rereading, rows, text_P, spare_slot=SPARE_SLOT),
        "grow": partial(grow, tree, rows, text_P, children, spare_slot=SPARE_SLOT),
        "grow, mapped": partial(grow, tree, rows, text_P, children, draft_ids=draft_ids, spare_slot=SPARE_SLOT),
        "verify_rows": partial(fill_verify_rows, tree, rows, children, spare_slot=SPARE_SLOT),
        "walk": partial(walk, tree, _sampled(32), text_P),
        "walk, reread": partial(walk, rereading, _sampled(32), text_P),
        "walk, following": partial(walk, following, _sampled(32), text_P),
        "add_lookup_chain": partial(add_lookup_chain, tree, text_P, costs_AN),
    }
    for name, step in steps.items():
        launch = partial(_launch, step)
        yield CompileCase(name=name, model=NO_MODEL, num_rows=32, launch=launch, is_product=False)


def _score_cases() -> Iterator[CompileCase]:
    """What shapes scores in memory and draws from them."""
    tree = DeviceTree(verify_width=32, draft_width=4, num_children=NUM_CHILDREN, min_mass=0.01, device=DEVICE)
    settings = RequestSettings.for_vocabulary(VOCAB_SIZE, DEVICE)
    filters = Filters.on(DEVICE)
    rows = ScoreRows.over(empty(32, VOCAB_SIZE), num_rows=32, num_columns=VOCAB_SIZE)
    ids = empty(VOCAB_SIZE, dtype=torch.int32)

    def draw(is_topk: bool, cutoffs: Tensor | None, *, overlaps: bool) -> None:
        maxima = TileMaxima.for_vocabulary(VOCAB_SIZE, block=64, max_rows=32, is_topk=is_topk, device=DEVICE)
        draw_tiles(
            rows, cutoffs, _draw(), maxima, num_rows=32, first_row=0, is_topk=is_topk, overlaps=overlaps
        )  # fmt: skip

    def shape(row_nodes: Tensor | None, column_ids: Tensor | None, *, overlaps: bool) -> None:
        paths = RowPaths(tree.nodes.tokens, tree.nodes.ancestors, row_nodes)
        shape_scores(rows, settings, paths, num_rows=32, column_ids=column_ids, overlaps=overlaps)

    steps = {
        "shape_scores": partial(shape, None, None),
        "shape_scores, mapped": partial(shape, tree.batch_W, ids),
        "find_cutoffs": partial(find_cutoffs, rows, filters, num_rows=32),
        "draw_tiles, sample": partial(draw, False, rows.cutoffs),
        "draw_tiles, topk": partial(draw, True, rows.cutoffs),
        "draw_tiles, topk, plain": partial(draw, True, None),
        "count_tokens": partial(count_tokens, tree, settings),
    }
    for name, step in steps.items():
        launch = partial(_launch, step)
        yield CompileCase(name=name, model=NO_MODEL, num_rows=32, launch=launch, is_product=False)
    leave = partial(drop, rows, num_rows=32)
    yield CompileCase(name="drop", model=NO_MODEL, num_rows=32, launch=lambda _: leave(), is_product=False)


def _cache_cases(model: str, spec: ModelSpec) -> Iterator[CompileCase]:
    """What does not depend on the format of weights."""
    table_VH = empty(VOCAB_SIZE, spec.hidden_size, dtype=COMPUTE)
    x = empty(MAX_ROWS, spec.hidden_size)
    rows = row_table()
    start = partial(embed, table_VH, rows.token_ids, x, _next_norm(spec, 1), scale=1.0, num_rows=32)
    yield CompileCase(name="embed", model=model, num_rows=32, launch=partial(_launch, start), is_product=False)
    move = partial(move_slots, cache(spec), empty(2 + 32, dtype=torch.int32))
    yield CompileCase(name="move_slots", model=model, num_rows=32, launch=partial(_launch, move), is_product=False)


def _attention_cases(model: str, spec: ModelSpec) -> Iterator[CompileCase]:
    keys_SKD, values_SKD = cache(spec)[:, 0]
    q, mixed = (empty(MAX_ROWS, spec.q_size, dtype=COMPUTE) for _ in range(2))
    rows = row_table()
    num_heads = spec.num_heads
    workspace = AttentionWorkspace.for_heads(
        max_rows=MAX_ROWS, num_heads=num_heads, head_dim=spec.head_dim, max_splits=65, device=DEVICE
    )
    for num_rows, num_splits in ROWS_OF_ATTENTION:
        attend = partial(
            tree_attention, q, keys_SKD, values_SKD, mixed, rows, num_rows=num_rows, num_heads=num_heads,
            num_splits=num_splits, workspace=workspace, is_settled=True,
        )  # fmt: skip
        yield CompileCase(name="tree_attention", model=model, num_rows=num_rows, launch=partial(_launch, attend))
    read = partial(text_attention, q, keys_SKD, values_SKD, mixed, rows, num_rows=MAX_ROWS, num_heads=num_heads)
    yield CompileCase(name="text_attention", model=model, num_rows=MAX_ROWS, launch=partial(_launch, read))


def _rank_cases(model: str, spec: ModelSpec) -> Iterator[CompileCase]:
    """What adds up the partials of several ranks, and what waits for them alone."""
    rows = row_table()
    x = empty(MAX_ROWS, spec.hidden_size)
    add = partial(
        add_partials, _exchange(spec), x, num_rows=8, next_norm=_next_norm(spec, num_tiles_of(spec.hidden_size)),
        row_skips=rows.row_skips, sublayer=2, num_sublayers=rows.num_sublayers,
    )  # fmt: skip
    launch = partial(_launch, add)
    yield CompileCase(
        name="add_partials", model=model, num_rows=8, launch=launch, is_product=False, is_counted=True
    )  # fmt: skip
    like = empty(MAX_ROWS, spec.hidden_size, dtype=COMPUTE)
    total = partial(sum_partials, _exchange(spec), x, like=like, num_rows=8)
    yield CompileCase(name="sum_partials", model=model, num_rows=8, launch=partial(_launch, total), is_product=False)
    meet = partial(meet_all, _exchange(spec))
    yield CompileCase(name="meet_all", model=model, num_rows=1, launch=lambda _: meet(), is_product=False)


def _partial_cases(model: str, spec: ModelSpec, weight_format: WeightFormat) -> Iterator[CompileCase]:
    """The MLP's output of one rank."""
    num_in = spec.intermediate_size // NUM_RANKS
    packed = pack(weight(spec.hidden_size, num_in, weight_format), None, compute=COMPUTE)
    workspace = SplitWorkspace.for_linears([packed], max_rows=MAX_ROWS, device=DEVICE)
    gated = empty(MAX_ROWS, num_in, dtype=COMPUTE)
    exchange = _exchange(spec)
    for num_rows in ROWS_OF_LINEARS:
        step = partial(linear_partial, gated, packed, exchange, num_rows=num_rows, workspace=workspace)
        launch = partial(_launch, step)
        yield CompileCase(name="linear_partial", model=model, num_rows=num_rows, launch=launch, packed=packed)


def _linear_cases(model: str, spec: ModelSpec, packed: PackedModel, num_rows: int) -> Iterator[CompileCase]:
    rows = row_table()
    norm = _input_norm(spec, packed)
    workspace = _workspace(packed)
    h = empty(MAX_ROWS, spec.hidden_size, dtype=COMPUTE)
    x = empty(MAX_ROWS, spec.hidden_size)
    q, mixed = (empty(MAX_ROWS, spec.q_size, dtype=COMPUTE) for _ in range(2))
    gated = empty(MAX_ROWS, spec.intermediate_size, dtype=COMPUTE)
    keys_SKD, values_SKD = cache(spec)[:, 0]
    cos_sin_P2D = empty(NUM_SLOTS, 2, spec.head_dim)
    next_norm = _next_norm(spec, packed.attention_out.num_out // packed.attention_out.tiles.block_out)
    add = partial(
        linear_add, x=x, num_rows=num_rows, next_norm=next_norm, row_skips=rows.row_skips,
        num_sublayers=rows.num_sublayers, workspace=workspace,
    )  # fmt: skip
    qkv_step = partial(
        qkv, h, packed.qkv, q, keys_SKD, values_SKD, cos_sin_P2D, rows, num_rows=num_rows, spec=spec, head_norms=None,
        query_scales_P=None, norm=norm, workspace=workspace,
    )  # fmt: skip
    gate = partial(
        linear_gate, h, packed.gate_up, gated, gate="silu", num_rows=num_rows, norm=norm, workspace=workspace
    )
    steps = {
        "qkv": (packed.qkv, qkv_step),
        "linear_add, attention": (packed.attention_out, partial(add, mixed, packed.attention_out, sublayer=2)),
        "linear_gate": (packed.gate_up, gate),
        "linear_add, mlp": (packed.mlp_out, partial(add, gated, packed.mlp_out, sublayer=3)),
    }
    for name, (weights, step) in steps.items():
        launch = partial(_launch, step)
        yield CompileCase(name=name, model=model, num_rows=num_rows, launch=launch, packed=weights)


def _head_cases(model: str, spec: ModelSpec, packed: PackedModel, num_rows: int) -> Iterator[CompileCase]:
    h = empty(MAX_ROWS, spec.hidden_size, dtype=COMPUTE)
    y = empty(MAX_ROWS, VOCAB_SIZE)
    norm = _input_norm(spec, packed)
    workspace = _workspace(packed)

    def head(overlaps: bool, *, is_topk: bool) -> OutputProjection:
        maxima = TileMaxima.for_vocabulary(VOCAB_SIZE, block=64, max_rows=MAX_ROWS, is_topk=is_topk, device=DEVICE)
        return OutputProjection(
            h=h, packed=packed.head, norm=norm, workspace=workspace, maxima=maxima, overlaps=overlaps
        )

    def sample(*, overlaps: bool) -> None:
        sample_tokens(head(overlaps, is_topk=False), _draw(), _sampled(num_rows), num_rows=num_rows)

    def topk(*, overlaps: bool, column_ids: Tensor | None = None) -> None:
        topk_tokens(
            head(overlaps, is_topk=True), _draw()._replace(column_ids=column_ids), _topk(num_rows),
            num_children=NUM_CHILDREN, vocab_size=VOCAB_SIZE, num_rows=num_rows,
        )  # fmt: skip

    logits = partial(linear, h, packed.head, y, num_rows=num_rows, first_row=0, norm=norm, workspace=workspace)
    mapped = partial(topk, column_ids=empty(VOCAB_SIZE, dtype=torch.int32))
    steps = {
        "linear, head": logits, "sample_tokens": partial(sample), "topk_tokens": partial(topk),
        "topk_tokens, mapped": mapped,
    }  # fmt: skip
    for name, step in steps.items():
        launch = partial(_launch, step)
        yield CompileCase(name=name, model=model, num_rows=num_rows, launch=launch, packed=packed.head)


def _exchange(spec: ModelSpec) -> RankExchange:
    """The first rank's end of one between eight."""
    num_programs = num_tiles_of(spec.hidden_size)
    place_bytes = MAX_ROWS * spec.hidden_size * COMPUTE.itemsize
    return RankExchange(
        rank=0,
        memories=(),
        peers=Peers(
            addresses=empty(NUM_RANKS, dtype=torch.int64),
            exchanges=empty(num_programs, dtype=torch.int32),
            lost=empty(1, dtype=torch.int32),
            known_lost=empty(1, dtype=torch.int32),
        ),
        shape=MemoryShape.of(num_ranks=NUM_RANKS, num_programs=num_programs, place_bytes=place_bytes),
        most_polls=1,
    )


def _launch(step: partial[None], overlaps: bool) -> None:
    step(overlaps=overlaps)


def _workspace(packed: PackedModel) -> SplitWorkspace:
    linears = (packed.qkv, packed.attention_out, packed.gate_up, packed.mlp_out, packed.head)
    return SplitWorkspace.for_linears(linears, max_rows=MAX_ROWS, device=DEVICE)


def _input_norm(spec: ModelSpec, packed: PackedModel) -> InputNorm:
    tiles = packed.attention_out.num_out // packed.attention_out.tiles.block_out
    shape = NormShape(num_parts=tiles, size=spec.hidden_size, eps=spec.norm_eps)
    return InputNorm(squares=empty(tiles, MAX_ROWS), shape=shape, scale=1.0)


def _next_norm(spec: ModelSpec, tiles: int) -> NextNorm:
    h = empty(MAX_ROWS, spec.hidden_size, dtype=COMPUTE)
    return NextNorm(weight=empty(spec.hidden_size), h=h, squares=empty(tiles, MAX_ROWS), scale=1.0)


def _draw() -> Draw:
    """A sampled one."""
    return Draw(empty(1), empty(1, dtype=torch.int64), row_table().positions)


def _sampled(num_rows: int) -> Sampled:
    return Sampled(empty(num_rows, dtype=torch.int32), empty(num_rows), empty(num_rows))


def _topk(num_rows: int) -> TopK:
    return TopK(empty(num_rows, NUM_CHILDREN, dtype=torch.int32), empty(num_rows, NUM_CHILDREN))
