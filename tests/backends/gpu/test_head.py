"""Hidden rows to tokens: the scores that `linear` gives, sampled as scores are.

Legend: R rows, V vocabulary, H hidden size.
"""

import pytest
import torch
from torch import Tensor

from forerun.backends.gpu.passes.linear import linear
from forerun.backends.gpu.passes.linear_buffers import InputNorm, NormShape, SplitWorkspace
from forerun.backends.gpu.passes.packed_linear import DeviceLinear, pack
from forerun.backends.gpu.sampling.gumbel_noise import Draw
from forerun.backends.gpu.sampling.join_tiles import Sampled, TopK
from forerun.backends.gpu.sampling.output_projection import OutputProjection, sample_tokens, topk_tokens
from forerun.backends.gpu.sampling.tile_maxima import TileMaxima
from forerun.core.model_spec import WeightFormat
from forerun.model.quantise import dequantise, quantise
from forerun.sampling.noise import gumbel_rows, signed32, splitmix64
from forerun.sampling.sample import topk
from tests.backends.gpu.scores import sample_scores

SEED = 99
TEMPERATURE = 0.8
POISON = -7
VOCAB = 150
SIZE = 160
MAX_ROWS = 33


class HeadCase:
    """A head over random rows, whose norm is still to be made up for."""

    def __init__(self, weight_format: WeightFormat, compute: torch.dtype, *, vocab_size: int = VOCAB) -> None:
        generator = torch.Generator().manual_seed(1)
        weight = quantise(torch.randn(vocab_size, SIZE, generator=generator).to(compute), weight_format)
        self.packed: DeviceLinear = pack(weight, None, compute=compute)
        self.plain_VH = dequantise(weight).double()
        self.h = torch.randn(MAX_ROWS, SIZE, generator=generator).to(compute)
        squares = torch.rand(3, MAX_ROWS, generator=generator) * SIZE
        self.norm = InputNorm(squares=squares, shape=NormShape(num_parts=2, size=SIZE, eps=1e-5), scale=0.5)
        self.workspace = SplitWorkspace.for_linears([self.packed], max_rows=MAX_ROWS, device="cpu")
        mix = splitmix64(SEED)
        self.positions = [7 * row + 3 for row in range(MAX_ROWS)]
        self.draw = Draw(
            temperature=torch.tensor([TEMPERATURE]),
            seed_mix=torch.tensor([signed32(mix >> 32) << 32 | mix & 0xFFFFFFFF]),
            positions=torch.tensor(self.positions, dtype=torch.int32),
        )

    def scores(self) -> Tensor:
        """What `linear` gives."""
        y_RV = torch.empty(MAX_ROWS, self.packed.num_out)
        linear(
            self.h, self.packed, y_RV, num_rows=MAX_ROWS, first_row=0, norm=self.norm, workspace=self.workspace,
            overlaps=False,
        )  # fmt: skip
        return y_RV

    def sample(self, num_rows: int, *, first_row: int = 0) -> Sampled:
        sampled = empty_samples()
        sample_tokens(self.head(is_topk=False), self.draw, sampled, num_rows=num_rows, first_row=first_row)
        return sampled

    def sample_from(self, scores_RV: Tensor) -> Sampled:
        sampled = empty_samples()
        sample_scores(scores_RV, self.draw, sampled, self.maxima(is_topk=False))
        return sampled

    def topk(
        self, num_rows: int, *, first_row: int, num_children: int, vocab_size: int, column_ids: Tensor | None
    ) -> TopK:
        shape = (MAX_ROWS, num_children)
        found = TopK(torch.full(shape, POISON, dtype=torch.int32), torch.full(shape, float(POISON)))
        topk_tokens(
            self.head(is_topk=True), self.draw._replace(column_ids=column_ids), found, num_children=num_children,
            vocab_size=vocab_size, num_rows=num_rows, first_row=first_row,
        )  # fmt: skip
        return found

    def head(self, *, is_topk: bool) -> OutputProjection:
        return OutputProjection(
            h=self.h, packed=self.packed, norm=self.norm, workspace=self.workspace,
            maxima=self.maxima(is_topk=is_topk), overlaps=False,
        )  # fmt: skip

    def maxima(self, *, is_topk: bool) -> TileMaxima:
        return TileMaxima.for_vocabulary(
            self.packed.num_out, block=self.packed.tiles.block_out, max_rows=MAX_ROWS, is_topk=is_topk, device="cpu"
        )


