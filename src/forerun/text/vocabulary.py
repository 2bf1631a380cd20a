"""Compares the vocabularies of two models: a draft is useful only if its ids stand for the target's tokens."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from forerun.core.errors import VocabularyError
from forerun.text.tokenizer import Tokenizer

MAX_IDS: Final = 2**20  # four times the largest published vocabulary; ids beyond it are not compared
# The share of trained tokens of both sides that may differ. CodeLlama's infilling tokens are one in 2,000 of Llama 2's,
# and Llama 2 drafts for it well; two vocabularies that were trained separately differ in nearly all their ids.
MAX_TRAINED_SHARE: Final = 1 / 1000
MAX_NAMED: Final = 3
TEXT_BITS = 2**31 - 1
ADDED_BIT = 2**31
UNKNOWN: Final = "another token"

logger = logging.getLogger(__name__)


class Fit(StrEnum):
    """Whether a draft fits a target, judged by their tokens only."""

    WHOLE = "yes"
    PARTIAL = "yes, with a warning"
    NONE = "no"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Vocabulary:
    """The tokens of a model's ids, in four bytes each, compact enough to send to another process.

    Args:
        marks: [V] uint32; 0 if an id has no token, else 31 bits of its text's CRC; the highest bit marks an added
            token. Two different tokens are taken as equal once in two billion.
        tokens: the texts by id; None if only the marks are known.
    """

    marks: npt.NDArray[np.uint32]
    tokens: Mapping[int, str] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Vocabulary":
        tokens = {id_: token for token, id_ in tokenizer.vocabulary().items() if id_ < MAX_IDS}
        marks = np.zeros(max(tokens, default=-1) + 1, dtype=np.uint32)
        marks[list(tokens)] = [crc32(token.encode()) & TEXT_BITS or 1 for token in tokens.values()]
        marks[[id_ for id_ in tokenizer.added_ids if id_ in tokens]] |= np.uint32(ADDED_BIT)
        return cls(marks=marks, tokens=tokens)

    @classmethod
    def from_bytes(cls, payload: bytes) -> "Vocabulary":
        return cls(marks=np.frombuffer(payload, dtype="<u4"))

    def to_bytes(self) -> bytes:
        return self.marks.astype("<u4").tobytes()

    @property
    def fingerprint(self) -> str:
        """A checksum of the tokens and their ids. It does not depend on which tokens are listed as added ones."""
        return f"{crc32((self.marks & TEXT_BITS).astype('<u4').tobytes()):08x}"

    def token(self, id_: int) -> str | None:
        """None: this id has no token."""
        if id_ >= len(self.marks) or not self.marks[id_]:
            return None
        return UNKNOWN if self.tokens is None else self.tokens[id_]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDifference:
    """One id under which two vocabularies have different tokens; None: none at all."""

    token_id: int
    target_token: str | None
    draft_token: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyMatch:
    """Two vocabularies compared id by id. Ids that have no token on either side (padding of a head) are ignored.

    Args:
        num_shared: ids that have the same token on both sides. Whether it is listed as an added one does not matter,
            because only the target's tokenizer encodes text.
        num_trained: ids of trained tokens on either side.
        num_trained_unequal: trained tokens without the same token on the other side.
        unequal: all ids that do not have the same token on both sides, in ascending order.
    """

    num_shared: int
    num_trained: int
    num_trained_unequal: int
    unequal: tuple[TokenDifference, ...]

    @property
    def fit(self) -> Fit:
        """Trained tokens decide: if they differ, the draft cannot propose what the target writes.

        Added tokens (chat markers, reserved ids) do not change the trained vocabulary. If they differ, a draft guesses
        some tokens wrong and misreads some context, but the target's text does not change.
        """
        if self.num_trained_unequal > MAX_TRAINED_SHARE * self.num_trained:
            return Fit.NONE
        return Fit.PARTIAL if self.unequal else Fit.WHOLE

    @property
    def differences(self) -> tuple[TokenDifference, ...]:
        """Ids that have a token on both sides, but not the same."""
        return tuple(entry for entry in self.unequal if None not in (entry.target_token, entry.draft_token))

    @property
    def only_in_target(self) -> tuple[TokenDifference, ...]:
        return tuple(entry for entry in self.unequal if entry.draft_token is None)

    @property
    def only_in_draft(self) -> tuple[TokenDifference, ...]:
        return tuple(entry for entry in self.unequal if entry.target_token is None)

    def explain(self, *, target_name: str, draft_name: str) -> str:
        """What differs, the first differences, and their consequence."""
        first = "; ".join(
            f"id {entry.token_id} is {_quoted(entry.target_token)} in the target, {_quoted(entry.draft_token)} in the "
            "draft"
            for entry in self.unequal[:MAX_NAMED]
        )
        trained = f"{self.num_trained_unequal} of {self.num_trained} trained tokens"
        if self.fit is Fit.NONE:
            return (
                f"{target_name} and {draft_name} do not share their tokens: {trained} differ. First: {first}. "
                "Speculation needs the same tokens under the same ids; take a draft of the target's own family, or "
                "name no draft: auto needs none"
            )
        num_added = len(self.unequal) - self.num_trained_unequal
        return (
            f"{target_name} and {draft_name} differ in {num_added} added tokens and {trained}. First: {first}. The "
            "text stays the same; where these tokens are used, drafting gains less"
        )


def compare_vocabularies(target: Vocabulary, draft: Vocabulary) -> VocabularyMatch:
    """Compare two vocabularies id by id; see `VocabularyMatch.fit` for what counts as a match."""
    num_ids = max(len(target.marks), len(draft.marks))
    of_target, of_draft = (np.pad(side.marks, (0, num_ids - len(side.marks))) for side in (target, draft))
    is_unequal = ((of_target ^ of_draft) & TEXT_BITS) != 0
    is_trained = _is_trained(of_target) | _is_trained(of_draft)
    return VocabularyMatch(
        num_shared=int(((of_target != 0) & ~is_unequal).sum()),
        num_trained=int(is_trained.sum()),
        num_trained_unequal=int((is_trained & is_unequal).sum()),
        unequal=tuple(
            TokenDifference(token_id=id_, target_token=target.token(id_), draft_token=draft.token(id_))
            for id_ in np.flatnonzero(is_unequal).tolist()
        ),
    )


def require_match(
    target: Tokenizer, draft: Tokenizer, *, target_name: str = "target", draft_name: str = "draft"
) -> None:
    """Refuse a pair whose trained tokens differ, and warn of one whose added tokens do.

    Raises:
        VocabularyError: names the first differing ids with both tokens.
    """
    fault = find_mismatch(Vocabulary.of(target), Vocabulary.of(draft), target_name=target_name, draft_name=draft_name)
    if fault is not None:
        raise VocabularyError(fault)


def find_mismatch(target: Vocabulary, draft: Vocabulary, *, target_name: str, draft_name: str) -> str | None:
    """Why the draft cannot draft for the target, or None; if it fits only in part, a warning is logged."""
    match = compare_vocabularies(target, draft)
    explanation = match.explain(target_name=target_name, draft_name=draft_name)
    if match.fit is Fit.NONE:
        return explanation
    if match.fit is Fit.PARTIAL:
        logger.warning("%s", explanation)
    return None


def find_map_fault(num_mapped: int, num_target: int, *, target_name: str, draft_name: str) -> str | None:
    """The reason if a draft with a part of its target's tokens was made for another target, else None.

    Args:
        num_mapped: number of ids of the target that the draft was made for.
        num_target: number of ids of this target.
    """
    if num_mapped == num_target:
        return None
    return (
        f"{draft_name} has a part of the tokens of a target with {num_mapped} ids, but {target_name} has {num_target}: "
        "take the draft that was made for it, or name no draft: auto needs none"
    )


def _is_trained(marks: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
    trained: npt.NDArray[np.bool_] = (marks != 0) & (marks & ADDED_BIT == 0)
    return trained


def _quoted(token: str | None) -> str:
    return "missing" if token is None else token if token is UNKNOWN else repr(token)
