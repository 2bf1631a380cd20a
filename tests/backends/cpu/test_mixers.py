"""The native kernels of layers without attention: against the reference, and the same bits wherever they run."""

import random
from collections.abc import Iterator

import pytest
import torch

from forerun.backends.cpu.backend import NATIVE
from forerun.backends.cpu.binding import fault, library
from forerun.backends.torch.backend import REFERENCE
from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.core.model_spec import WeightFormat
from forerun.core.stop_flag import PassStopped, StopFlag, stopped_by
from forerun.model.runner import Runner
from tests.backends.cpu.conftest import TIERS
from tests.backends.cpu.test_executor import RELATIVE, random_pass
from tests.backends.diff import Difference, diff_buffers
from tests.marks import rest_slow
from tests.model.test_mixers import CAPACITY, LENGTH, in_parts, in_trees, model, text_of
from tests.tiny import poison_freed_slots, random_weights, tiny_runner
from tests.tiny_families import MIXED, TORCH_ONLY, family_spec

FAMILIES = tuple(family for family in MIXED if family not in TORCH_ONLY)

pytestmark = pytest.mark.skipif(fault() is not None, reason=str(fault()))
OPS = {"convolve", "delta_net", "gated_convolution", "sigmoid_mul", "add"}


@pytest.fixture(autouse=True)
def best_tier_afterwards() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    if fault() is None:
        library().forerun_select_tier(None)


def native(family: str, seed: int, weight_format: WeightFormat = "plain") -> Runner:
    spec, weights = model(family, seed, torch.float32)
    runner = Runner(
        spec, LoadedWeights(dict(weights), weight_format), backend=NATIVE, capacity=CAPACITY, dtype=torch.float32,
        device="cpu",
    )  # fmt: skip
    poison_freed_slots(runner)
    return runner


def differences(family: str, seed: int, dtype: torch.dtype, weight_format: WeightFormat) -> list[Difference]:
    """Every buffer of one pass behind a text whose rows read states."""
    rng = random.Random(f"{family} {seed}")
    spec = family_spec(rng, family, max_positions=CAPACITY)
    weights = random_weights(spec, torch.Generator().manual_seed(seed), dtype=dtype)
    wide = {name: weight.float() for name, weight in weights.items()}
    runners = [
        Runner(spec, LoadedWeights(each, weight_format), backend=kernels, capacity=CAPACITY, dtype=kind, device="cpu")
        for each, kernels, kind in ((weights, NATIVE, dtype), (wide, REFERENCE, torch.float32))
    ]
    prefix_len = rng.choice([0, 1, 20, 60])
    for runner in runners:
        cache = runner.cache
        generator = torch.Generator().manual_seed(seed)
        cache.keys_LSKD[:, :prefix_len] = torch.randn(cache.keys_LSKD[:, :prefix_len].shape, generator=generator).to(
            dtype
        )
        cache.values_LSKD[:, :prefix_len] = cache.keys_LSKD[:, :prefix_len].flip(1)
        rows = cache.mixer_rows
        assert rows is not None
        for part in (rows._inputs_LSC, rows._rows_LSR, rows.states_LNHKV):
            part.copy_(torch.randn(part.shape, generator=generator) / 4)
        rows._rows_LSR[:, :, spec.mixer.key_size + spec.mixer.value_size :].abs_().neg_() if rows.num_states else None
        rows.stand_in(prefix_len)
        cache.committed_len = prefix_len
    mine, theirs = runners
    inputs = random_pass(rng, spec, prefix_len)
    with torch.inference_mode():
        return diff_buffers(mine.executor, mine.cache, theirs.executor, theirs.cache, inputs)


@pytest.mark.parametrize(("dtype", "weight_format"), [(torch.float32, "plain"), (torch.bfloat16, "int8")])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", rest_slow(range(6), 2))
def test_every_buffer_and_row_is_the_references_after_every_op(
    seed: int, family: str, dtype: torch.dtype, weight_format: WeightFormat, tier: str
) -> None:
    for difference in differences(family, seed, dtype, weight_format):
        assert difference.relative <= (3e-5 if difference.op.kind in OPS else RELATIVE[dtype, weight_format]), (
            difference
        )


def test_the_comparison_sees_every_kind_of_op_and_what_it_leaves() -> None:
    found = [
        item for family in FAMILIES for seed in range(6) for item in differences(family, seed, torch.float32, "plain")
    ]
    assert {item.op.kind for item in found} >= OPS
    assert {item.what for item in found} >= {"inputs", "rows", "keys", "values"}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", rest_slow(range(6), 2))
def test_a_long_texts_logits_are_the_references(family: str, seed: int) -> None:
    spec, weights = model(family, seed, torch.float32)
    reference = tiny_runner(spec, weights, backend=REFERENCE, capacity=CAPACITY)
    text = text_of(seed)
    expected, found = (in_parts(runner, text, random.Random(seed), 90) for runner in (reference, native(family, seed)))
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_have_the_same_bits_with_every_instruction_set_and_number_of_threads(family: str) -> None:
    text = text_of(0)
    expected = None
    for tier in (tier for tier in TIERS if tier != "portable" and library().forerun_select_tier(tier.encode())):
        library().forerun_select_tier(tier.encode())
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            rng = random.Random(f"{tier} {num_threads}")
            logits = in_parts(native(family, 0), text, rng, 200)
            expected = logits if expected is None else expected
            assert torch.equal(logits, expected), (tier, num_threads)
            assert torch.equal(in_trees(native(family, 0), text, rng), expected), (tier, num_threads)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_behind_a_pass_that_was_given_up_has_its_own_bits(family: str) -> None:
    text = text_of(0)
    expected = in_parts(native(family, 0), text, random.Random(0), 9)
    runner = native(family, 0)
    flag = StopFlag()
    flag.set()
    place = 0
    while place < LENGTH:
        with stopped_by(flag), pytest.raises(PassStopped):
            runner.append(text_of(1, 60), num_logit_rows=0)
        runner.sync(text[:place])
        size = min(50, LENGTH - place)
        logits = runner.extend(text[place : place + size], num_logit_rows=size)
        assert torch.equal(logits, expected[place : place + size])
        place += size
