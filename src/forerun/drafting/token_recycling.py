"""Draft from the target's latest top-k next tokens after each token (Token Recycling, arXiv 2408.08696).

Legend: N tokens, K successors kept per token, V vocabulary.
"""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace
from math import exp
from time import perf_counter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import TokenRecycling
from forerun.core.pace import Pace
from forerun.core.steps import Guessers
from forerun.drafting.drafter import Drafter, DraftOutcome, DraftReport, HasCosts, KeepsState, Measure, ReadsScores
from forerun.drafting.guessed_tree import GuessedTree
from forerun.drafting.policies import BEST_TREE, Loading, TreePolicy
from forerun.sampling.noise import KeyedNoise
from forerun.sampling.sample import TopK
from forerun.speculation.referee.budget import DraftCosts, ProposedTree, RowBudget
from forerun.speculation.tree import TokenTree

NUM_CHILDREN: Final = 4  # per expanded node
ROOT_CHILDREN: Final = 8  # more children of the root use the rows of a pass where rows are cheap
EXPANSION: Final = Pace(steps=((1, 50e-6), (4, 100e-6)))  # seconds of Python on Zen 5 cores, until measured here
COLDEST: Final = 0.05  # lowest temperature used for ranking, so that no power of a probability becomes 0
LEAST_REST: Final = 1e-4  # least probability of all tokens that are not kept; the precision of float32 sums
MEAN_NOISE: Final = exp(np.euler_gamma)  # the mean of Gumbel noise as a factor on a probability
RECYCLED: Final = Guessers(grown="recycled", chain="lookup")
BATCH: Final = 4  # nodes expanded together; numpy calls take as long for four as for one
MOST_OWNERS: Final = 4  # owners whose tables are kept: 6 MB each for SmolLM2, 20 MB for 152,000 tokens
NUM_KEPT: Final = 16  # successors per token, the kernels' maximum; at temperature 1 even the ninth is useful
HEADER: Final = struct.Struct("<8sIIII")  # magic, vocabulary, successors of a token, tokens, checksum of the rest
MAGIC: Final = b"frsucc1\n"
ROW: Final = np.dtype([("token", "<i4"), ("successors", "<i4", NUM_KEPT), ("log_probs", "<f2", NUM_KEPT)])


