"""Cache rows of a draft head: of committed tokens with the target's features, and behind them what is drafted."""

from collections.abc import Iterable

import torch
from torch import Tensor

from forerun.core.sublayers import SkipSet
from forerun.drafting.draft_rows import MAX_CATCH_UP, OwnRows
from forerun.drafting.heads.dflash_network import DFlashExecutor
from forerun.drafting.heads.executor import HeadExecutor
from forerun.drafting.heads.features import TextFeatures
from forerun.model.inputs import ForwardInput
from forerun.model.runner import PREFILL_ROWS, Runner
from forerun.model.step import Step
from forerun.speculation.tree import TokenTree


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

    def begin(self, text: list[int], owner: str) -> None:
        super().begin(text, owner)
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


class EagleRows(HeadRows):
    """Rows of an EAGLE-3 head, in which the rows of a tree stand behind the text.

    A drafted row starts from the state of its parent's row, because the target's feature is not known yet. So when a
    node is accepted its row is dropped, and its token is read again, with the target's feature, in the pass that
    expands the next root. (vLLM keeps such rows, which costs 8 to 15 % of the accepted tokens: vllm#14649.) The first
    token of a text never has a row.
    """

    lag = 1

    def __init__(self, runner: Runner, executor: HeadExecutor, features: TextFeatures, max_rows: int) -> None:
        self._states: Tensor  # [rows, H], the states from which children of expanded nodes start
        super().__init__(runner, executor, features, max_rows)

    def has_room(self, num_nodes: int) -> bool:
        return (self.is_rooted or self._root - 1 in self._features) and super().has_room(num_nodes)

    def follow(self, tree: TokenTree, path: Iterable[int], places: dict[int, int], text: list[int]) -> None:
        assert not places, "a node's row is read again once it is accepted"
        if self.is_rooted:
            first = len(self._own.cached_ids)
            num_rows = self._rows[0] + 1
            self._own.keep(list(range(num_rows)), text[first : first + num_rows])
            self._features.drop_before(first + num_rows - 1)
        self._forget_nodes()
        self._root = len(text) - 1

    def _lacking(self, text: list[int]) -> list[int]:
        while any(place - 1 not in self._features for place in range(len(self._own.cached_ids), len(text) - 1)):
            self._read(text, 1)
        return super()._lacking(text)

    def _run(self, tree: TokenTree, batch: list[int], inputs: ForwardInput) -> Tensor:
        num_before = len(inputs.token_ids) - len(batch)
        num_real = num_before + (batch[0] == 0)  # the tokens before the root, and the root
        parents = [self._rows[tree.parents[node]] for node in batch if node]
        states = []
        if num_real:
            states.append(self._states_at([place - 1 for place in inputs.positions[:num_real]]))
        if parents:
            states.append(self._states[parents])
        logits, features = self._play(inputs, torch.cat(states))
        assert features is not None, "a head gives the states of its rows"
        self._states = torch.cat((self._states.to(features), features[:, 0]))
        return logits

    def _forget_nodes(self) -> None:
        super()._forget_nodes()
        self._states = torch.zeros(0)


class DFlashRows(HeadRows):
    """The rows of a DFlash head: the cache holds committed tokens alone, and one pass drafts a whole tree.

    Args:
        executor: the head.
    """

    def __init__(self, runner: Runner, executor: DFlashExecutor, features: TextFeatures, max_rows: int) -> None:
        super().__init__(runner, executor, features, max_rows)
        self._head = executor.head
        self._block = executor
        self.num_drafted = executor.head.spec.num_drafted
        self._drafted: tuple[Tensor, Tensor] | None = None  # the block's logits and outputs

    @property
    def is_rooted(self) -> bool:
        """True once the block behind the root was drafted."""
        return self._drafted is not None

    def has_room(self, num_nodes: int) -> bool:
        return self.is_rooted

    def begin(self, text: list[int], owner: str) -> None:
        super().begin(text, owner)
        self._drafted = None

    def draft(self, text: list[int]) -> bool:
        """Draft the block behind the root, the last token of `text`; False if the feature before it is missing."""
        while self._read(text, 1):
            pass
        root = len(text) - 1
        is_read = 0 < root == len(self._own.cached_ids) and bool(self._executor.is_known_S[root - 1])
        if self._drafted is not None or not is_read:
            return self._drafted is not None
        spec = self._head.spec
        inputs = ForwardInput(
            token_ids=[text[-1], *[spec.mask_token_id] * (spec.block_size - 1)],
            positions=list(range(root, root + spec.block_size)),
            first_slot=root,
            prefix_len=root,
            num_logit_rows=spec.num_drafted,
        )
        output = self._own.forward(inputs)
        self._own.drop_rows()
        assert output.features is not None, "the outputs of a block"
        self._drafted = output.logits, output.features[:, 0]
        return True

    def expand(
        self, tree: TokenTree, batch: list[int], token_ids: list[int], text: list[int], skipped: SkipSet
    ) -> Tensor:
        """Logits of the next token after each node of `batch`; nodes at the block's end have no likely token."""
        assert self._drafted is not None, "a tree grows on a drafted block"
        logits, outputs = self._drafted
        rows = [min(tree.depths[node], len(logits) - 1) for node in batch]
        parents = self._block.ids([tree.token_ids[node] for node in batch])
        after = self._head.logits_after(logits[rows], outputs[rows], parents)
        is_beyond = [tree.depths[node] >= len(logits) for node in batch]
        if any(is_beyond):
            after = after.masked_fill(torch.tensor(is_beyond, device=after.device)[:, None], float("-inf"))
        return after

    def follow(self, tree: TokenTree, path: Iterable[int], places: dict[int, int], text: list[int]) -> None:
        assert not places, "a block is drafted behind one root"
        self._drafted = None
        self._root = len(text) - 1
