"""An engine that is interrupted, and what must hold of it afterwards."""

import dis
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Thread
from types import CodeType, FrameType
from typing import Any

import torch

import forerun
from forerun import (
    Automatic,
    DraftModel,
    Engine,
    LayerSkip,
    NoDrafter,
    Parallel,
    PromptLookup,
    SamplingParams,
    TokenRecycling,
)
from forerun.core.drafter_config import DraftHead
from tests.drafting.heads.published import builtin_head

SOURCE = Path(forerun.__file__).parent
TEXT = "def read_lines(path):\n    with open(path) as file:\n        return [line.rstrip() for line in file]\n\n\n"
NUM_LENGTHS = 4  # prompts are beginnings of one text, so that a request builds on what the one before it left
LONG = 24  # times the text: three wide passes
OWNERS = ("", "ann")
DRAFTERS = {
    "none": NoDrafter(),
    "draft_model": DraftModel(),
    "prompt_lookup": PromptLookup(),
    "recycling": TokenRecycling(),
    "recycling always": TokenRecycling(adaptive=False),
    "layer_skip": LayerSkip(),
    "layer_skip always": LayerSkip(adaptive=False, search="off"),
    "layer_skip int4": LayerSkip(weights="int4"),
    "parallel": Parallel(),
    "auto": Automatic(),
    "eagle3": DraftHead(model=builtin_head("eagle3"), adaptive=False),
    "dflash": DraftHead(model=builtin_head("dflash"), adaptive=False),
}
KINDS = (
    SamplingParams(max_new_tokens=24, ignore_eos=True),
    SamplingParams(max_new_tokens=24, ignore_eos=True, temperature=1.0, seed=3),
    SamplingParams(max_new_tokens=24, ignore_eos=True, temperature=0.8, seed=5, top_k=20, repetition_penalty=1.2),
)


@dataclass(frozen=True, kw_only=True)
class Question:
    """A request whose answer is known."""

    prompt: str
    params: SamplingParams
    token_ids: tuple[int, ...]


def ask(plain: Engine) -> list[Question]:
    """Questions, answered by an engine that nobody interrupts and that does not draft."""
    whole = TEXT * LONG
    prompts = [whole[: len(whole) * part // NUM_LENGTHS] for part in range(1, NUM_LENGTHS + 1)]
    return [
        Question(prompt=prompt, params=params, token_ids=plain.generate(prompt, params).token_ids)
        for prompt in prompts
        for params in KINDS
    ]


class Ordeal:
    """Does something with an engine, is interrupted, and checks that nobody could tell."""

    def __init__(self, engine: Engine, questions: list[Question], rng: random.Random) -> None:
        self._engine = engine
        self._questions = questions
        self._rng = rng
        self._state = self._thread_state()

    def act(self) -> None:
        """What is interrupted: a request in one of the ways in which it can be used."""
        engine = self._engine
        question = self._rng.choice(self._questions)
        stream = engine.stream(question.prompt, question.params, owner=self._rng.choice(OWNERS))
        match self._rng.randrange(5):
            case 0:
                assert stream.result().token_ids == question.token_ids
            case 1:
                with stream:
                    for _ in stream.prefill():
                        pass
                    next(stream)
            case 2:
                next(stream)
                engine.forget()
            case 3:
                next(stream)
                next(engine.stream(question.prompt[:50], question.params))
            case 4:
                next(stream)
                stream.cancel()
                stream.result()

    def check(self) -> None:
        """The engine does what it would have done without the interrupt, in this thread and in another."""
        assert self._thread_state() == self._state, "the thread was left as something it was not"
        question = self._rng.choice(self._questions)
        owner = self._rng.choice(OWNERS)
        found: list[tuple[int, ...]] = []

        def generate() -> None:
            found.append(self._engine.generate(question.prompt, question.params, owner=owner).token_ids)

        if self._rng.random() < 0.2:
            thread = Thread(target=generate)
            thread.start()
            thread.join()
        else:
            generate()
        assert found == [question.token_ids], f"another text after {len(question.prompt)} characters"
        target = self._engine._target
        assert target.cache.committed_len == len(target.cached_ids), "a cache and its record say different things"

    def _thread_state(self) -> tuple[object, ...]:
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        return cores, torch.get_num_threads(), torch.is_inference_mode_enabled(), torch.is_grad_enabled()


@contextmanager
def alarms() -> Iterator[Callable[[float], None]]:
    """A clock: told so many seconds, it raises KeyboardInterrupt when they are over; 0: it does not."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def interrupt_at_random(ordeal: Ordeal, rng: random.Random, *, within_s: float, count: int) -> int:
    """Interrupt so many actions at random moments, each followed by a check; returns how many were not over before."""
    num_interrupted = 0
    last = None
    with alarms() as set_alarm:
        for _ in range(count):
            try:
                set_alarm(rng.uniform(1e-5, within_s))
                ordeal.act()
                set_alarm(0)
            except KeyboardInterrupt as error:
                num_interrupted = num_interrupted + 1  # kept with its frames, as a notebook does
                last = error
            with suppress(KeyboardInterrupt):
                set_alarm(0)
            ordeal.check()
    del last
    return num_interrupted


@dataclass
class Interrupter:
    """Raises KeyboardInterrupt at one of the places where Python looks for signals: behind a call, at the beginning of
    a function, and where a loop goes back. Counts the places of the files it watches.

    Behind a call of a Python function it does not look. Calls of C functions that call Python themselves cannot be told
    from those here, and are left to random moments.
    """

    files: tuple[str, ...]
    stop_at: int  # number of the place; more than there are: count them
    times: int = 1  # in a row, as somebody does who presses Ctrl-C twice
    num_places: int = 0
    place: str = ""

    def __post_init__(self) -> None:
        absent = [name for name in self.files if not any(SOURCE.rglob(f"*{name}"))]
        assert absent == [], "files that are not watched because they are not there"
        self._looks: dict[CodeType, set[int]] = {}
        self._callers: set[FrameType | None] = set()  # whose latest instruction called a Python function

    def run(self, work: Callable[[], object]) -> bool:
        """Do the work; True if it was interrupted."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            work()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
            self._callers.clear()
        return False

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        self._callers.add(frame.f_back)
        if "/forerun/" not in frame.f_code.co_filename or not frame.f_code.co_filename.endswith(self.files):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._look

    def _look(self, frame: FrameType, event: str, argument: Any) -> Any:
        was_python = frame in self._callers
        self._callers.discard(frame)
        if event == "opcode" and not was_python and frame.f_lasti in self._places_of(frame.f_code):
            self.num_places += 1
            if 0 <= self.num_places - self.stop_at < self.times:
                self.place = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
                raise KeyboardInterrupt
        return self._look

    def _places_of(self, code: CodeType) -> set[int]:
        """Offsets of the instructions that follow one after which Python looks for signals.

        Python raises as the earlier one, so those are left out that another handler, or none, is in charge of.
        """
        if code not in self._looks:
            bytecode = dis.Bytecode(code)

            def handler_of(offset: int) -> int | None:
                return next((one.target for one in bytecode.exception_entries if one.start <= offset < one.end), None)

            self._looks[code] = {
                after.offset
                for one, after in pairwise(bytecode)
                if (one.opname in ("CALL", "CALL_FUNCTION_EX", "RESUME") or "BACKWARD" in one.opname)
                and handler_of(one.offset) == handler_of(after.offset)
            }
        return self._looks[code]
