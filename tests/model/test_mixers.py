"""Layers with a state or a convolution: the recurrence's values, and a row's bits from its own path alone.

The texts are longer than the lag of places and than the rings, so rows read states at several places, and slots are
written again.
"""

import random
from dataclasses import replace
from functools import cache
from math import prod
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from forerun.backends.backend import Backend
from forerun.backends.cpu.backend import NATIVE
from forerun.backends.torch.backend import FUSED, REFERENCE
from forerun.checkpoints.huggingface.names import tensor_plan
from forerun.core.config import SamplingParams
from forerun.core.mixers import PLACE_LAG, PLACE_STRIDE, GatedDeltaNet, Mamba2
from forerun.core.model_spec import ModelSpec, snapshot_bytes, state_bytes
from forerun.decoding.verifier import Verifier
from forerun.drafting.layer_skip.probe_rows import ProbeLayout, ProbeRows
from forerun.drafting.layer_skip.search import SkipSearch
from forerun.model.executor import ForwardInput
from forerun.model.mixer_rows import MixerRows
from forerun.model.runner import Runner, stops_of
from forerun.model.self_drafting import SharedCacheRunner
from forerun.model.warm_texts import WarmTexts
from forerun.speculation.tree import TokenTree, ancestry_matrix
from tests.dense_reference import dense_logits
from tests.marks import rest_slow
from tests.model.kernel_sets import EXACT_SETS
from tests.tiny import Weights, in_parts, poison_freed_slots, random_weights, tiny_runner, tree_logits
from tests.tiny_families import family_spec

FAMILIES = ("qwen3_5_text", "lfm2", "granitemoehybrid")
STRIDE = 16
LAG = 48  # deeper than the trees
ROWS = 100  # of a pass or a tree
LENGTH = 320
CAPACITY = LENGTH + 64
NET = GatedDeltaNet(num_key_heads=1, num_value_heads=1, key_dim=2, value_dim=2, kernel_size=2)
KERNELS = pytest.mark.parametrize("backend", EXACT_SETS)


@pytest.fixture(autouse=True)
def short_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.core.mixers.PASS_ROWS", ROWS)
    monkeypatch.setattr("forerun.core.mixers.INPUTS_REACH", 80)
    monkeypatch.setattr("forerun.model.runner.PREFILL_ROWS", ROWS)


@cache
def model(family: str, seed: int, dtype: torch.dtype) -> tuple[ModelSpec, Weights]:
    spec = family_spec(random.Random(seed), family, vocab_size=31, max_positions=CAPACITY, num_layers=3)
    if isinstance(spec.mixer, GatedDeltaNet | Mamba2):
        spec = with_places(spec, STRIDE, LAG)
    return spec, random_weights(spec, torch.Generator().manual_seed(seed), dtype=dtype)


def with_places(spec: ModelSpec, stride: int, lag: int) -> ModelSpec:
    """The same with states at other places."""
    if isinstance(spec.mixer, Mamba2):
        return replace(spec, mamba=replace(spec.mixer, stride=stride, lag=lag))
    assert isinstance(spec.mixer, GatedDeltaNet)
    return replace(spec, delta_net=replace(spec.mixer, stride=stride, lag=lag))


def runner_of(
    family: str, seed: int, dtype: torch.dtype, backend: Backend = REFERENCE, *, cache_bytes: int = 0
) -> Runner:
    spec, weights = model(family, seed, dtype)
    if backend is NATIVE and isinstance(spec.mixer, Mamba2):
        pytest.skip("the native kernels do not compute Mamba 2")
    runner = tiny_runner(spec, weights, backend=backend, capacity=CAPACITY, cache_bytes=cache_bytes)
    poison_freed_slots(runner)
    return runner


def text_of(seed: int, length: int = LENGTH) -> list[int]:
    rng = random.Random(f"text {seed}")
    return [rng.randrange(31) for _ in range(length)]


@cache
def alone(family: str, seed: int, dtype: torch.dtype, backend: Backend = REFERENCE) -> Tensor:
    """The logits of the text, each from a pass of one row."""
    runner = runner_of(family, seed, dtype, backend)
    return torch.cat([runner.extend([token], num_logit_rows=1) for token in text_of(seed)])


