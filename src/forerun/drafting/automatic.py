"""Several drafters over one target, of which the fastest drafts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Final, TypeAlias

from torch import Tensor

from forerun.core.config import SamplingParams
from forerun.drafting.drafter import Drafter, DraftReport, Measure
from forerun.drafting.token_recycling import LEARNING
from forerun.model.inputs import ForwardInput
from forerun.sampling.noise import KeyedNoise
from forerun.sampling.sample import TopK
from forerun.speculation.contest import Contest
from forerun.speculation.payoff import TEMPERATURE_CLASSES, TemperatureClass, class_of
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance

PLAIN: Final = "none"  # in reports: the round's drafter proposed nothing
Speeds: TypeAlias = Mapping[TemperatureClass, Mapping[str, float]]


class AutomaticDrafter(Drafter):
    """Hands every round to one of its drafters: the fastest at this temperature, by seconds per token so far.

    The others are only told the tokens, and read what they lack when it is their turn. Each of them stops drafting
    where plain rounds are faster, so plain decoding needs no place among them.

    Args:
        drafters: by name, the likeliest winner first; each can be told of tokens that it did not propose.
        known: their speeds in tokens per time of a bare pass, from an earlier start.
    """

    def __init__(self, drafters: Mapping[str, Drafter], known: Speeds | None = None) -> None:
        self._drafters, self._known = drafters, known or {}
        self.verify_width = max(drafter.verify_width for drafter in drafters.values())
        self.adds_rows = any(drafter.adds_rows for drafter in drafters.values())
        self._pass_s, self._num_rounds = 1.0, 0
        self._contests = self._fresh_contests()
        self._contest, self._current = self._contests["greedy"], next(iter(drafters.values()))

    @property
    def drafters(self) -> Mapping[str, Drafter]:
        """The drafters by name."""
        return self._drafters

    def speeds(self) -> Speeds:
        """What each was found to write in the time of a bare pass, in tokens, by class of temperatures."""
        found = {kind: contest.speeds() for kind, contest in self._contests.items()}
        return {
            kind: {name: self._pass_s / token_s for name, token_s in speeds.items()}
            for kind, speeds in found.items()
            if speeds
        }

    def adapt(self, measure: Measure) -> None:
        for drafter in self._drafters.values():
            drafter.adapt(measure)
        self._pass_s = measure((1,), budget_s=0.0).step_s(1)
        self._contests = self._fresh_contests()  # what the warm-up took says nothing

    def change_owner(self, owner: str) -> None:
        for drafter in self._drafters.values():
            drafter.change_owner(owner)

    def forget(self) -> None:
        for drafter in self._drafters.values():
            drafter.forget()

    def begin(self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None) -> None:
        self._contest = self._contests[class_of(params.temperature)]
        for drafter in self._drafters.values():
            drafter.begin(prompt_ids, params, noise)
        self._current = self._drafters[self._contest.current]

    def prefill(self) -> bool:
        return self._current.prefill()

    def propose(self) -> TokenTree:
        chosen = self._drafters[self._contest.current]
        if chosen is not self._current:
            self._current = chosen
            while chosen.prefill():  # the text so far is read once, which says nothing of its speed from here on
                pass
        if self._contest.is_trial:  # else a drafter that rests would be judged by plain rounds
            chosen.try_again()
        self._began = perf_counter()
        tree = chosen.propose()
        self._num_rounds += 1
        self.num_successors = chosen.num_successors
        if not chosen.num_successors and self._num_rounds % LEARNING == 0:
            self.num_successors = max(drafter.num_successors for drafter in self._drafters.values())
        self._name = self._contest.current if len(tree) > 1 else PLAIN
        return tree

    def extend(self, inputs: ForwardInput) -> ForwardInput:
        return self._current.extend(inputs) if self._current.adds_rows else inputs

    def observe(self, logits_EV: Tensor) -> None:
        self._current.observe(logits_EV)

    def observe_successors(self, tree: TokenTree, successors: TopK) -> None:
        for drafter in self._drafters.values():
            drafter.observe_successors(tree, successors)

    def accept(self, acceptance: Acceptance) -> DraftReport:
        report = self._current.accept(acceptance)
        self._contest.measure(len(acceptance.tokens), perf_counter() - self._began)
        for drafter in self._drafters.values():
            if drafter is not self._current:
                drafter.note(acceptance)
        return replace(report, drafted_by=self._name)

    def note(self, acceptance: Acceptance) -> None:
        for drafter in self._drafters.values():
            drafter.note(acceptance)

    def num_unknown(self, token_ids: Sequence[int]) -> int:
        return max(drafter.num_unknown(token_ids) for drafter in self._drafters.values())

    def state(self) -> bytes:
        return next((state for drafter in self._drafters.values() if (state := drafter.state())), b"")

    def restore(self, state: bytes) -> bool:
        return any(drafter.restore(state) for drafter in self._drafters.values())

    def end(self) -> None:
        for drafter in self._drafters.values():
            drafter.end()

    def close(self) -> None:
        for drafter in self._drafters.values():
            drafter.close()

    def _fresh_contests(self) -> dict[TemperatureClass, Contest]:
        names = tuple(self._drafters)
        return {kind: Contest(names, self._known_seconds(kind)) for kind in TEMPERATURE_CLASSES}

    def _known_seconds(self, kind: TemperatureClass) -> dict[str, float]:
        return {name: self._pass_s / speed for name, speed in self._known.get(kind, {}).items()}
