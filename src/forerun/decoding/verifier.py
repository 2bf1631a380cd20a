"""Verification of a tree by the target: one pass, and a token chosen after every node."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from forerun.core.config import SamplingParams
from forerun.core.errors import NumericalError
from forerun.core.mixers import deepest_level
from forerun.core.steps import TokenLogprob
from forerun.model.executor import ForwardInput, ForwardOutput, TokenChoice
from forerun.model.runner import Runner
from forerun.sampling.logprobs import token_logprobs
from forerun.sampling.noise import MASK_64, KeyedNoise
from forerun.sampling.sample import Choices, LogitShaper, TopK, widened
from forerun.speculation.tree import TokenTree, ancestry_matrix
from forerun.speculation.walk import Acceptance
from forerun.text.constraint import Constraint


class Companions(Protocol):
    """What takes part in the target's passes: the drafters of an engine, see `Drafters`."""

    taps: tuple[int, ...]
    adds_rows: bool
    num_successors: int

    def extend(self, inputs: ForwardInput) -> ForwardInput: ...

    def told_logits(self, logits_EV: Tensor) -> None: ...

    def told_successors(self, tree: TokenTree, successors: TopK) -> None: ...

    def told_features(self, place: int, features: Tensor) -> None: ...


class Verifier:
    """Runs the target on trees and chooses a token after each node.

    The chosen token depends only on the text before it, the parameters and the seed; see `sampling.sample`.

    Args:
        written_ids: tokens of the answer that another decoder wrote.
        constraint: the grammar of the answer, at its start.
    """

    def __init__(
        self,
        runner: Runner,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        noise: KeyedNoise | None,
        written_ids: Sequence[int] = (),
        constraint: Constraint | None = None,
    ) -> None:
        self._runner = runner
        self._noise = noise
        self._constraint = constraint
        self._shaper = LogitShaper(
            params, runner.spec.vocab_size, prompt_ids, device=runner.device, truncate=runner.backend.truncate
        )
        self._shaper.commit(written_ids)
        self.vocab_size = runner.spec.vocab_size
        self._deepest = deepest_level(runner.spec.mixer)
        self.root = (written_ids or prompt_ids)[-1]
        self._num_top = params.logprobs
        self._choice = None
        if self._shaper.is_plain and self._num_top is None and constraint is None:
            seed = None if noise is None else noise.seed & MASK_64
            self._choice = TokenChoice(seed=seed, temperature=self._shaper.temperature_left)
        self._logits: Tensor  # [N, V] of the last tree, only if log-probabilities are requested

    @property
    def token_ids(self) -> list[int]:
        """The text so far, the root last."""
        return [*self._runner.cached_ids, self.root]

    def allowed(self, tree: TokenTree) -> Sequence[int]:
        """The nodes of a tree that the grammar allows and layers with a state can run, ascending and with their
        ancestors."""
        nodes: Sequence[int] = range(len(tree))
        if self._constraint is not None and len(tree) > 1:
            nodes = self._constraint.allowed_nodes(tree.token_ids, tree.parents)
        deepest = self._deepest
        if deepest is None or max(tree.depths) <= deepest:
            return nodes
        return [node for node in nodes if tree.depths[node] <= deepest]

    def choose(self, tree: TokenTree, companions: Companions | None = None, *, is_repeated: bool = False) -> Choices:
        """Run one pass over the tree, one row per node, and over the drafter's rows; choose a token after each node.

        Args:
            is_repeated: the pass repeats one that failed, so the full logits are needed to find the cause.
        """
        needs_logits = is_repeated or (
            companions is not None and (companions.adds_rows or companions.num_successors > 0)
        )
        cache = self._runner.cache
        prefix_len = cache.committed_len
        positions = [prefix_len + depth for depth in tree.depths]
        inputs = ForwardInput(
            token_ids=tree.token_ids,
            positions=positions,
            first_slot=cache.end,
            prefix_len=prefix_len,
            ancestry=ancestry_matrix(tree.parents) if len(tree) > 1 else None,
            num_logit_rows=len(tree),
            choice=None if needs_logits else self._choice,
            taps=() if companions is None else companions.taps,
        )
        output = self._run(inputs, companions)
        if companions is not None and output.features is not None:
            companions.told_features(prefix_len, output.features)
        if output.best is not None:
            return Choices.of(output.best)
        logits = output.logits
        if self._num_top is not None:
            self._logits = logits
        paths = [tree.path_tokens(node) for node in range(len(tree))] if self._shaper.needs_paths else None
        # A GPU still runs the pass at this point.
        masks = None if self._constraint is None else self._constraint.masks(tree.token_ids, tree.parents)
        scores = self._shaper.shape(logits, paths, masks)
        noise = self._noise.at([place + 1 for place in positions]) if self._noise else None
        try:
            choices = self._runner.backend.sample(scores, noise, temperature=self._shaper.temperature_left)
        except NumericalError:
            if fault := self._shaper.fault_of_settings(logits):
                raise NumericalError(fault) from None
            raise
        if companions is not None and companions.num_successors:
            companions.told_successors(
                tree, self._runner.backend.topk(widened(logits), None, companions.num_successors)
            )
        return choices

    def _run(self, inputs: ForwardInput, companions: Companions | None) -> ForwardOutput:
        """The output of these rows; the logits of rows that the drafter added go only to it."""
        extended = companions.extend(inputs) if companions is not None and companions.adds_rows else inputs
        output = self._runner.forward(extended)
        num_rows = len(inputs.token_ids)
        if companions is None or extended is inputs:
            return output
        companions.told_logits(output.logits[num_rows:])
        features = None if output.features is None else output.features[:num_rows]
        return ForwardOutput(logits=output.logits[:num_rows], features=features)

    def choose_safely(self, tree: TokenTree, companions: Companions | None = None) -> tuple[TokenTree, Choices]:
        """The verified tree and its choices.

        If drafted nodes, or rows that the drafter added, make the target overflow, the root is run alone, as in plain
        decoding, so that they cannot end the request. If that fails too, the cause may be in the cache or in the
        owner's saved texts, and these are dropped.
        """
        try:
            return tree, self.choose(tree, companions)
        except NumericalError:
            self._runner.drop_rows()
        alone = TokenTree(tree.token_ids[0])
        try:
            return alone, self.choose(alone, is_repeated=True)
        except NumericalError:
            self._runner.forget(self._runner.owner, on_disk=True)
            raise

    def logprobs(self, acceptance: Acceptance) -> tuple[TokenLogprob, ...]:
        """Log-probabilities of the last round's tokens, if requested. The next pass may overwrite the logits."""
        if self._num_top is None:
            return ()
        return token_logprobs(self._logits, [0, *acceptance.path], acceptance.tokens, self._num_top)

    def commit(self, tree: TokenTree, acceptance: Acceptance) -> None:
        """Commit the rows of the root and of the accepted path."""
        self._runner.commit([0, *acceptance.path], (tree.token_ids[0], *acceptance.tokens[:-1]))
        self._shaper.commit(acceptance.tokens)
        if self._constraint is not None:
            self._constraint.commit(acceptance.tokens)
        self.root = acceptance.bonus_token
