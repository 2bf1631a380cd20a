"""Attention and the product before it, compiled for every dtype and head size that a GPU takes, as JSON.

Arguments: architectures.
"""

import json
import sys
from collections.abc import Iterator
from typing import Final

import torch

from forerun.backends.gpu.availability import DTYPES, HEAD_DIMS
from forerun.backends.gpu.passes.attention import AttentionWorkspace, text_attention, tree_attention
from forerun.backends.gpu.passes.linear_buffers import InputNorm, NormShape, SplitWorkspace
from forerun.backends.gpu.passes.packed_linear import pack
from forerun.backends.gpu.passes.qkv import qkv
from forerun.backends.gpu.shared_memory import WIDEST_WHOLE, attention_bytes
from forerun.core.model_spec import ModelSpec, WeightFormat
from tests.backends.gpu.compile_case import MAX_ROWS, NUM_SLOTS, OLDEST_WITH_OVERLAP, empty, row_table, weight
from tests.backends.gpu.compiling import SHARED_LIMITS, compiling
from tests.backends.gpu.resources import launch_resources

NUM_HEADS: Final = 8
NUM_KV_HEADS: Final = 2
HIDDEN_SIZE: Final = 4096
FORMATS: Final[tuple[WeightFormat, ...]] = ("plain", "int8", "int4")


def spec_of(head_dim: int) -> ModelSpec:
    return ModelSpec(
        family="llama", num_layers=2, hidden_size=HIDDEN_SIZE, num_heads=NUM_HEADS, num_kv_heads=NUM_KV_HEADS,
        head_dim=head_dim, intermediate_size=4096, vocab_size=1024, max_positions=NUM_SLOTS, norm_eps=1e-5,
    )  # fmt: skip


def launch_all(dtype: torch.dtype, head_dim: int, *, overlaps: bool) -> None:
    """A layer's first half, for few rows and for many; with norms of heads, which take registers."""
    spec = spec_of(head_dim)
    rows = row_table()
    keys_SKD, values_SKD = (empty(NUM_SLOTS, NUM_KV_HEADS, head_dim, dtype=dtype) for _ in range(2))
    q, mixed = (empty(MAX_ROWS, spec.q_size, dtype=dtype) for _ in range(2))
    device = str(q.device)
    head_norms = (empty(head_dim), empty(head_dim))
    parts = AttentionWorkspace.for_heads(
        max_rows=32, num_heads=NUM_HEADS, head_dim=head_dim, max_splits=65, device=device
    )
    norm = InputNorm(squares=empty(64, MAX_ROWS), shape=NormShape(num_parts=64, size=HIDDEN_SIZE, eps=1e-5), scale=1.0)
    for weight_format in FORMATS:
        values = weight(spec.q_size + 2 * spec.kv_size, HIDDEN_SIZE, weight_format, dtype)
        packed = pack(values, None, compute=dtype, head_dim=head_dim)
        workspace = SplitWorkspace.for_linears([packed], max_rows=MAX_ROWS, device=device)
        for num_rows in (8, 128):
            qkv(
                empty(MAX_ROWS, HIDDEN_SIZE, dtype=dtype), packed, q, keys_SKD, values_SKD,
                empty(NUM_SLOTS, 2, head_dim), rows, num_rows=num_rows, spec=spec, head_norms=head_norms,
                query_scales_P=None, norm=norm, workspace=workspace, overlaps=overlaps,
            )  # fmt: skip
    for num_rows, num_splits in ((1, 8), (8, 64), (32, 64)):
        tree_attention(
            q, keys_SKD, values_SKD, mixed, rows, num_rows=num_rows, num_heads=NUM_HEADS, num_splits=num_splits,
            workspace=parts, overlaps=overlaps, is_settled=True,
        )  # fmt: skip
    text_attention(q, keys_SKD, values_SKD, mixed, rows, num_rows=MAX_ROWS, num_heads=NUM_HEADS, overlaps=overlaps)


def report(architecture: int) -> Iterator[dict[str, object]]:
    for dtype in DTYPES:
        for head_dim in HEAD_DIMS:
            if attention_bytes(head_dim, dtype.itemsize, num_stages=1) > SHARED_LIMITS[architecture]:
                continue
            if dtype == torch.float32 and head_dim > WIDEST_WHOLE:
                continue
            with compiling(architecture) as launches:
                launch_all(dtype, head_dim, overlaps=architecture >= OLDEST_WITH_OVERLAP)
            for launch in launches:
                found = launch_resources(launch)
                yield {
                    "name": f"{found.kernel}, {dtype}, heads of {head_dim}, sm_{architecture}",
                    "shared_bytes": found.shared_bytes, "loop_spills": found.loop_spills,
                    "stack_bytes": found.stack_bytes,
                }  # fmt: skip


if __name__ == "__main__":
    sys.stdout.write(json.dumps([found for argument in sys.argv[1:] for found in report(int(argument))]))
