"""An interrupt at any instruction leaves an engine usable, and its next text right."""

import random
from collections.abc import Iterator
from contextlib import closing
from itertools import count, islice
from threading import Event, Thread
from time import perf_counter

import numpy as np
import pytest
import torch
from torch import Tensor

from forerun import Engine, EngineBusyError, EngineConfig, FinishReason, NoDrafter
from forerun.backends.cpu.backend import CpuBackend
from forerun.backends.cpu.binding import fault
from forerun.core.sublayers import every_other_layer
from forerun.engine.exclusive import ExclusiveUse
from forerun.model.executor import ForwardInput, ForwardOutput, Observer
from forerun.model.runner import PREFILL_ROWS, Runner
from tests.faults.ordeal import DRAFTERS, KINDS, Interrupter, Ordeal, Question, ask, interrupt_at_random
from tests.tiny import plain_spec, random_weights, tiny_runner

FEW_PLACES = 1
FEW_MOMENTS = 2
DEFAULT = ("none", "draft_model", "parallel")  # stand for the others by default
ALL_PLACES = 1_000_000
MANY_MOMENTS = 500
CRITICAL = (
    "engine/exclusive.py", "engine/stream.py", "engine/engine.py", "decoding/host_loop.py",
    "decoding/verifier.py", "engine/threads_and_cores.py", "text/detokenizer.py", "core/affinity.py",
    "core/stop_flag.py", "backends/cpu/cores.py", "backends/cpu/executor.py",
    "model/runner.py", "model/tree_cache.py", "model/warm_texts.py",
)  # fmt: skip


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    with Engine(EngineConfig(drafter=NoDrafter(), num_threads=1)) as plain:
        return ask(plain)


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=() if name in DEFAULT else pytest.mark.slow) for name in DRAFTERS]
)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with Engine(EngineConfig(drafter=DRAFTERS[request.param], num_threads=1)) as engine:
        yield engine


def write_a_little(engine: Engine, question: Question) -> None:
    stream = engine.stream(question.prompt, question.params)
    for _ in islice(stream, 3):
        pass
    stream.cancel()
    stream.result()


def interrupt_everywhere(engine: Engine, questions: list[Question], files: tuple[str, ...], *, most: int) -> None:
    """Interrupt a short request at evenly spread places, one at a time, each followed by a check."""
    ordeal = Ordeal(engine, questions, random.Random(1))
    question = questions[len(KINDS) - 1]
    counting = Interrupter(files=files, stop_at=ALL_PLACES)
    counting.run(lambda: write_a_little(engine, question))
    stride = 1 + counting.num_places // most
    for place in count(1, stride):
        interrupter = Interrupter(files=files, stop_at=place)
        if not interrupter.run(lambda: write_a_little(engine, question)):
            break
        try:
            ordeal.check()
        except (AssertionError, EngineBusyError) as error:
            raise AssertionError(f"interrupted at {interrupter.place}") from error


def test_an_interrupt_at_any_place_of_a_request_leaves_the_engine_as_it_was(
    engine: Engine, questions: list[Question]
) -> None:
    interrupt_everywhere(engine, questions, CRITICAL, most=FEW_PLACES)
    interrupt_everywhere(engine, questions, (".py",), most=FEW_PLACES)


@pytest.mark.slow
def test_an_interrupt_at_every_place_of_a_request_leaves_the_engine_as_it_was(
    engine: Engine, questions: list[Question]
) -> None:
    interrupt_everywhere(engine, questions, CRITICAL, most=ALL_PLACES)


def moments(engine: Engine, questions: list[Question], number: int) -> int:
    rng = random.Random(2)
    ordeal = Ordeal(engine, questions, rng)
    began = perf_counter()
    for _ in range(3):
        ordeal.act()
    return interrupt_at_random(ordeal, rng, within_s=(perf_counter() - began) / 3, count=number)


def test_an_interrupt_at_any_moment_leaves_the_engine_as_it_was(engine: Engine, questions: list[Question]) -> None:
    assert moments(engine, questions, FEW_MOMENTS) > 0


def test_reading_a_prompt_can_be_watched_and_given_up_and_what_was_read_is_kept(
    engine: Engine, questions: list[Question]
) -> None:
    question = questions[-1]
    engine.forget()
    with engine.stream(question.prompt, question.params) as stream, closing(stream.prefill()) as parts:
        first, second = islice(parts, 2)
    num_tokens = len(engine.encode(question.prompt)) - 1
    assert (first.num_read, second.num_read, second.num_tokens) == (0, PREFILL_ROWS, num_tokens)
    assert (stream.result().finish_reason, stream.result().text) == (FinishReason.CANCELLED, "")
    again = engine.stream(question.prompt, question.params)
    places = [part.num_read for part in again.prefill()]
    assert places == [*range(PREFILL_ROWS, num_tokens, PREFILL_ROWS), num_tokens]
    assert list(again.prefill()) == []
    assert again.result().token_ids == question.token_ids
    assert again.result().stats.num_reused_tokens == PREFILL_ROWS


