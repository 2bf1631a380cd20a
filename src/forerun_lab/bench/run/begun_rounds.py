"""Rounds of drafters that begin at every token of a known answer, by the drafters' own code."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from forerun.core.config import SamplingParams
from forerun.decoding.verifier import Verifier
from forerun.drafting.drafter import Drafter, DraftOutcome, ReadsScores, ReadsText
from forerun.model.executor import ForwardInput
from forerun.sampling.noise import KeyedNoise
from forerun.sampling.sample import TopK
from forerun.speculation.referee.budget import RowBudget
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance, walk


class BegunRounds:
    """A drafter's proposals at every token of an answer.

    Some of these rounds follow each other: each begins where the one before it ends. A drafter learns from the target
    only in those, as in decoding: the target reads only their proposals, and its result is passed on when the round
    ends. So no proposal uses knowledge that it would not have in decoding.

    Attributes:
        trees: the proposals so far.
    """

    def __init__(
        self, drafter: Drafter, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None
    ) -> None:
        self.trees: list[TokenTree] = []
        self._drafter = drafter
        self._budget = RowBudget(drafter.verify_width)
        self._verdict = HeldVerdict(drafter)
        self._path = tuple[int, ...]()  # accepted nodes of the round in sequence
        self._num_left = 0  # tokens to its end
        drafter.begin(prompt_ids, params, noise)
        while isinstance(drafter, ReadsText) and drafter.prefill():
            pass

    def start_round(self, rest: Sequence[int]) -> bool:
        """Propose before these tokens of the answer. True if the drafter learns from the target's result."""
        self._budget.start_round(self._budget.verify_width)
        tree = self._budget.cut(self._drafter.propose(self._budget))
        self.trees.append(tree)
        if self._num_left:
            return False
        self._path = tuple(tree.descend(rest))
        self._num_left = len(self._path) + 1
        return self._verdict.num_successors > 0

    def verify(self, target: Verifier) -> None:
        """Run the target over the last proposal. It may accept more tokens than the answer still has."""
        choices = target.choose(self.trees[-1], self._verdict)
        self._path = walk(self.trees[-1], choices.token_ids).path

    def commit(self, token_id: int, *, is_last: bool) -> None:
        """Commit the answer's next token; the last one ends the round."""
        self._num_left -= 1
        is_end = is_last or not self._num_left
        if is_end:
            self._verdict.tell()
        self._drafter.told(DraftOutcome(path=self._path if is_end else (), tokens=(token_id,)))


class HeldVerdict:
    """Receives the target's result for a proposal, and passes it to the drafter later."""

    taps: tuple[int, ...] = ()
    adds_rows = False

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter if isinstance(drafter, ReadsScores) else None
        self.num_successors = 0 if self._drafter is None else self._drafter.num_successors
        self._held: tuple[TokenTree, TopK] | None = None

    def extend(self, inputs: ForwardInput) -> ForwardInput:
        raise AssertionError("it adds no rows")

    def told_logits(self, logits_EV: Tensor) -> None:
        raise AssertionError("it adds no rows")

    def told_features(self, place: int, features: Tensor) -> None:
        raise AssertionError("it asks for no features")

    def told_successors(self, tree: TokenTree, successors: TopK) -> None:
        self._held = tree, successors

    def tell(self) -> None:
        """Pass the result to the drafter, once."""
        if self._held is not None and self._drafter is not None:
            self._drafter.told_successors(*self._held)
            self._held = None


def propose_everywhere(
    target: Verifier,
    drafters: Mapping[str, Drafter],
    prompt_ids: Sequence[int],
    token_ids: Sequence[int],
    params: SamplingParams,
    noise: KeyedNoise | None,
) -> dict[str, list[TokenTree]]:
    """The tree that each drafter proposes at each token of an answer.

    Args:
        target: after the prompt.
        drafters: by name; at most one learns from the target's successors.
        token_ids: the answer.
        noise: the target's, None when greedy.
    """
    every = [BegunRounds(drafter, prompt_ids, params, noise) for drafter in drafters.values()]
    for place, token_id in enumerate(token_ids):
        root = TokenTree(target.root)
        learning = [begun for begun in every if begun.start_round(token_ids[place:])]
        for begun in learning:  # only now, as draft passes may drop the rows of others
            begun.verify(target)
        if not learning:
            target.choose(root)
        target.commit(root, Acceptance(path=(), tokens=(token_id,)))
        for begun in every:
            begun.commit(token_id, is_last=place + 1 == len(token_ids))
    return {name: begun.trees for name, begun in zip(drafters, every, strict=True)}