class SuccessorTable:
    """For each token, its likely next tokens and their log-probabilities, likeliest first.

    Its size is fixed: 129 bytes per token of the vocabulary.

    Source: the adjacency matrix of Token Recycling, arXiv 2408.08696, section 3.1; ours keeps probabilities too.
    """

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._forget()

    def _forget(self) -> None:
        self._is_known = bytearray(self.vocab_size)
        self._successors = np.zeros((self.vocab_size, NUM_KEPT), np.int32)
        self._log_probs = np.full((self.vocab_size, NUM_KEPT), -np.inf, np.float32)

    def __contains__(self, token_id: int) -> bool:
        """Whether successors of this token are known."""
        return self._is_known[token_id] == 1

    @property
    def num_known(self) -> int:
        """Number of tokens with known successors."""
        return self._is_known.count(1)

    def store(
        self, token_ids: Sequence[int], successors: Sequence[Sequence[int]], log_probs: Sequence[Sequence[float]]
    ) -> None:
        """Replace the successors of these tokens; if a token occurs twice, the last entry is stored."""
        width = len(successors[0])  # less than K in a small vocabulary; the other entries keep probability 0
        self._successors[token_ids, :width] = successors
        self._log_probs[token_ids, :width] = log_probs
        for token_id in token_ids:
            self._is_known[token_id] = 1

    def rows(self, token_ids: Sequence[int]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """[N, K] successors of these tokens, and their log-probabilities."""
        return self._successors.take(token_ids, 0), self._log_probs.take(token_ids, 0)

    def to_bytes(self) -> bytes:
        """The known successors, for `restore` in a later process."""
        known = np.flatnonzero(np.frombuffer(self._is_known, np.bool_))
        rows = np.empty(len(known), ROW)
        rows["token"] = known
        rows["successors"] = self._successors[known]
        rows["log_probs"] = self._log_probs[known]
        body = rows.tobytes()
        return HEADER.pack(MAGIC, self.vocab_size, NUM_KEPT, len(known), zlib.crc32(body)) + body

    def restore(self, data: bytes) -> bool:
        """Load the output of `to_bytes`; False if the bytes are invalid, and the table is then empty.

        Bytes that are damaged or from another model can only cost speed, since ids outside the vocabulary are refused.
        """
        self._forget()
        if len(data) < HEADER.size:
            return False
        magic, vocab_size, num_kept, num_rows, checksum = HEADER.unpack_from(data)
        body = memoryview(data)[HEADER.size :]
        is_ours = (magic, vocab_size, num_kept) == (MAGIC, self.vocab_size, NUM_KEPT)
        if not is_ours or len(body) != num_rows * ROW.itemsize or zlib.crc32(body) != checksum:
            return False
        rows = np.frombuffer(body, ROW)
        for ids in (rows["token"], rows["successors"]):
            if ids.size and not 0 <= ids.min() <= ids.max() < vocab_size:
                return False
        if np.isnan(rows["log_probs"]).any() or (rows["log_probs"] > 0).any():
            return False
        if num_rows:
            self.store(rows["token"].tolist(), rows["successors"].tolist(), rows["log_probs"].tolist())
        return True


class TokenRecyclingDrafter(Drafter, ReadsScores, HasCosts, KeepsState):
    """Grows a tree from a table of successors, which every verified row of the target updates.

    It needs no draft passes. Rows of rejected nodes update the table too.

    Every owner has a separate table, because a table reveals words of the texts it was built from. Only the table of
    texts without an owner is saved for the next start.
    """

    num_successors = NUM_KEPT

    def __init__(self, config: TokenRecycling, policy: TreePolicy = BEST_TREE, *, target_vocab_size: int) -> None:
        self.verify_width = config.verify_width
        self._knows_noise = policy.knows_noise
        self.table = self._nobodys = SuccessorTable(target_vocab_size)
        self._tables: dict[str, SuccessorTable] = {}  # by owner, least recently used first
        self._guessed = GuessedTree(
            replace(policy, min_mass=0.0),  # an expansion costs next to nothing
            verify_width=config.verify_width,
            draft_width=BATCH,
            calibrates=config.adaptive,
        )

    def measure_costs(self, measure: Measure) -> DraftCosts:
        return DraftCosts(expansion=EXPANSION)

    def begin(
        self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None, owner: str = ""
    ) -> None:
        self.table = self._table_of(owner)
        self._guessed.reset(prompt_ids)
        self._num_tokens = len(prompt_ids)
        self._pending = list[int]()
        self._temperature = max(params.temperature, COLDEST)
        self._noise = noise if self._knows_noise else None
        self._seen: tuple[TokenTree, TopK] | None = None

    def propose(self, budget: RowBudget) -> ProposedTree:
        self._apply_told()
        while batch := self._guessed.next_batch(budget):
            self._expand(batch, budget)
        return self._guessed.proposal()

    def told_successors(self, tree: TokenTree, successors: TopK) -> None:
        self._seen = tree, successors

    def told(self, outcome: DraftOutcome) -> DraftReport:
        self._store_successors(outcome.path)
        self._pending += outcome.tokens
        return DraftReport(guessers=RECYCLED)

    def state(self) -> bytes:
        return self._nobodys.to_bytes()

    def restore(self, state: bytes) -> bool:
        return self._nobodys.restore(state)

    def _table_of(self, owner: str) -> SuccessorTable:
        if not owner:
            return self._nobodys
        known = self._tables.pop(owner, None)
        self._tables[owner] = SuccessorTable(self._nobodys.vocab_size) if known is None else known
        while len(self._tables) > MOST_OWNERS:
            del self._tables[next(iter(self._tables))]
        return self._tables[owner]

    def _apply_told(self) -> None:
        """Apply to the tree the tokens committed since the last proposal."""
        if self._pending:
            token_ids = self._pending
            self._pending = []
            self._num_tokens += len(token_ids)
            self._guessed.advance(token_ids)

    def _store_successors(self, path: Sequence[int]) -> None:
        """Update the successors of the verified tokens; rows of accepted nodes overwrite those of rejected ones."""
        if self._seen is None:
            return
        (tree, (successors, log_probs)), self._seen = self._seen, None
        accepted = (0, *path)
        nodes = [*(node for node in range(len(tree)) if node not in accepted), *accepted]
        self.table.store(
            [tree.token_ids[node] for node in nodes],
            [successors[node] for node in nodes],
            [log_probs[node] for node in nodes],
        )

    def _expand(self, batch: Sequence[int], budget: RowBudget) -> None:
        began = perf_counter()
        tree = self._guessed.tree
        nodes = [node for node in batch if tree.token_ids[node] in self.table]
        if nodes:
            ids, log_probs = self._successors(nodes)
            most = ROOT_CHILDREN if nodes[0] == 0 else NUM_CHILDREN
            self._guessed.add_children(nodes, ids[:, :most].tolist(), log_probs[:, :most].tolist(), budget)
        budget.measure_expansion(len(batch), perf_counter() - began)

    def _successors(self, nodes: Sequence[int]) -> tuple[NDArray[np.int32], NDArray[np.floating]]:
        """[N, K] likeliest next tokens after these nodes, best first, and their log-probabilities."""
        tree = self._guessed.tree
        ids_NK, log_probs_NK = self.table.rows([tree.token_ids[node] for node in nodes])
        if self._noise is None:
            return ids_NK, log_probs_NK
        places = [self._num_tokens + tree.depths[node] for node in nodes]
        return ranked(ids_NK, log_probs_NK, self._noise.of(places, ids_NK), self._temperature)


def ranked(
    ids_NK: NDArray[np.int32], log_probs_NK: NDArray[np.float32], noise_NK: NDArray[np.float64], temperature: float
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Successors by perturbed score, best first, and the log-probability that the target samples each of them.

    All other tokens are treated as one token with mean noise.
    """
    rest_N1 = np.maximum(1.0 - np.exp(log_probs_NK).sum(-1, keepdims=True), LEAST_REST)
    totals_NK = noise_NK + log_probs_NK / temperature
    totals_NK -= np.log(np.exp(totals_NK).sum(-1, keepdims=True) + MEAN_NOISE * rest_N1 ** (1.0 / temperature))
    order_NK = totals_NK.argsort(-1)[:, : -ROOT_CHILDREN - 1 : -1]
    rows_N1 = np.arange(len(ids_NK))[:, None]
    return ids_NK[rows_N1, order_NK], totals_NK[rows_N1, order_NK]


def load(config: TokenRecycling, loading: Loading) -> TokenRecyclingDrafter:
    return TokenRecyclingDrafter(config, loading.policies.tree, target_vocab_size=loading.spec.vocab_size)
