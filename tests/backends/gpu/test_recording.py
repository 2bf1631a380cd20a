"""Recorded work: few shapes, all recorded before they are needed, with the results of ordinary passes.

Here "recorded" work is done anew at every replay, by Triton's interpreter.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
import torch

from forerun.model.executor import ForwardInput
from forerun.model.runner import PREFILL_ROWS
from forerun.model.tree_cache import TreeCache
from forerun.speculation.tree import ancestry_matrix
from tests.marks import rest_slow

pytest.importorskip("triton")

from forerun.backends.gpu.backend import TRITON
from forerun.backends.gpu.cuda_graphs import GraphPool, Work
from forerun.backends.gpu.executor import DeviceExecutor
from forerun.backends.gpu.passes import attention
from forerun.backends.gpu.rounds import DeviceRounds
from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.engine.opening import KINDS_OF_ROUNDS
from tests.backends.gpu.test_decoder import FILTERED, GREEDY, PENALISED, SAMPLED, Pair, tree
from tests.backends.gpu.test_executor import spec_of, text_pass, tree_pass, weights_of

LONGEST = 4096


@pytest.fixture(autouse=True)
def _as_in_an_engine() -> Iterator[None]:
    with torch.inference_mode():
        yield


@dataclass
class Recorder:
    """In the place of CUDA's recording; counts."""

    num_recorded: int = 0

    def record(self, _pool: GraphPool, work: Work) -> "Replayed":
        self.num_recorded += 1
        return Replayed(work)


@dataclass
class Replayed:
    replay: Work


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(GraphPool, "_record", lambda pool, work: made.record(pool, work))
    return made


def executor_of(capacity: int, *, records: bool, device: str = "cpu") -> tuple[DeviceExecutor, TreeCache]:
    spec = spec_of("llama", num_layers=1, max_positions=capacity)
    cache = TreeCache(spec, capacity, dtype=torch.float32, device=device)
    executor = TRITON.executor(spec, LoadedWeights(weights_of(spec, torch.float32), "plain"), cache)
    assert isinstance(executor, DeviceExecutor)
    executor.graphs.records = records
    return executor, cache


def without_logits(inputs: ForwardInput) -> ForwardInput:
    return ForwardInput(
        token_ids=inputs.token_ids, positions=inputs.positions, first_slot=inputs.first_slot,
        prefix_len=inputs.prefix_len, ancestry=inputs.ancestry, num_logit_rows=0,
    )  # fmt: skip


def test_a_request_of_4096_tokens_meets_no_pass_that_is_not_recorded(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeviceExecutor, "launch", lambda *_: None)
    monkeypatch.setattr(DeviceExecutor, "launch_attention", lambda *_: None)
    executor, _ = executor_of(LONGEST + 64, records=True)
    rng = random.Random(1)
    executor.run(text_pass(1, 0, rng, 50))
    executor.run(without_logits(text_pass(1, 0, rng, 50)))
    num_before = recorder.num_recorded
    for start in range(LONGEST):
        executor.run(text_pass(1, start, rng, 50))
    for start in range(0, LONGEST, 97):
        for num_rows in range(1, 33):
            executor.run(tree_pass(num_rows, start, rng, 50))
            executor.run(without_logits(text_pass(num_rows, start, rng, 50)))
    for num_rows in range(33, PREFILL_ROWS + 1):
        executor.run(without_logits(text_pass(num_rows, 1000, rng, 50)))
    assert 0 < recorder.num_recorded == num_before < 100


def test_no_kernel_is_launched_first_while_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = set[str]()
    launched = set[str]()

    class Kernel:
        def __getitem__(self, _grid: object) -> Callable[..., None]:
            return lambda *_, **constants: launched.add(repr(constants))

    def record(_pool: GraphPool, work: Work) -> Replayed:
        compiled.update(launched)
        launched.clear()
        work()
        assert launched, "a pass without attention"
        assert launched <= compiled
        return Replayed(work)

    monkeypatch.setattr(attention, "attend_tree", Kernel())
    monkeypatch.setattr(attention, "IS_EMULATED", False)
    monkeypatch.setattr(attention, "FEW_MATRIX_ROWS", 16)
    monkeypatch.setattr("forerun.backends.gpu.executor.can_overlap", lambda _: True)
    monkeypatch.setattr(DeviceExecutor, "launch", lambda executor, shape, _: executor.launch_attention(shape))
    monkeypatch.setattr(GraphPool, "_record", record)
    executor, _ = executor_of(LONGEST + 64, records=True)
    executor.run(text_pass(1, 0, random.Random(1), 50))
    assert len(compiled) > 1


@pytest.mark.parametrize("inputs", rest_slow(["taps", "wide", "tree", "one row", "last logits", "text"], 1))
def test_spare_rows_change_no_bit(inputs: str, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceExecutor, "_record_kind", lambda *_: None)  # The interpreter would take minutes.
    passes = {
        "one row": lambda rng: text_pass(1, 140, rng, 50),
        "tree": lambda rng: tree_pass(5, 140, rng, 50),
        "last logits": lambda rng: last_row_only(rng),
        "taps": lambda rng: tree_pass(3, 140, rng, 50, taps=(0,)),
        "text": lambda rng: text_pass(17, 140, rng, 50),
        "wide": lambda rng: without_logits(text_pass(35, 140, rng, 50)),
    }
    found = []
    for records in (False, True):
        executor, cache = executor_of(260, records=records)
        rng = random.Random(2)
        executor.run(without_logits(text_pass(140, 0, rng, 50)))
        for _ in range(2 if records else 1):  # The second one is recorded.
            outputs = executor.run(passes[inputs](random.Random(3)))
        found.append((outputs.logits, outputs.features, cache.storage_2LSKD[:, :, :200].clone()))
    assert recorder.num_recorded > 0
    (logits, features, slots), (padded_logits, padded_features, padded_slots) = found
    assert logits.shape == padded_logits.shape
    assert logits.equal(padded_logits)
    assert slots.equal(padded_slots)
    assert (features is None) == (padded_features is None) == (inputs != "taps")
    if features is not None:
        assert padded_features is not None
        assert features.equal(padded_features)


def last_row_only(rng: random.Random) -> ForwardInput:
    return ForwardInput(
        token_ids=[rng.randrange(50) for _ in range(4)], positions=[140, 141, 142, 142], first_slot=140, prefix_len=140,
        ancestry=ancestry_matrix([-1, 0, 1, 1]), num_logit_rows=2,
    )  # fmt: skip


def test_a_request_of_4096_tokens_meets_no_round_that_is_not_recorded(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair("cpu")
    rounds = pair.decoder(tree())._rounds
    monkeypatch.setattr(DeviceRounds, "_play", lambda *_: None)
    monkeypatch.setattr(DeviceRounds, "_attend", lambda *_: None)
    monkeypatch.setattr(rounds.target.runner.cache, "capacity", LONGEST + 64)
    rounds.graphs.records = True
    for params in KINDS_OF_ROUNDS:
        rounds.set_request(params, 1)
    num_before = recorder.num_recorded
    for params in (GREEDY, SAMPLED, PENALISED, FILTERED, replace(FILTERED, repetition_penalty=1.1)):
        rounds.set_request(params, 2)
        for longest in range(1, LONGEST + 64, 1 if params == GREEDY else 61):
            assert all(rounds.launch(depth, longest) for depth in range(9))
    assert num_before == recorder.num_recorded == 4 * 4 * 5  # Kinds, parts, and powers of two of splits.
