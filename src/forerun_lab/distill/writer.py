"""The target writes many texts at once; its likeliest next tokens at every position are stored.

Legend: B texts at once, N rows, V vocabulary, K scores kept for each row, T tokens of a text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from forerun_lab.distill.network import Network, TextCache

BLOCK = 64  # scores per block: 2.4 times as fast as torch.topk over 49,152 scores on two cores


def top_scores(scores_NV: Tensor, num_kept: int) -> tuple[Tensor, Tensor]:
    """The largest scores of every row and their indices, [N, K] each, in descending order.

    The K largest scores are always in the K blocks with the largest maxima.
    """
    num_rows, num_scores = scores_NV.shape
    num_blocks = -(-num_scores // BLOCK)
    if num_blocks <= 2 * num_kept:
        return torch.topk(scores_NV, min(num_kept, num_scores))
    padded = functional.pad(scores_NV, (0, num_blocks * BLOCK - num_scores), value=float("-inf"))
    blocks_NPB = padded.view(num_rows, num_blocks, BLOCK)
    chosen_NK = blocks_NPB.amax(-1).topk(num_kept).indices
    candidates = blocks_NPB.gather(1, chosen_NK[:, :, None].expand(-1, -1, BLOCK)).flatten(1)
    values, places = candidates.topk(num_kept)
    return values, chosen_NK.gather(1, places // BLOCK) * BLOCK + places % BLOCK


NUM_KEPT: Final = 32  # likeliest next tokens kept for every row: over 0.97 of the probability in chat answers
MAX_TURN: Final = 96  # tokens of a turn that the model writes for the user
TURN_TEMPERATURE: Final = 0.8  # of a turn written for the user: at 1 a small model becomes incoherent
ROWS_AT_ONCE: Final = 64  # tokens of each text per pass when texts are read again


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The beginning of a text.

    Args:
        token_ids: given to the model.
        turn: tokens added after a turn that the model writes for the user; the first one ends that turn. Empty: the
            model writes no such turn.
        temperature: of the model's answer; a user's turn is written at TURN_TEMPERATURE.
        length: most tokens of the text.
    """

    token_ids: tuple[int, ...]
    turn: tuple[int, ...] = ()
    temperature: float
    length: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WrittenText:
    """A text, and the target's likeliest next tokens after each of its tokens.

    Args:
        token_ids: [T] int32.
        num_given: how many of them are the opening.
        top_ids, top_log_probs: [T, K] int32 and float16.
    """

    token_ids: Tensor
    num_given: int
    top_ids: Tensor
    top_log_probs: Tensor

    @property
    def first_row(self) -> int:
        """The first row to learn from, which predicts the token after the opening."""
        return max(self.num_given - 1, 0)

    @property
    def num_rows(self) -> int:
        """Number of rows to learn from; 0 if the text was interrupted within its opening."""
        return max(len(self.token_ids) - self.first_row, 0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnfinishedText:
    """A text that was interrupted while it was written.

    Args:
        read: the part that the model has read.
        ids: all its tokens, including those the model has not read yet.
        is_users: whether the model is writing the user's turn.
    """

    read: WrittenText
    opening: Opening
    ids: tuple[int, ...]
    is_users: bool


class _Slot:
    """A text that is being written; its ids are read one by one."""

    def __init__(self, opening: Opening) -> None:
        self.opening = opening
        self.ids = list(opening.token_ids)
        self.is_users = bool(opening.turn)
        self.turn_end = min(len(opening.token_ids) + MAX_TURN, opening.length - len(opening.turn) - 1)

    @property
    def temperature(self) -> float:
        return TURN_TEMPERATURE if self.is_users else self.opening.temperature

    def go_on(self, token: int) -> None:
        """Append the model's token; if it ends a user's turn, append the tokens that open the answer instead."""
        if self.is_users and (token == self.opening.turn[0] or len(self.ids) + 1 >= self.turn_end):
            self.ids += self.opening.turn
            self.is_users = False
        else:
            self.ids.append(token)


class TextWriter:
    """Writes `num_texts` texts at once; when one ends, the next opening takes its place.

    Args:
        stop_ids: tokens that end a text.
        num_slots: tokens of the longest text.
        prefix: tokens that many openings begin with; they are read once for all of them.
    """

    def __init__(
        self,
        network: Network,
        openings: Iterator[Opening],
        *,
        stop_ids: Sequence[int],
        num_texts: int,
        num_slots: int,
        seed: int,
        prefix: Sequence[int] = (),
        unfinished: Sequence[UnfinishedText] = (),
    ) -> None:
        like = next(network.parameters())
        self._network = network
        self._openings = openings
        self._stops = frozenset(stop_ids)
        self._cache = TextCache(
            network.spec, num_texts=num_texts, num_slots=num_slots, dtype=like.dtype, device=str(like.device)
        )
        num_kept = min(NUM_KEPT, network.spec.vocab_size)
        self._top_ids = torch.zeros(num_texts, num_slots, num_kept, dtype=torch.int32)
        self._top_log_probs = torch.zeros(num_texts, num_slots, num_kept, dtype=torch.float16)
        self._random = torch.Generator(device=like.device).manual_seed(seed)
        self._prefix = tuple(prefix[:-1])  # every text reads the last token itself, to get the scores after it
        self._read_prefix()
        self._slots = [self._start_text(number) for number in range(num_texts)]
        self._resume(unfinished[:num_texts])

    @torch.inference_mode()
    def step(self) -> list[WrittenText]:
        """Run one pass, which reads one token of every text. Returns the texts that ended."""
        cache = self._cache
        lengths = self._cache.lengths.tolist()
        read = [slot.ids[length] for slot, length in zip(self._slots, lengths, strict=True)]
        ids_B1 = torch.tensor(read, device=cache.lengths.device)[:, None]
        scores_BV = self._network.logits(self._network.hidden(ids_B1, cache)[:, 0]).float().log_softmax(-1)
        top, top_ids = top_scores(scores_BV, self._top_ids.shape[2])
        chosen = self._choose(scores_BV, top, top_ids).tolist()
        rows = torch.arange(len(lengths))
        places = torch.tensor(lengths)
        self._top_ids[rows, places] = top_ids.cpu().int()
        self._top_log_probs[rows, places] = top.cpu().half()
        ended = []
        for number, (slot, length, token) in enumerate(zip(self._slots, lengths, chosen, strict=True)):
            if length + 1 == len(slot.ids):
                if (token in self._stops and not slot.is_users) or len(slot.ids) >= slot.opening.length:
                    ended.append(self._text(number, slot))
                    self._slots[number] = self._start_text(number)
                else:
                    slot.go_on(token)
        return ended

    def unfinished(self) -> list[UnfinishedText]:
        """Every text that has not ended."""
        return [
            UnfinishedText(
                read=self._text(number, slot), opening=slot.opening, ids=tuple(slot.ids), is_users=slot.is_users
            )
            for number, slot in enumerate(self._slots)
        ]

    def _choose(self, scores_BV: Tensor, top: Tensor, top_ids: Tensor) -> Tensor:
        """Sample a token for every row at its text's temperature; below 1, only from the kept tokens."""
        temperatures = torch.tensor([slot.temperature for slot in self._slots], device=top.device)[:, None]
        kept = (top / temperatures.clamp(min=1e-3)).softmax(-1)
        chosen = top_ids.gather(1, kept.multinomial(1, generator=self._random))[:, 0]
        missing = 1.0 - top.exp().sum(-1)
        is_other = (torch.rand(len(top), generator=self._random, device=top.device) < missing) & (
            temperatures[:, 0] >= 1
        )
        others = is_other.nonzero()[:, 0]
        if len(others) and top.shape[1] < scores_BV.shape[1]:
            rest = scores_BV[others].exp().scatter(1, top_ids[others], 0.0)
            chosen[others] = rest.multinomial(1, generator=self._random)[:, 0]
        return torch.where(temperatures[:, 0] > 0, chosen, top_ids[:, 0])

    def _start_text(self, number: int) -> _Slot:
        """Begin the next text; if it begins with the prefix, copy the prefix's keys and values."""
        slot = _Slot(next(self._openings))
        num_read = len(self._prefix)
        begins_alike = num_read > 0 and slot.opening.token_ids[:num_read] == self._prefix
        if begins_alike:
            self._cache.values[:, :, number, :, :num_read] = self._prefix_values
        self._cache.lengths[number] = num_read if begins_alike else 0
        return slot

    @torch.inference_mode()
    def _read_prefix(self) -> None:
        like = next(self._network.parameters())
        num_read = len(self._prefix)
        cache = TextCache(
            self._network.spec, num_texts=1, num_slots=max(1, num_read), dtype=like.dtype, device=str(like.device)
        )
        if num_read:
            self._network.hidden(torch.tensor([self._prefix], device=like.device), cache)
        self._prefix_values = cache.values[:, :, 0, :, :num_read]

    @torch.inference_mode()
    def _resume(self, unfinished: Sequence[UnfinishedText]) -> None:
        """Continue interrupted texts; their tokens are read again, ROWS_AT_ONCE of each text in a pass."""
        if not unfinished:
            return
        lengths = self._cache.lengths.tolist()
        for number, left in enumerate(unfinished):
            slot = self._slots[number] = _Slot(left.opening)
            slot.ids = list(left.ids)
            slot.is_users = left.is_users
            lengths[number] = num_read = len(left.read.token_ids)
            self._top_ids[number, :num_read] = left.read.top_ids
            self._top_log_probs[number, :num_read] = left.read.top_log_probs
        longest = max(lengths)
        ids_BT = torch.tensor(
            [[*slot.ids[:longest], *[0] * (longest - len(slot.ids))] for slot in self._slots],
            device=self._cache.lengths.device,
        )
        self._cache.lengths.zero_()
        for ids in torch.split(ids_BT, ROWS_AT_ONCE, dim=1):
            self._network.hidden(ids, self._cache)
        self._cache.lengths.copy_(torch.tensor(lengths))

    def _text(self, number: int, slot: _Slot) -> WrittenText:
        """The part of the text that the model has read."""
        num_read = int(self._cache.lengths[number])
        return WrittenText(
            token_ids=torch.tensor(slot.ids[:num_read], dtype=torch.int32),
            num_given=len(slot.opening.token_ids),
            top_ids=self._top_ids[number, :num_read].clone(),
            top_log_probs=self._top_log_probs[number, :num_read].clone(),
        )