def in_trees(runner: Runner, text: list[int], rng: random.Random) -> Tensor:
    """The logits of the text, verified in trees with wrong siblings, of which a part of the right path is accepted."""
    rows = []
    place = 0
    while place < len(text):
        depth = min(rng.choice([1, 2, 5, 12, 33]), len(text) - place)
        token_ids = [text[place]]
        parents = [-1]
        on_path = [0]
        for token in text[place + 1 : place + depth]:
            for _ in range(rng.choice([0, 0, 1, 2])):
                parents.append(rng.randrange(len(parents)))
                token_ids.append(rng.randrange(31))
            parents.append(on_path[-1])
            on_path.append(len(token_ids))
            token_ids.append(token)
        kept = rng.randint(1, depth)
        rows.append(tree_logits(runner, token_ids, parents)[on_path[:kept]])
        runner.commit(on_path[:kept], text[place : place + kept])
        place += kept
    return torch.cat(rows)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", rest_slow(range(4), 1))
@pytest.mark.parametrize("backend", [REFERENCE, FUSED], ids=["reference", "fused"])
def test_a_long_texts_logits_are_those_of_the_recurrence(
    family: str, seed: int, backend: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    spec, weights = model(family, seed, torch.float64)
    if isinstance(spec.mixer, GatedDeltaNet | Mamba2):
        spec = with_places(spec, PLACE_STRIDE, PLACE_LAG)
    text = text_of(seed)
    runner = tiny_runner(spec, weights, backend=backend, capacity=CAPACITY)  # type: ignore[arg-type]
    found = in_parts(runner, text, random.Random(seed), 150)
    assert float((found - dense_logits(spec, weights, text)).abs().max()) < 1e-9


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        pytest.param(*one.values, dtype, id=f"{one.id}-{str(dtype).rpartition('.')[2]}", marks=one.marks)
        for one, dtype in ((EXACT_SETS[0], torch.float64), *((one, torch.float32) for one in EXACT_SETS))
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", rest_slow(range(4), 1))
def test_a_rows_bits_are_the_same_alone_in_prompts_cut_anywhere_and_in_trees(
    family: str, seed: int, dtype: torch.dtype, backend: Backend
) -> None:
    expected = alone(family, seed, dtype, backend)
    rng = random.Random(seed)
    text = text_of(seed)
    assert torch.equal(in_parts(runner_of(family, seed, dtype, backend), text, rng, ROWS), expected)
    assert torch.equal(in_parts(runner_of(family, seed, dtype, backend), text, rng, 9), expected)
    assert torch.equal(in_trees(runner_of(family, seed, dtype, backend), text, rng), expected)


@KERNELS
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", rest_slow(range(6), 2))
def test_a_text_cut_anywhere_and_continued_has_the_bits_of_a_fresh_one(
    family: str, seed: int, backend: Backend
) -> None:
    rng = random.Random(seed)
    runner = runner_of(family, 0, torch.float32, backend)
    expected = alone(family, 0, torch.float32, backend)
    text = text_of(0)
    num_resumed = 0
    for _ in range(8):
        length = rng.randint(1, len(text) - 1)
        if rng.random() < 0.7:
            length = max(1, len(runner.cached_ids) - rng.randint(1, STRIDE + 8))
        num_kept = runner.sync(text[:length])
        num_resumed += 0 < num_kept == length
        if rng.random() < 0.3:  # another text from here on
            in_parts(runner, text_of(9, 20), rng, 20)
            runner.sync(text[:length])
        end = min(len(text), length + rng.randint(1, 60))
        assert torch.equal(in_parts(runner, text[length:end], rng, 20), expected[length:end])
    assert num_resumed > 0


def poison_lost_rows(runner: Runner) -> None:
    """NaN in the rows that no row may read any more, as if others had been written over them."""
    rows = runner.cache.mixer_rows
    assert rows is not None
    length = len(runner.cached_ids)
    oldest = rows._mixer.place(length) - rows._mixer.stride
    assert oldest > 0
    kept = rows.ring(oldest, length)
    rows._rows_LSR[:, ~torch.isin(torch.arange(rows.num_slots), kept)] = float("nan")


@KERNELS
def test_rows_of_a_deepest_tree_of_the_next_one_and_of_probes_read_their_own_states(backend: Backend) -> None:
    spec, weights = model("qwen3_5_text", 0, torch.float32)
    assert isinstance(spec.mixer, GatedDeltaNet)
    net = replace(spec.mixer, stride=8, lag=16)
    spec = replace(spec, delta_net=net)
    start = net.lag + 3 * net.stride + 2  # the tree reads states at three places, and probes at one before them
    text = text_of(0, start + net.lag)
    fresh, runner = (tiny_runner(spec, weights, backend=backend, capacity=len(text) + 16) for _ in range(2))
    expected = in_parts(fresh, text, random.Random(0), 4)
    in_parts(runner, text[:start], random.Random(1), 4)
    for here in (start, start + 1):
        poison_lost_rows(runner)
        chain = text[here : here + net.lag - 1]
        num_rows = len(chain) + 1
        ancestry = ancestry_matrix([*range(-1, len(chain) - 1), 0])
        tree = ForwardInput(
            token_ids=[*chain, chain[1]], positions=[here + int(row.sum()) - 1 for row in ancestry], first_slot=here,
            prefix_len=here, ancestry=ancestry, num_logit_rows=num_rows,
        )  # fmt: skip
        probes = ProbeRows(token_ids=text[here - 4 : here], start=here - 4, skipped=[frozenset()] * 2)
        logits = runner.forward(ProbeLayout(spec.num_layers).add_to(tree, probes)).logits
        assert torch.equal(logits[: len(chain)], expected[here : here + len(chain)])
        assert torch.equal(logits[len(chain)], expected[here + 1]), "the last of the tree has the text of the second"
        assert torch.equal(logits[num_rows:], expected[here - 4 : here].repeat(2, 1))
        runner.commit([0], chain[:1])


@KERNELS
def test_a_text_is_continued_behind_a_prompt_that_was_cancelled(backend: Backend) -> None:
    spec, weights = model("qwen3_5_text", 0, torch.float32)
    assert isinstance(spec.mixer, GatedDeltaNet)
    spec = replace(spec, delta_net=replace(spec.mixer, stride=4, lag=12))
    text = text_of(0, 100)
    fresh, runner = (tiny_runner(spec, weights, backend=backend, capacity=160) for _ in range(2))
    expected = in_parts(fresh, text, random.Random(0), 4)
    in_parts(runner, text[:50], random.Random(1), 4)
    other = text_of(1, 60)
    runner.forward(
        ForwardInput(token_ids=other, positions=list(range(50, 110)), first_slot=50, prefix_len=50, num_logit_rows=0)
    )
    assert runner.sync(text[:50]) == 50
    poison_lost_rows(runner)
    assert torch.equal(in_parts(runner, text[50:], random.Random(2), 9), expected[50:])


def test_probes_of_text_whose_states_are_dropped_are_left_out() -> None:
    spec, weights = model("qwen3_5_text", 0, torch.float32)
    assert isinstance(spec.mixer, GatedDeltaNet)
    spec = replace(spec, delta_net=replace(spec.mixer, stride=4, lag=12))
    runner = tiny_runner(spec, weights, backend=REFERENCE, capacity=200)
    text = text_of(0, 160)
    in_parts(runner, text, random.Random(0), 9)
    draft = Mock(token_ids=[*text, 1])
    for start, is_there in ((20, False), (156, True)):
        strategy = Mock(window=Mock(return_value=range(start, start + 4)), propose=Mock(return_value=[frozenset()]))
        search = SkipSearch(strategy, SharedCacheRunner(runner))
        assert (search._gather(draft, 4) is not None) == is_there


def test_a_tree_is_cut_where_a_rows_place_would_not_lie_in_the_text() -> None:
    chain = TokenTree(0)
    for node in range(PLACE_LAG + 5):
        chain.add(node, 1, 0.0)
    runners = [runner_of(family, 0, torch.float32) for family in ("qwen3_5_text", "lfm2")]
    net = runners[0].spec.mixer
    assert isinstance(net, GatedDeltaNet)
    for runner, num_nodes in zip(runners, (net.lag + 1, len(chain)), strict=True):
        assert list(Verifier(runner, SamplingParams(), [1], None).allowed(chain)) == list(range(num_nodes))


def test_a_place_lags_behind_every_tree_and_is_a_multiple_of_the_stride() -> None:
    places = [NET.place(position) for position in range(1000)]
    assert places == sorted(places)
    assert set(places[: PLACE_LAG + PLACE_STRIDE]) == {0}
    for position, place in enumerate(places):
        assert place % PLACE_STRIDE == 0
        assert place == 0 or PLACE_LAG <= position - place < PLACE_LAG + PLACE_STRIDE


def test_only_the_last_states_and_rows_are_kept() -> None:
    runner = runner_of("qwen3_5_text", 0, torch.float32)
    runner.sync(text_of(0))
    rows = runner.cache.mixer_rows
    assert rows is not None
    place = rows._mixer.place(LENGTH)
    assert all(0 < first <= last <= place for first, last in rows.held_L2.tolist())
    assert all(last - first < rows.num_states * STRIDE for first, last in rows.held_L2.tolist())
    assert LAG + 2 * STRIDE + ROWS <= rows.num_slots < LAG + 3 * STRIDE + ROWS < LENGTH
    assert runner.cache.resumable(place + LAG) == place + LAG
    assert runner.cache.resumable(10) == 0


@pytest.mark.parametrize("family", [*FAMILIES, "qwen3_next"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_memory_of_states_is_as_counted_and_does_not_grow_with_the_text(family: str, dtype: torch.dtype) -> None:
    spec = family_spec(random.Random(3), family, max_positions=10_000)
    for num_tokens in (100, 1000, 10_000):
        rows = MixerRows(spec, num_tokens, dtype=dtype, device="cpu")
        found = sum(ring.nbytes for ring in (rows._inputs_LSC, rows._rows_LSR, rows.states_LNHKV))
        assert found == state_bytes(spec, num_tokens, dtype.itemsize)
    assert found == state_bytes(spec, 1000, dtype.itemsize)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_snapshot_takes_no_more_memory_than_counted_and_that_of_the_worst_place_as_much(family: str) -> None:
    runner = saving(family)
    text = text_of(0, LAG + 3 * STRIDE)
    found = []
    for length in range(1, len(text)):
        runner.extend([text[length - 1]], num_logit_rows=0)
        snapshot = runner.cache.mixer_rows.snapshot(length)  # type: ignore[union-attr]
        assert snapshot is not None
        found.append(snapshot.num_bytes)
    assert max(found) == snapshot_bytes(runner.spec, 4)


def saving(family: str, backend: Backend = REFERENCE) -> Runner:
    return runner_of(family, 0, torch.float32, backend, cache_bytes=1 << 26)


@KERNELS
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", rest_slow(range(8), 2))
def test_conversations_in_turn_continue_where_they_were_saved_with_the_bits_of_a_fresh_one(
    family: str, seed: int, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forerun.model.runner.TOKENS_BETWEEN_SAVED", 32)
    rng = random.Random(f"turns {seed}")
    runner = saving(family, backend)
    fresh = runner_of(family, 0, torch.float32, backend)
    texts = {owner: text_of(place, rng.randint(20, 250)) for place, owner in enumerate(("ann", "bob"))}
    num_known = 0
    for _ in range(6):
        owner = rng.choice(list(texts))
        text = texts[owner]
        if rng.random() < 0.4:  # the last answer is taken back, or a thought is left out
            text = text[: rng.randint(len(text) // 2, len(text))]
        text = [*text, *text_of(rng.randrange(99), rng.randint(1, 20))]
        runner.recall(text, owner)
        known = runner.sync(text)
        num_known += known
        if rng.random() < 0.7:
            answer = text_of(rng.randrange(99), 12)
            fresh.sync(())
            fresh.sync(text)
            assert torch.equal(in_trees(runner, answer, rng), in_parts(fresh, answer, rng, 3))
            text = [*text, *answer]
        texts[owner] = text[:280]
    assert num_known > 100


def test_snapshots_take_no_more_than_half_of_the_memory_and_the_oldest_goes_first() -> None:
    runner = saving("qwen3_5_text")
    runner.sync(text_of(0))
    snapshot = next(reversed(runner._warm._snapshots.values())).snapshot
    for room, expected in ((2, 2), (0, 0)):
        warm = WarmTexts(runner.cache, 1 << 26)
        warm._room_for_snapshots = room * snapshot.num_bytes
        for length in (150, 306, 310):
            warm.find([], "")
            warm.save(text_of(0, length), "")
        assert len(warm._snapshots) == min(expected, 2)
        assert warm._num_snapshot_bytes <= warm._room_for_snapshots


def test_snapshots_of_a_text_that_is_forgotten_take_no_memory() -> None:
    runner = saving("lfm2")
    for owner in ("ann", "bob"):
        runner.recall(text_of(0, 40), owner)
        runner.sync(text_of(0, 40))
    num_bytes = runner._warm._num_snapshot_bytes
    runner._warm.forget("ann")
    assert runner._warm._num_snapshot_bytes == num_bytes // 2 > 0
    runner._warm.forget()
    assert runner._warm._num_snapshot_bytes == 0


END = 30  # ends a message


def message(seed: int, length: int) -> list[int]:
    return [token % END for token in text_of(seed, length)]


def test_a_text_is_saved_at_its_messages_ends_at_its_own_and_often_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.model.runner.TOKENS_BETWEEN_SAVED", 32)
    runner = saving("lfm2")
    runner._message_ends = {END}
    text = [*message(0, 20), END, *message(1, 40), END, 1, 2, END, *message(2, 60), END, 5]
    runner.sync(text[:18])
    runner.sync(text)
    found = [length for _, length in runner._warm._snapshots]
    assert found == [18, 50, 82, 114, 126], "not at 21, 62 and 65, which are close to one before"
    assert stops_of([END, END, 7], 0, {END}) == [2]
    assert stops_of([END, *[7] * 20], 0, {END}) == [1, 21]
    assert stops_of([7] * 70, 0, {END}) == [32, 64]
    assert stops_of([7] * 70, 70, {END}) == []


def test_a_snapshot_is_found_behind_a_text_that_shares_more_with_another() -> None:
    runner = saving("lfm2")
    runner._message_ends = {END}
    system = [*message(0, 40), END]
    for rest in (message(1, 30), [5, *message(2, 30)], [5, 6, *message(3, 30)]):
        text = [*system, 0, *rest]
        runner.recall([9], "")  # so that the text does not stay in the cache
        runner.sync([9])
        runner.recall(text, "")
        num_known = runner.sync(text)
    assert num_known == len(system)


def test_the_snapshot_that_is_missed_least_goes_first() -> None:
    runner = saving("lfm2")
    warm = runner._warm

    def read(text: list[int]) -> list[int]:
        runner.recall(text, "")
        runner.sync(text)
        return sorted(length for _, length in warm._snapshots)

    runner._message_ends = {END}
    system = [*message(0, 60), END]
    first = [*system, *message(1, 18), END, *message(2, 50), END]
    assert read(first) == [61, 80, 131]
    warm._room_for_snapshots = warm._num_snapshot_bytes
    assert read([*system, *message(5, 100)]) == [61, 131, 161], "19 tokens from 61 to 80 are the fewest"
    assert read([*system, *message(6, 90)]) == [61, 151, 161], "the first conversation was used least recently"


@pytest.mark.parametrize("family", [*FAMILIES, "qwen3_next", "lfm2_moe", "nemotron_h"])
@pytest.mark.parametrize("seed", range(4))
def test_the_number_of_parameters_is_that_of_all_tensors(family: str, seed: int) -> None:
    spec = family_spec(random.Random(seed), family)
    assert spec.num_parameters == sum(prod(place.shape) for place in tensor_plan(spec).values())


@KERNELS
def test_another_text_after_a_cut_reads_no_state_of_the_first(backend: Backend) -> None:
    runner = runner_of("qwen3_5_text", 0, torch.float32, backend)
    length = STRIDE - 4
    runner.sync(text_of(0, LAG + STRIDE + 8))  # its last rows read the state of the first place
    assert runner.sync(text_of(0, length)) == length
    fresh = runner_of("qwen3_5_text", 0, torch.float32, backend)
    fresh.sync(text_of(0, length))
    other = text_of(5, LAG + STRIDE)
    logits = [in_parts(one, other, random.Random(0), ROWS) for one in (runner, fresh)]
    assert torch.equal(*logits)


@KERNELS
def test_a_long_text_that_is_restored_reads_its_own_states(backend: Backend) -> None:
    runner = saving("qwen3_5_text", backend)
    texts = {owner: text_of(place, LENGTH - 20) for place, owner in enumerate(("ann", "bob"))}
    for owner in ("ann", "bob", "ann"):
        runner.recall(texts[owner], owner)
        num_known = runner.sync(texts[owner])
    assert num_known == LENGTH - 20
    fresh = runner_of("qwen3_5_text", 0, torch.float32, backend)
    fresh.sync(texts["ann"])
    rest = text_of(7, 20)
    assert torch.equal(in_trees(runner, rest, random.Random(1)), in_parts(fresh, rest, random.Random(2), 7))
