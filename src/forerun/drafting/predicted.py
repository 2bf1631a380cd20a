"""Draft from a text that the user expects (OpenAI's `prediction`) and from tokens that a grammar forces, in addition to
another drafter."""

from bisect import bisect_right
from collections.abc import Sequence
from math import exp, fsum
from typing import Final

from torch import Tensor

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import MAX_MATCH, MIN_MATCH
from forerun.core.pace import Pace
from forerun.core.steps import PREDICTION, Guessers
from forerun.drafting.drafter import Drafter, DraftReport
from forerun.drafting.lookup_chain import Continuation, LookupChain
from forerun.model.forward import ForwardInput
from forerun.sampling.noise import KeyedNoise
from forerun.sampling.sample import TopK
from forerun.speculation.economy.costs import blend
from forerun.speculation.economy.widths import WidthRule, rows_to_verify
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance
from forerun.text.constraint import Constraint

MOST_PLACES: Final = 64  # matches examined on either side, to bound the time on predictions that repeat themselves
FORCED: Final = -1e-3  # log-probability of a forced token: a model rarely writes the same text in other tokens
EXPECTED_RATE: Final = 0.95  # assumed acceptance rate of predicted tokens until it is measured
PREDICTED: Final = Guessers(grown=PREDICTION, chain=PREDICTION)


class PredictedDrafter(Drafter):
    """Proposes the next tokens of the predicted text if it expects at least as many accepted tokens as from the other
    drafter; otherwise the other drafter proposes.

    The other drafter only notes the tokens of predicted rounds (see `automatic`). So a correct prediction needs no
    draft pass, and it is used even while the other drafter is paused or down.

    Args:
        other: a drafter that implements `note`.
        pace: the target's pass times, to propose only as many tokens as pay off; None: as many as there is room for.
    """

    def __init__(self, other: Drafter, pace: Pace | None = None) -> None:
        self.verify_width = other.verify_width
        self.taps = other.taps
        self._other = other
        self._chain = LookupChain(num_tokens=max(0, other.verify_width - 1), prior_rate=EXPECTED_RATE)
        self._rule = None if pace is None else WidthRule(pace, None)
        self._other_tokens = 0.0  # tokens per round of the other drafter, a running mean
        self._token_ids: Sequence[int] = ()
        self._constraint: Constraint | None = None
        self._num_prompt: int | None = None

    def expect(self, token_ids: Sequence[int], constraint: Constraint | None = None) -> None:
        """Set the prediction for the next request, and the grammar, whose forced tokens are predicted too."""
        self._token_ids = token_ids
        self._constraint = constraint
        self._num_prompt = None

    def begin(self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None) -> None:
        self._other.begin(prompt_ids, params, noise)
        if self._num_prompt is None:  # otherwise the request continues after rounds without drafts
            self._num_prompt = len(prompt_ids)
        text = PredictedText(self._token_ids)
        text.extend(prompt_ids[self._num_prompt :])
        self._chain.look_up_in(text)
        self._root = prompt_ids[-1]

    def prefill(self) -> bool:
        return self._other.prefill()

    def propose(self) -> TokenTree:
        self._is_followed = False
        tree = self._predicted()
        if len(tree) > 1 and fsum(map(exp, tree.log_probs)) >= self._other_tokens:
            self._is_followed = True
            self.adds_rows = False
            self.num_successors = 0
            return tree
        tree = self._other.propose()
        self.adds_rows = self._other.adds_rows
        self.num_successors = self._other.num_successors
        return tree

    def extend(self, inputs: ForwardInput) -> ForwardInput:
        return self._other.extend(inputs)

    def observe(self, logits_EV: Tensor) -> None:
        self._other.observe(logits_EV)

    def observe_successors(self, tree: TokenTree, successors: TopK) -> None:
        self._other.observe_successors(tree, successors)

    def read_features(self, place: int, features: Tensor) -> None:
        self._other.read_features(place, features)

    def observe_features(self, place: int, features: Tensor) -> None:
        self._other.observe_features(place, features)

    def accept(self, acceptance: Acceptance) -> DraftReport:
        report = DraftReport(drafted_by=PREDICTION, guessers=PREDICTED)
        if self._is_followed:
            self._other.note(acceptance)
            if self._rule is not None:
                self._rule.end_round(len(acceptance.path))
        else:
            report = self._other.accept(acceptance)
            self._other_tokens = blend(self._other_tokens, len(acceptance.tokens))
        self._chain.accept(acceptance.tokens)
        self._root = acceptance.bonus_token
        return report

    def end(self) -> None:
        self._other.end()

    def _predicted(self) -> TokenTree:
        tree = TokenTree(self._root)
        forced = [] if self._constraint is None else self._constraint.forced()
        if forced:
            self._chain.follow()
            forced = forced[: self.verify_width - 1]
            tree.add_chain(forced, [FORCED] * len(forced))
            return tree
        self._chain.hang_into(tree)
        return rows_to_verify(tree, self.verify_width, self._rule) if len(tree) > 1 else tree


class PredictedText:
    """Gives continuations of a growing text from the prediction; `LookupChain` uses it like a `PromptIndex`.

    The text is compared with the prediction token by token, from the start of both. Where they differ, the text's last
    tokens, at least MIN_MATCH, are looked up in the prediction, as in prompt lookup.

    Args:
        token_ids: the prediction.
    """

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._token_ids = list(token_ids)
        self._written: list[int] = []
        self._place = 0  # if lost, the position of the difference
        self._num_matched = 0
        self._is_lost = False
        self._index: dict[tuple[int, ...], list[int]] | None = None  # MIN_MATCH tokens to the positions after them

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append tokens to the text."""
        for token_id in token_ids:
            self._written.append(token_id)
            if not self._is_lost and self._token_ids[self._place : self._place + 1] == [token_id]:
                self._place = self._place + 1
                self._num_matched = self._num_matched + 1
            else:
                self._find()

    def continuation(self, limit: int) -> Continuation:
        """Up to `limit` next tokens of the prediction; none if the text no longer matches it."""
        if self._is_lost:
            return Continuation(token_ids=[], match_length=0)
        token_ids = self._token_ids[self._place : self._place + limit]
        return Continuation(token_ids=token_ids, match_length=min(self._num_matched, MAX_MATCH))

    def _find(self) -> None:
        """Continue after the longest match; among equal ones, the first after the current position."""
        if self._index is None:  # built late, because a correct prediction never needs it
            self._index = index_of(self._token_ids)
        places = self._index.get(tuple(self._written[-MIN_MATCH:]), [])
        self._is_lost = not places
        if places:
            ahead = bisect_right(places, self._place)
            behind = places[max(0, ahead - MOST_PLACES) : ahead]
            self._place = max([*places[ahead : ahead + MOST_PLACES], *behind], key=self._match_length)
            self._num_matched = self._match_length(self._place)

    def _match_length(self, place: int) -> int:
        """How many tokens before this position equal the last tokens of the text, at most MAX_MATCH."""
        most = min(place, len(self._written), MAX_MATCH)
        same = (self._token_ids[place - back] == self._written[-back] for back in range(1, most + 1))
        return next((length for length, is_same in enumerate(same) if not is_same), most)


def index_of(token_ids: Sequence[int]) -> dict[tuple[int, ...], list[int]]:
    """Every run of MIN_MATCH tokens, mapped to the positions after it, ascending."""
    places: dict[tuple[int, ...], list[int]] = {}
    for place in range(MIN_MATCH, len(token_ids) + 1):
        places.setdefault(tuple(token_ids[place - MIN_MATCH : place]), []).append(place)
    return places
