"""Linear layers by Triton's interpreter, against float64 and against themselves in other company.

Legend: T rows, O output features, I input features.
"""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from forerun.backends.gpu.passes.linear import linear, linear_add, linear_gate
from forerun.backends.gpu.passes.linear_buffers import InputNorm, NextNorm, SplitWorkspace
from forerun.backends.gpu.passes.packed_linear import DeviceLinear, pack
from forerun.backends.gpu.passes.tiles import MULTIPROCESSORS, choose_tiles
from forerun.core.model_spec import WeightFormat
from forerun.model.quantise import dequantise
from forerun.model.weights import Int4Weight
from tests.backends.gpu.linears import (
    DTYPES,
    FORMATS,
    MOST_ROWS,
    no_norm,
    norm_of,
    pack_split,
    poisoned,
    product_of,
    random_rows,
    random_weight,
    workspace_of,
)
from tests.marks import in_turn, rest_slow

ROW_COUNTS = (1, 5, 17, 40)  # one tile of a program, two, four
WIDE_COUNTS = (16, 32, 33, 64, 128)  # up to eight tiles, which is one program's most
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}  # the interpreter cuts digits off


def logits_of(
    packed: DeviceLinear, h: Tensor, num_rows: int, first_row: int = 0, norm: InputNorm | None = None
) -> Tensor:
    """Rows that must not be written stay poisoned; counters must be 0 again."""
    y = poisoned(MOST_ROWS, packed.num_out)
    workspace = workspace_of(packed)
    workspace.partials.fill_(float("nan"))
    linear(
        h, packed, y, num_rows=num_rows, first_row=first_row, norm=norm or no_norm(), workspace=workspace,
        overlaps=False,
    )  # fmt: skip
    assert y[num_rows - first_row :].isnan().all()
    assert not workspace.counters.any()
    return y[: num_rows - first_row]