def test_a_pass_is_given_up_in_its_middle_and_its_rows_are_in_no_text(
    engine: Engine, questions: list[Question]
) -> None:
    question = questions[-1]
    engine.forget()
    executor = engine._target.executor
    run = executor.run
    num_read = 0

    def run_and_stop(inputs: ForwardInput, observe: Observer | None = None) -> ForwardOutput:
        if num_read:
            stream.give_up()  # as another thread does while the pass runs
        return run(inputs, observe)

    with pytest.MonkeyPatch.context() as patch, engine.stream(question.prompt, question.params) as stream:
        patch.setattr(executor, "run", run_and_stop)
        for part in stream.prefill():
            num_read = part.num_read
    assert num_read == PREFILL_ROWS == len(engine._target.cached_ids)
    assert (stream.result().finish_reason, stream.result().text) == (FinishReason.CANCELLED, "")
    again = engine.generate(question.prompt, question.params)
    assert (again.token_ids, again.stats.num_reused_tokens) == (question.token_ids, PREFILL_ROWS)


def test_nothing_comes_after_a_step_that_was_interrupted(engine: Engine, questions: list[Question]) -> None:
    """Its tokens may be in the cache and not in the text; a stream goes on only where nothing was lost."""
    question = questions[0]
    for place in count(1, 3):
        stream = engine.stream(question.prompt, question.params)
        first = next(stream).token_ids
        interrupter = Interrupter(files=("engine/stream.py", "text/detokenizer.py"), stop_at=place, times=2)
        if not interrupter.run(lambda: next(stream)):  # noqa: B023 - run at once
            break
        rest = tuple(token for step in stream for token in step.token_ids)
        assert rest in ((), question.token_ids[len(first) :]), interrupter.place


class TestTurn:
    """Whose call it is."""

    def test_a_turn_whose_owner_never_came_to_its_end_is_free_for_every_thread(self) -> None:
        turn = ExclusiveUse()

        def take_and_lose() -> None:
            turn.__enter__()

        take_and_lose()
        taken: list[bool] = []

        def take() -> None:
            with turn:
                taken.append(True)

        take()
        thread = Thread(target=take)
        take_and_lose()
        thread.start()
        thread.join()
        assert len(taken) == 2

    def test_one_call_at_a_time_has_it(self) -> None:
        turn = ExclusiveUse()
        is_in = Event()
        may_leave = Event()

        def hold() -> None:
            with turn:
                is_in.set()
                may_leave.wait(60)

        def take() -> None:
            with turn:
                pass

        thread = Thread(target=hold)
        thread.start()
        is_in.wait(60)
        with pytest.raises(EngineBusyError):
            take()
        may_leave.set()
        thread.join()
        take()
        with turn, pytest.raises(EngineBusyError):
            take()


SPEC = plain_spec(num_layers=4)
SKIPPED = every_other_layer(SPEC.num_layers)


def small_runner() -> Runner:
    weights = random_weights(SPEC, torch.Generator().manual_seed(5), dtype=torch.float32)
    runner = tiny_runner(SPEC, weights, exactness="fast", capacity=400)
    assert isinstance(runner.backend, CpuBackend)
    return runner


def logits_of(runner: Runner, *, skips_first: bool = False) -> Tensor:
    """Of a text that is longer than a pass was before, perhaps behind a pass that left sublayers out."""
    for skipped in [SKIPPED] * skips_first + [frozenset()]:
        inputs = ForwardInput(
            token_ids=[3, 1], positions=[0, 1], first_slot=0, prefix_len=0, num_logit_rows=1, skipped=skipped,
            ancestry=np.tri(2, dtype=np.bool_),
        )  # fmt: skip
        runner.forward(inputs)
    runner.sync(())
    return runner.extend([token % SPEC.vocab_size for token in range(40)], num_logit_rows=4)


@pytest.mark.skipif(fault() is not None, reason=str(fault()))
@pytest.mark.parametrize("stride", [23, pytest.param(1, marks=pytest.mark.slow)])
def test_a_pass_described_to_the_library_by_halves_spoils_no_later_one(stride: int) -> None:
    """Buffers that grow, and sublayers that are skipped, are the library's to remember from pass to pass."""
    expected = logits_of(small_runner())
    for place in count(1, stride):
        runner = small_runner()
        interrupter = Interrupter(files=("backends/cpu/executor.py", "backends/cpu/num_threads.py"), stop_at=place)
        was_interrupted = interrupter.run(lambda: logits_of(runner, skips_first=True))  # noqa: B023 - run at once
        runner.sync(())
        assert torch.equal(logits_of(runner), expected), interrupter.place
        if not was_interrupted:
            break
