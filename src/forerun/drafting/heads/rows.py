"""Cache rows of a draft head: of committed tokens with the target's features, and behind them what is drafted."""

from torch import Tensor

from forerun.drafting.draft_rows import MAX_CATCH_UP, OwnRows
from forerun.drafting.heads.executor import HeadExecutor
from forerun.drafting.heads.features import TextFeatures
from forerun.model.executor import ForwardInput, Step
from forerun.model.runner import PREFILL_ROWS, Runner


class HeadRows(OwnRows):
    """Rows of committed tokens; the token at place p stands in slot p and is read with the feature of p - `lag`.

    Where that feature is missing, the slot stays empty: the target restored the token from a saved text, or read it
    while nobody drafted. Nothing is drafted after a root before which the feature is missing; the features of the next
    verification are then known.
    """

    lag = 0

    def __init__(self, runner: Runner, executor: HeadExecutor, features: TextFeatures, max_rows: int) -> None:
        super().__init__(runner, max_rows)
        self._executor = executor
        self._features = features

    def start_text(self, text: list[int], owner: str) -> None:
        super().start_text(text, owner)
        self._features.clear()
        self._executor.recognise(len(self._own.cached_ids))
        self._root = len(text) - 1

    def prefill(self, text: list[int]) -> bool:
        return self._read(text, MAX_CATCH_UP)

    def _read(self, text: list[int], least: int) -> bool:
        """Read committed tokens that the cache lacks, or leave the slots of some empty; False if there are fewer."""
        first = len(self._own.cached_ids)
        stop = min(len(text) - 1, self._features.end + self.lag, first + PREFILL_ROWS)
        if stop - first < least:
            return False
        known = [place - self.lag in self._features for place in range(first, stop)]
        num_same = known.index(not known[0]) if (not known[0]) in known else len(known)
        tokens = text[first : first + num_same]
        if known[0]:
            places = list(range(first, first + num_same))
            inputs = ForwardInput(
                token_ids=tokens, positions=places, first_slot=first, prefix_len=first, num_logit_rows=0
            )
            self._play(inputs, self._states_at([place - self.lag for place in places]))
        else:
            self._own.cache.reserve(num_same)
            self._executor.clear(range(first, first + num_same))
        self._own.keep(list(range(num_same)), tokens)
        self._features.drop_before(first + num_same - self.lag)
        return True

    def _play(self, inputs: ForwardInput, states: Tensor) -> tuple[Tensor, Tensor | None]:
        """The logits of a pass whose rows start from these states, and the states that follow."""
        output = self._own.play(Step(inputs=inputs), executor=self._executor.starting_from(states))
        return output.logits, output.features

    def _states_at(self, places: list[int]) -> Tensor:
        return self._executor.states(self._features.rows(places))