@pytest.mark.parametrize("num_splits", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weight_format", FORMATS)
def test_a_product_is_that_of_the_dequantised_weight(
    weight_format: WeightFormat, dtype: torch.dtype, num_splits: int
) -> None:
    weight = random_weight(48, 256, weight_format, dtype)
    bias_O = random_rows(48, torch.float32, num_rows=1)[0]
    packed = pack_split(weight, bias_O, compute=dtype, num_splits=num_splits)
    h_TI = random_rows(256, dtype)
    found = logits_of(packed, h_TI, 3)
    torch.testing.assert_close(found.double(), product_of(h_TI[:3], weight, bias_O), rtol=0, atol=2e-4)


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize(("num_out", "num_in"), [(17, 33), (40, 200), (70, 64)])
def test_shapes_need_not_be_multiples_of_a_tile(weight_format: WeightFormat, num_out: int, num_in: int) -> None:
    """Among them are groups of 32 and of 64 inputs, and a group that is shorter."""
    weight = random_weight(num_out, num_in, weight_format, torch.bfloat16)
    packed = pack(weight, None, compute=torch.bfloat16)
    h_TI = random_rows(num_in, torch.bfloat16)
    found = logits_of(packed, h_TI, 2)
    torch.testing.assert_close(found.double(), product_of(h_TI[:2], weight), rtol=0, atol=2e-4)


@pytest.mark.parametrize("weight_format", FORMATS)
def test_a_row_has_the_same_bits_in_any_company(weight_format: WeightFormat) -> None:
    weight = random_weight(24, 160, weight_format, torch.bfloat16)
    packed = pack_split(weight, None, compute=torch.bfloat16, num_splits=2)
    h_TI = random_rows(160, torch.bfloat16)
    whole = logits_of(packed, h_TI, MOST_ROWS)
    for num_rows in ROW_COUNTS[:-1]:
        assert torch.equal(logits_of(packed, h_TI, num_rows), whole[:num_rows]), num_rows
    for row in (4, 16, 37):  # of the first in a tile: the interpreter multiplies others in another order
        assert torch.equal(logits_of(packed, h_TI[row:], 1)[0], whole[row]), row


@pytest.mark.parametrize(("weight_format", "num_splits"), in_turn(list(FORMATS), [2, 1]))
def test_a_row_has_the_same_bits_in_passes_of_any_width(weight_format: WeightFormat, num_splits: int) -> None:
    """The widest has two programs for each tile of outputs, which share inputs or do not."""
    weight = random_weight(72, 512, weight_format, torch.bfloat16)
    num_rows = 2 * WIDE_COUNTS[-1]
    packed = pack_split(weight, None, compute=torch.bfloat16, num_splits=num_splits)
    h_TI = random_rows(512, torch.bfloat16, num_rows=num_rows)
    norm, factors_T1 = norm_of(scale=1.0, size=512, num_rows=num_rows)
    workspace = SplitWorkspace.for_linears([packed], max_rows=num_rows, device="cpu")
    assert packed.grid(num_rows)[0] == 2

    def product(count: int) -> Tensor:
        y = poisoned(num_rows, packed.num_out)
        workspace.partials.fill_(float("nan"))
        linear(h_TI, packed, y, num_rows=count, first_row=0, norm=norm, workspace=workspace, overlaps=False)
        assert y[count:].isnan().all()
        assert not workspace.counters.any()
        return y[:count]

    whole = product(num_rows)
    assert num_splits == 1 or not workspace.partials.isnan().any(), "every program has a place of its own"
    torch.testing.assert_close(whole.double(), product_of(h_TI, weight) * factors_T1, rtol=1e-5, atol=1e-4)
    for count in WIDE_COUNTS:
        assert torch.equal(product(count), whole[:count]), count


@pytest.mark.parametrize("scale", [1.0, 1 / 64])
def test_a_norm_left_out_before_is_made_up_for_after(scale: float) -> None:
    weight = random_weight(32, 64, "plain", torch.float32)
    bias_O = random_rows(32, torch.float32, num_rows=1)[0]
    packed = pack(weight, bias_O, compute=torch.float32)
    h_TI = random_rows(64, torch.float32)
    norm, factors_T1 = norm_of(scale=scale, size=64)
    expected = product_of(h_TI, weight) * factors_T1 + bias_O
    torch.testing.assert_close(
        logits_of(packed, h_TI, 18, norm=norm).double(), expected[:18], rtol=1e-5, atol=1e-4 / scale
    )


def gated_of(packed: DeviceLinear, h_TI: Tensor, num_rows: int) -> Tensor:
    gated = poisoned(MOST_ROWS, packed.num_out // 2, dtype=h_TI.dtype)
    norm, _ = norm_of(scale=1.0, size=packed.num_in)
    linear_gate(
        h_TI, packed, gated, gate="silu", num_rows=num_rows, norm=norm, workspace=workspace_of(packed), overlaps=False
    )
    assert gated[num_rows:].isnan().all()
    return gated[:num_rows]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weight_format", FORMATS)
def test_gates_and_ups_are_multiplied(weight_format: WeightFormat, dtype: torch.dtype) -> None:
    weight = random_weight(2 * 37, 256, weight_format, dtype)
    bias_O = random_rows(74, torch.float32, num_rows=1)[0]
    packed = pack_split(weight, bias_O, compute=dtype, num_splits=2, paired=True)
    h_TI = random_rows(256, dtype)
    _, factors_T1 = norm_of(scale=1.0, size=256)
    gates, ups = ((product_of(h_TI, weight) * factors_T1) + bias_O)[:3].chunk(2, -1)
    rounding = ROUNDING[dtype]
    torch.testing.assert_close(
        gated_of(packed, h_TI, 3).double(), functional.silu(gates) * ups, rtol=rounding + 1e-5, atol=2e-3
    )


class Sum:
    """What one `linear_add` wrote: x, the input of the next norm, and squares summed over tiles."""

    def __init__(self, packed: DeviceLinear, inputs: Tensor, num_rows: int, row_skips: Tensor | None = None) -> None:
        num_out = packed.num_out
        dtype = inputs.dtype
        self.before = random_rows(num_out, torch.float32, seed=7)
        self.norm_weight = torch.linspace(0.5, 2.0, num_out)
        self.x = self.before.clone()
        self.h = poisoned(MOST_ROWS, num_out, dtype=dtype)
        self.squares = poisoned(packed.num_tiles, MOST_ROWS)
        next_norm = NextNorm(weight=self.norm_weight, h=self.h, squares=self.squares, scale=0.25)
        linear_add(
            inputs, packed, self.x, num_rows=num_rows, next_norm=next_norm, row_skips=row_skips, sublayer=1,
            num_sublayers=3, workspace=workspace_of(packed), overlaps=False,
        )  # fmt: skip
        assert torch.equal(self.x[num_rows:], self.before[num_rows:])
        assert self.h[num_rows:].isnan().all()
        assert self.squares[:, num_rows:].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weight_format", FORMATS)
def test_a_product_is_added_and_prepared_for_the_next_norm(weight_format: WeightFormat, dtype: torch.dtype) -> None:
    weight = random_weight(70, 256, weight_format, dtype)
    bias_O = random_rows(70, torch.float32, num_rows=1)[0]
    packed = pack_split(weight, bias_O, compute=dtype, num_splits=2)
    inputs = random_rows(256, dtype)
    found = Sum(packed, inputs, 3)
    after = (found.before + product_of(inputs, weight, bias_O))[:3]
    torch.testing.assert_close(found.x[:3].double(), after, rtol=0, atol=2e-4)
    torch.testing.assert_close(
        found.h[:3].double(), after * found.norm_weight.double() * 0.25, rtol=ROUNDING[dtype], atol=2e-4
    )
    torch.testing.assert_close(found.squares[:, :3].double().sum(0), after.square().sum(-1), rtol=1e-4, atol=0)


def test_a_skipped_row_keeps_its_x_and_is_prepared_all_the_same() -> None:
    weight = random_weight(48, 64, "plain", torch.bfloat16)
    packed = pack(weight, None, compute=torch.bfloat16)
    inputs = random_rows(64, torch.bfloat16)
    row_skips = torch.tensor([0, 1, 0, 1, 0, 1], dtype=torch.int32)  # row 0 leaves out sublayer 1, row 1 the others
    plain = Sum(packed, inputs, 2)
    skipped = Sum(packed, inputs, 2, row_skips)
    assert torch.equal(skipped.x[0], skipped.before[0])
    assert torch.equal(skipped.x[1], plain.x[1])
    torch.testing.assert_close(skipped.squares[:, 0].sum(), skipped.before[0].square().sum())
    torch.testing.assert_close(skipped.h[0].float(), skipped.before[0] * skipped.norm_weight * 0.25, rtol=2**-7, atol=0)


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize(("num_out", "num_in"), [(4096, 4096), (28672, 4096), (4096, 14336), (1536, 8960), (48, 48)])
def test_every_split_has_inputs(weight_format: WeightFormat, num_out: int, num_in: int) -> None:
    tiles = choose_tiles(num_out, num_in, weight_format=weight_format, compute=torch.bfloat16)
    least_blocks = 2 if tiles.block_in == 256 else 4
    assert tiles.num_splits == 1 or -(-num_in // tiles.block_in) >= least_blocks * tiles.num_splits


@pytest.mark.parametrize("compute", rest_slow(DTYPES, 1), ids=str)
@pytest.mark.parametrize("group_size", rest_slow([16, 32, 64, 128], 1))
def test_scales_keep_all_their_bits_whatever_the_zeros(group_size: int, compute: torch.dtype) -> None:
    """Each row is one input alone, and so every product one weight, which float32 holds. Some scales are negative."""
    generator = torch.Generator().manual_seed(group_size)
    num_out = 24
    num_in = 640
    weight = Int4Weight(
        values_OI=torch.randint(16, (num_out, num_in), generator=generator, dtype=torch.uint8),
        scales_OG=torch.randn(num_out, num_in // group_size, generator=generator),
        zeros_OG=torch.randint(16, (num_out, num_in // group_size), generator=generator, dtype=torch.uint8),
        group_size=group_size,
    )
    assert (weight.scales_OG.view(torch.int32) & 15).count_nonzero() > 0
    packed = pack(weight, None, compute=compute)
    expected = dequantise(weight).T
    for inputs in torch.randperm(num_in, generator=generator)[: 2 * MOST_ROWS].split(MOST_ROWS):
        h_TI = torch.zeros(MOST_ROWS, num_in, dtype=compute)
        h_TI[torch.arange(MOST_ROWS), inputs] = 1.0
        for num_rows in (3, MOST_ROWS):
            assert torch.equal(logits_of(packed, h_TI, num_rows), expected[inputs[:num_rows]])


@pytest.mark.parametrize("shape", [(4096, 4096), (28672, 4096), (4096, 14336), (8192, 8192), (57344, 8192)], ids=str)
def test_multiprocessors_of_a_large_gpu_have_equally_much_to_do(shape: tuple[int, int]) -> None:
    tiles = choose_tiles(*shape, weight_format="plain", compute=torch.bfloat16)
    num_tiles = -(-shape[0] // tiles.block_out)
    num_blocks = -(-shape[1] // tiles.block_in)
    most_programs = -(-num_tiles * tiles.num_splits // MULTIPROCESSORS)
    most_blocks = most_programs * -(-num_blocks // tiles.num_splits)
    assert num_tiles * num_blocks / MULTIPROCESSORS > 0.96 * most_blocks
