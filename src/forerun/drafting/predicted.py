"""Draft from a text that the user expects (OpenAI's `prediction`), beside any other drafter."""

from collections.abc import Sequence
from math import exp, fsum
from typing import Final

from torch import Tensor

from forerun.core.config import SamplingParams
from forerun.core.pace import Pace
from forerun.core.steps import PREDICTION, Guessers
from forerun.drafting.drafter import Drafter, DraftReport
from forerun.drafting.lookup_chain import LookupChain
from forerun.drafting.predicted_text import PredictedText
from forerun.model.inputs import ForwardInput
from forerun.sampling.noise import KeyedNoise
from forerun.sampling.sample import TopK
from forerun.speculation.economy.costs import blend
from forerun.speculation.economy.widths import WidthRule, rows_to_verify
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance

EXPECTED_RATE: Final = 0.95  # of predicted tokens that come true, until it is known: the user expects nearly all
PREDICTED: Final = Guessers(grown=PREDICTION, chain=PREDICTION)


class PredictedDrafter(Drafter):
    """Proposes what the predicted text goes on with where that is expected to bring as many tokens as another drafter
    does, to which all other rounds are left.

    That one is told the tokens of these rounds, as one of several drafters would be (see `automatic`), so a prediction
    that comes true costs no draft pass, and is followed also while the other one rests or is down.

    Args:
        other: it can be told of tokens that it did not propose.
        pace: the target's pass times, to propose only as many tokens as pay; None: always all that there is room for.
    """

    def __init__(self, other: Drafter, pace: Pace | None = None) -> None:
        self.verify_width, self._other = other.verify_width, other
        self._chain = LookupChain(num_tokens=max(0, other.verify_width - 1), prior_rate=EXPECTED_RATE)
        self._rule = None if pace is None else WidthRule(pace, None)
        self._other_tokens = 0.0  # of a round of the other drafter, a running mean
        self._token_ids: Sequence[int] = ()
        self._num_prompt: int | None = None

    def expect(self, token_ids: Sequence[int]) -> None:
        """Take the prediction for the request that begins next."""
        self._token_ids, self._num_prompt = token_ids, None

    def begin(self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None) -> None:
        self._other.begin(prompt_ids, params, noise)
        if self._num_prompt is None:  # else the request goes on after rounds without drafts
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
            self._is_followed, self.adds_rows, self.num_successors = True, False, 0
            return tree
        tree = self._other.propose()
        self.adds_rows, self.num_successors = self._other.adds_rows, self._other.num_successors
        return tree

    def extend(self, inputs: ForwardInput) -> ForwardInput:
        return self._other.extend(inputs)

    def observe(self, logits_EV: Tensor) -> None:
        self._other.observe(logits_EV)

    def observe_successors(self, tree: TokenTree, successors: TopK) -> None:
        self._other.observe_successors(tree, successors)

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
        self._chain.hang_into(tree)
        return rows_to_verify(tree, self.verify_width, self._rule) if len(tree) > 1 else tree
