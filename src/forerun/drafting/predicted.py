"""Draft from a text that the user expects (OpenAI's `prediction`), together with another drafter."""

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

EXPECTED_RATE: Final = 0.95  # assumed acceptance rate of predicted tokens until it is measured
PREDICTED: Final = Guessers(grown=PREDICTION, chain=PREDICTION)


class PredictedDrafter(Drafter):
    """Proposes the next tokens of the predicted text if at least as many of them are expected to be accepted as of
    the other drafter's; otherwise the other drafter proposes.

    The other drafter only notes the tokens of predicted rounds (see `automatic`). So a correct prediction needs no
    draft pass, and it is used even while the other drafter is paused or down.

    Args:
        other: a drafter that implements `note`.
        pace: the target's pass times, to propose only as many tokens as pay off; None: as many as there is room for.
    """

    def __init__(self, other: Drafter, pace: Pace | None = None) -> None:
        self.verify_width, self._other = other.verify_width, other
        self._chain = LookupChain(num_tokens=max(0, other.verify_width - 1), prior_rate=EXPECTED_RATE)
        self._rule = None if pace is None else WidthRule(pace, None)
        self._other_tokens = 0.0  # tokens per round of the other drafter, a running mean
        self._token_ids: Sequence[int] = ()
        self._num_prompt: int | None = None

    def expect(self, token_ids: Sequence[int]) -> None:
        """Set the prediction for the next request."""
        self._token_ids, self._num_prompt = token_ids, None

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