def empty_samples() -> Sampled:
    return Sampled(
        tokens=torch.full((MAX_ROWS,), POISON, dtype=torch.int32),
        bests=torch.full((MAX_ROWS,), float(POISON)),
        seconds=torch.full((MAX_ROWS,), float(POISON)),
    )


KINDS: list[tuple[WeightFormat, torch.dtype]] = [
    ("plain", torch.bfloat16),
    ("plain", torch.float32),
    ("int8", torch.float16),
    ("int4", torch.bfloat16),
]


@pytest.mark.parametrize(("weight_format", "compute"), KINDS)
def test_the_head_samples_from_the_scores_of_a_linear_layer(weight_format: WeightFormat, compute: torch.dtype) -> None:
    case = HeadCase(weight_format, compute, vocab_size=70)
    scores_RV = case.scores()
    norms_R1 = (case.norm.squares[:2].double().sum(0) / SIZE + 1e-5).sqrt()[:, None]
    torch.testing.assert_close(
        scores_RV.double(), case.h.double() @ case.plain_VH.T / norms_R1 / 0.5, rtol=1e-4, atol=1e-3
    )
    expected = case.sample_from(scores_RV)
    for num_rows in (1, 5, 17, MAX_ROWS):
        sampled = case.sample(num_rows)
        assert sampled.tokens[num_rows:].eq(POISON).all()
        assert torch.equal(sampled.tokens[:num_rows], expected.tokens[:num_rows])
        assert torch.equal(sampled.bests[:num_rows], expected.bests[:num_rows])
        assert torch.equal(sampled.seconds[:num_rows], expected.seconds[:num_rows])
    assert case.workspace.counters.eq(0).all()


SOME_IDS = torch.arange(11, 11 + 3 * VOCAB, 3, dtype=torch.int32)


@pytest.mark.parametrize(("vocab_size", "num_children"), [(VOCAB, 4), (100, 16)])
@pytest.mark.parametrize("column_ids", [None, SOME_IDS], ids=["whole", "part"])
def test_the_topk_is_of_the_tokens_that_the_target_knows(
    vocab_size: int, num_children: int, column_ids: Tensor | None
) -> None:
    case = HeadCase("plain", torch.bfloat16)
    column_ids = None if column_ids is None else column_ids[:vocab_size]
    first_row = 1
    num_rows = 20
    found = case.topk(
        num_rows, first_row=first_row, num_children=num_children, vocab_size=vocab_size, column_ids=column_ids
    )
    noise_RV = gumbel_rows(SEED, [position + 1 for position in case.positions], 11 + 3 * VOCAB, device="cpu")
    tokens, log_probs = topk(
        case.scores()[first_row:num_rows, :vocab_size], noise_RV[first_row:num_rows], num_children,
        temperature=TEMPERATURE, column_ids=column_ids,
    )  # fmt: skip
    rows = num_rows - first_row
    assert found.tokens[:rows].tolist() == tokens
    torch.testing.assert_close(found.log_probs[:rows], torch.tensor(log_probs), rtol=0, atol=3e-5)
    assert found.tokens[rows:].eq(POISON).all()


def test_nan_in_a_hidden_row_is_seen_and_stays_there() -> None:
    case = HeadCase("plain", torch.bfloat16)
    before = case.sample(3)
    case.h[1, 5] = torch.nan
    after = case.sample(3)
    assert after.bests[1].isnan()
    assert torch.equal(after.bests[[0, 2]], before.bests[[0, 2]])
