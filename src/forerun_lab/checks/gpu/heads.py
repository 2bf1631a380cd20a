"""The head that ends in tokens instead of logits: a greedy choice, a sampled one, a ranking of children."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from forerun.backends.gpu.buffers import NARROW_ROWS
from forerun.backends.gpu.pass_shape import PassShape
from forerun.backends.gpu.sampling.gumbel_noise import Draw
from forerun.backends.gpu.sampling.join_tiles import Sampled, TopK
from forerun.backends.gpu.sampling.output_projection import OutputProjection, sample_tokens, topk_tokens
from forerun.backends.gpu.sampling.tile_maxima import TileMaxima
from forerun.sampling.noise import splitmix64
from forerun_lab.checks.gpu.cases import Case, Row, Setting
from forerun_lab.checks.gpu.clock import time_calls
from forerun_lab.checks.gpu.layers import Layers, reduced
from forerun_lab.checks.gpu.models import Model, rows_of

ENDS = ("choose", "choose_sampled", "rank_sampled")
NUM_CHILDREN = 8
SEED = 5


def head_cases(model: Model, setting: Setting) -> Iterator[Case]:
    for end in ENDS:
        yield Case(
            name=f"{model}: {end}",
            run=partial(timings, model, end, setting),
            warm=partial(launch_once, model, end, setting),
        )


class End:
    """The head's weights and where its results go."""

    def __init__(self, layers: Layers, end: str, device: str) -> None:
        self._layers = layers
        self._end = end
        executor = layers.executor
        is_noisy = end.endswith("sampled")
        vocab_size = layers.spec.vocab_size
        seed_mix = splitmix64(SEED)
        signed = seed_mix - (1 << 64) if seed_mix >> 63 else seed_mix
        self._draw = Draw(
            temperature=torch.ones(1, device=device),
            seed_mix=torch.tensor([signed], device=device) if is_noisy else None,
            positions=executor.rows.positions,
        )
        maxima = TileMaxima.for_vocabulary(
            vocab_size, block=executor.head.tiles.block_out, max_rows=NARROW_ROWS, is_topk=end.startswith("rank"),
            device=device,
        )  # fmt: skip
        assert len(maxima.firsts) >= NARROW_ROWS * executor.head.num_tiles, "a maximum for every tile"
        self._head = OutputProjection(
            h=executor.buffers.h, packed=executor.head, norm=executor.head_norm, workspace=executor.buffers.workspace,
            maxima=maxima, overlaps=executor.overlaps,
        )  # fmt: skip
        self.tokens = torch.full((NARROW_ROWS, NUM_CHILDREN), -1, dtype=torch.int32, device=device)
        self._floats = torch.empty(2, NARROW_ROWS, NUM_CHILDREN, device=device)

    def call(self, shape: PassShape) -> Callable[[], None]:
        num_rows = shape.num_rows
        if self._end.startswith("rank"):
            topk = TopK(tokens=self.tokens, log_probs=self._floats[0])
            return lambda: topk_tokens(
                self._head, self._draw, topk, num_children=NUM_CHILDREN, vocab_size=self._layers.spec.vocab_size,
                num_rows=num_rows,
            )  # fmt: skip
        sampled = Sampled(self.tokens.view(-1)[:NARROW_ROWS], *self._floats.view(2, -1)[:, :NARROW_ROWS])
        return lambda: sample_tokens(self._head, self._draw, sampled, num_rows=num_rows)


@torch.inference_mode()
def launch_once(model: Model, end: str, setting: Setting) -> None:
    layers = Layers.make(model, reduced(model, "head", setting), setting)
    work = End(layers, end, setting.device)
    for num_rows in rows_of(setting):
        work.call(layers.aim(num_rows))()


@torch.inference_mode()
def timings(model: Model, end: str, setting: Setting) -> Iterator[Row]:
    """Also how many of the greedy tokens are not those of the largest logits."""
    layers = Layers.make(model, reduced(model, "head", setting), setting)
    work = End(layers, end, setting.device)
    for num_rows in rows_of(setting):
        shape = layers.aim(num_rows)
        call = work.call(shape)
        logits_call = layers.calls("head", shape)[0]
        spread = time_calls([call], setting.device, budget_s=0.1)
        logits_call()
        largest = layers.executor.logits_RV[:num_rows].argmax(-1)
        moved_bytes = layers.moved_bytes("head", 0)
        row: Row = {
            "model": str(model), "kernel": end, "rows": num_rows, "us": 1e6 * spread.median,
            "us_low": 1e6 * spread.low, "us_high": 1e6 * spread.high, "copies": 1, "moved_bytes": moved_bytes,
            "ceiling_share": setting.floor_share(moved_bytes, spread.median), "torch_bf16_us": None,
        }  # fmt: skip
        if end == "choose":
            row["error"] = float((work.tokens.view(-1)[:num_rows] != largest).float().mean())
        yield row
