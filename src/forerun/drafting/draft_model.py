"""A best-first tree of a smaller model, grown in turn with verification (SpecExec, arXiv 2406.02532)."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from forerun.core.config import DraftModel, SamplingParams
from forerun.drafting.lookup_chain import LookupChain
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

    The draft's cache holds the committed text up to the last round; behind it lies one row for each token committed
    since, the root last, and one for each expanded node. They all become text, or go, when the round is accepted.
    Without lookup at most two tokens lack a row, an accepted leaf that was never expanded and the new root; accepted
    guesses of the lookup may be more, but never more than a proposal has nodes.
    """

    def __init__(self, runner: Runner, config: DraftModel, *, target_vocab_size: int) -> None:
        self._runner, self._config = runner, config
        self._vocab_size = min(target_vocab_size, runner.spec.vocab_size)
        self.verify_width = config.verify_width
        self._lookup = LookupChain(num_tokens=config.verify_width - 1) if config.lookup else None
        max_rows = config.draft_width * config.depth + config.verify_width
        self._ancestry = np.zeros((max_rows, max_rows), dtype=np.bool_)

    def begin(self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None) -> None:
        self._root, self._token_ids = prompt_ids[-1], self._known(prompt_ids)
        self._shaper = LogitShaper(params, self._vocab_size, self._token_ids, device=self._runner.device)
        self._noise = noise if self._config.noise_aware else None
        self._runner.sync(self._token_ids[:-1])
        if self._lookup is not None:
            self._lookup.begin(prompt_ids)

    def propose(self) -> TokenTree:
        config = self._config
        growth = BestFirstGrowth(
            self._root,
            verify_width=config.verify_width,
            draft_width=config.draft_width,
            min_mass=config.min_mass,
        )
        if self._lookup is not None:
            self._lookup.hang_into(growth)
        self._missing = self._token_ids[len(self._runner.cached_ids) :]  # committed tokens without a row, the root last
        self._rows: dict[int, int] = {}  # expanded node to its row in the draft cache
        for _ in range(config.depth):
            batch = growth.next_batch()
            if not batch:
                break
            self._add_children(growth, batch, self._expand(growth.tree, batch))
        self._tree, self._cut = growth.tree, growth.cut()
        return self._tree.select(self._cut)

    def accept(self, acceptance: Acceptance) -> bool:
        nodes = [self._cut[place] for place in acceptance.path]
        token_ids = self._known(acceptance.tokens)
        if 0 in self._rows:
            kept = [self._rows[node] for node in nodes if node in self._rows]
            rows = [*range(len(self._missing)), *kept]
            self._runner.commit(rows, [*self._missing, *token_ids[: len(kept)]])
        self._root = acceptance.bonus_token
        self._token_ids.extend(token_ids)
        self._shaper.commit(token_ids)
        if self._lookup is not None:
            self._lookup.accept(acceptance.tokens)
        return acceptance.bonus_token in self._tree.children(nodes[-1] if nodes else 0)

    def close(self) -> None:
        self._runner.forget()

    def _known(self, token_ids: Sequence[int]) -> list[int]:
        """The ids as the draft can read them: one that only the target has becomes id 0, at the price of a guess."""
        return [token_id if token_id < self._vocab_size else 0 for token_id in token_ids]

    def _expand(self, tree: TokenTree, batch: list[int]) -> Tensor:
        """Run the nodes of `batch`, before the root what it follows; return the nodes' logits [len(batch), V]."""
        cache = self._runner.cache
        first_row, root_position = cache.num_tree, len(self._token_ids) - 1
        catch_up = self._missing[:-1] if batch[0] == 0 else []
        depths = [*range(-len(catch_up), 0), *(tree.depths[node] for node in batch)]
        first_slot, end_row = cache.reserve(len(depths)), cache.num_tree
        self._place(tree, batch, first_row, num_catch_up=len(catch_up))
        return self._runner.forward(
            ForwardInput(
                token_ids=[*catch_up, *self._known([tree.token_ids[node] for node in batch])],
                positions=[root_position + depth for depth in depths],
                first_slot=first_slot,
                prefix_len=cache.committed_len,
                ancestry=self._ancestry[first_row:end_row, :end_row] if end_row > 1 else None,
                num_logit_rows=len(batch),
            )
        )

    def _place(self, tree: TokenTree, batch: list[int], first_row: int, *, num_catch_up: int) -> None:
        """Give every node of `batch` a row, and mark which rows the new ones see: their ancestors and themselves."""
        assert num_catch_up < self.verify_width, f"{num_catch_up} tokens to catch up with before the root"
        parent_rows = [row - 1 for row in range(num_catch_up)]
        for row, node in enumerate(batch, start=first_row + num_catch_up):
            self._rows[node] = row
            parent_rows.append(self._rows[tree.parents[node]] if node else num_catch_up - 1)
        for row, parent_row in enumerate(parent_rows, start=first_row):
            self._ancestry[row] = self._ancestry[parent_row] if parent_row >= 0 else False
            self._ancestry[row, row] = True

    def _add_children(self, growth: BestFirstGrowth, batch: list[int], logits: Tensor) -> None:
        """Guess what the target will choose after each node of `batch`."""
        tree, next_position = growth.tree, len(self._token_ids)
        paths = [self._known(tree.path_tokens(node)) for node in batch] if self._shaper.needs_paths else None
        scores = self._shaper.shape(logits[:, : self._vocab_size], paths)
        noise = None
        if self._noise is not None:
            noise = self._noise.rows([next_position + tree.depths[node] for node in batch])[:, : self._vocab_size]
        token_ids, log_probs = rank_children(scores, noise, self._config.children)
        for node, tokens, values in zip(batch, token_ids, log_probs, strict=True):
            growth.add_children(node, tokens, values)
