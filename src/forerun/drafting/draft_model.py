"""A best-first tree of a smaller model, grown in turn with verification (SpecExec, arXiv 2406.02532)."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from forerun.core.config import DraftModel, SamplingParams
from forerun.model.inputs import ForwardInput
from forerun.model.runner import Runner
from forerun.sampling.choose import rank_children
from forerun.sampling.distribution import LogitShaper
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.growth import BestFirstGrowth
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance


class DraftModelDrafter:
    """Grows a tree by a few forwards of the draft model, then cuts it to the rows the target verifies.

    The draft's cache holds the committed text up to and including the root; behind it lies one row per expanded node.
    After a round at most two tokens have no row yet: an accepted leaf that was never expanded, and the new root.
    """

    def __init__(self, runner: Runner, config: DraftModel, *, target_vocab_size: int) -> None:
        self._runner, self._config = runner, config
        self._vocab_size = min(target_vocab_size, runner.spec.vocab_size)
        self.verify_width = config.verify_width
        max_rows = config.draft_width * config.depth
        self._ancestry = np.zeros((max_rows, max_rows), dtype=np.bool_)

    def begin(self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None) -> None:
        self._token_ids = list(prompt_ids)
        self._shaper = LogitShaper(params, self._vocab_size, prompt_ids)
        self._noise = noise if self._config.noise_aware else None
        self._runner.sync(prompt_ids[:-1])

    def propose(self) -> TokenTree:
        config = self._config
        growth = BestFirstGrowth(
            self._token_ids[-1], verify_width=config.verify_width, draft_width=config.draft_width
        )
        self._rows: dict[int, int] = {}  # expanded node to its row in the draft cache
        for _ in range(config.depth):
            batch = growth.next_batch()
            if not batch:
                break
            logits = self._extend_to_root() if batch == [0] else self._expand(growth.tree, batch)
            self._add_children(growth, batch, logits)
        self._tree, self._cut = growth.tree, growth.cut()
        return self._tree.select(self._cut)

    def accept(self, acceptance: Acceptance) -> bool:
        nodes = [self._cut[place] for place in acceptance.path]
        rows = [self._rows[node] for node in nodes if node in self._rows]
        self._runner.commit(rows, acceptance.tokens[: len(rows)])
        self._token_ids.extend(acceptance.tokens)
        self._shaper.commit(acceptance.tokens)
        return self._tree.child(nodes[-1] if nodes else 0, acceptance.bonus_token) is not None

    def close(self) -> None:
        self._runner.close()

    def _extend_to_root(self) -> Tensor:
        """Run the tokens without a row, the root last; return the root's logits [1, V]."""
        missing = self._token_ids[len(self._runner.cached_ids) :]
        assert 1 <= len(missing) <= 2, f"{len(missing)} tokens to catch up with"
        return self._runner.extend(missing, num_logit_rows=1)

    def _expand(self, tree: TokenTree, batch: list[int]) -> Tensor:
        """Run the nodes of `batch`; return their logits [len(batch), V]."""
        cache = self._runner.cache
        first_row, prefix_len = cache.num_tree, cache.committed_len
        for row, node in enumerate(batch, start=first_row):
            self._rows[node] = row
            parent_row = self._rows.get(tree.parents[node])
            self._ancestry[row] = self._ancestry[parent_row] if parent_row is not None else False
            self._ancestry[row, row] = True
        num_rows = first_row + len(batch)
        return self._runner.forward(
            ForwardInput(
                token_ids=[tree.token_ids[node] for node in batch],
                positions=[prefix_len - 1 + tree.depths[node] for node in batch],
                first_slot=cache.reserve(len(batch)),
                prefix_len=prefix_len,
                ancestry=self._ancestry[first_row:num_rows, :num_rows],
                num_logit_rows=len(batch),
            )
        )

    def _add_children(self, growth: BestFirstGrowth, batch: list[int], logits: Tensor) -> None:
        """Guess what the target will choose after each node of `batch`."""
        tree, next_position = growth.tree, len(self._token_ids)
        paths = [tree.path_tokens(node) for node in batch] if self._shaper.needs_paths else None
        scores = self._shaper.shape(logits[:, : self._vocab_size], paths)
        noise = None
        if self._noise is not None:
            noise = self._noise.rows([next_position + tree.depths[node] for node in batch])[:, : self._vocab_size]
        token_ids, log_probs = rank_children(scores, noise, self._config.children)
        for node, tokens, values in zip(batch, token_ids, log_probs, strict=True):
            growth.add_children(node, tokens, values)
