"""Do two models mean the same tokens by the same ids? A drafter's ids are only of use if they do."""

import json
from dataclasses import dataclass
from hashlib import sha256

from forerun.core.errors import VocabularyError
from forerun.engine.tokenizer import Tokenizer

MAX_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDifference:
    """One id under which two vocabularies have different tokens; None: none at all."""

    token_id: int
    target_token: str | None
    draft_token: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyMatch:
    """Two vocabularies compared id by id.

    Args:
        num_shared: ids that have the same token on both sides.
        differences: ids that have a token on both sides, but not the same, in ascending order.
        only_in_target: ids that only the target has a token for.
        only_in_draft: ids that only the draft has a token for.
        is_match: there are no differences, and a token known to one side only is an added token behind the last token
            of the other side. Such tokens (chat markers, say) are put behind a trained vocabulary without changing it;
            a trained token missing on one side is another vocabulary. Ids without a token on either side, the padding
            of a head, are not looked at.
    """

    num_shared: int
    differences: tuple[TokenDifference, ...]
    only_in_target: tuple[TokenDifference, ...]
    only_in_draft: tuple[TokenDifference, ...]
    is_match: bool

    def first_unequal(self, num: int) -> list[TokenDifference]:
        """The lowest ids that do not have the same token on both sides, `num` at most."""
        unequal = self.differences + self.only_in_target + self.only_in_draft
        return sorted(unequal, key=lambda entry: entry.token_id)[:num]


def compare_vocabularies(target: Tokenizer, draft: Tokenizer) -> VocabularyMatch:
    """Compare two vocabularies id by id; see `VocabularyMatch` for what counts as a match."""
    in_target = {id_: token for token, id_ in target.vocabulary().items()}
    in_draft = {id_: token for token, id_ in draft.vocabulary().items()}
    unequal = [
        TokenDifference(token_id=id_, target_token=in_target.get(id_), draft_token=in_draft.get(id_))
        for id_ in sorted(in_target.keys() | in_draft.keys())
        if in_target.get(id_) != in_draft.get(id_)
    ]
    differences = tuple(entry for entry in unequal if None not in (entry.target_token, entry.draft_token))
    only_in_target = tuple(entry for entry in unequal if entry.draft_token is None)
    only_in_draft = tuple(entry for entry in unequal if entry.target_token is None)
    end_of_shorter = min(max(in_target, default=-1), max(in_draft, default=-1))
    added = target.added_ids | draft.added_ids
    is_tail_of_added = all(
        entry.token_id > end_of_shorter and entry.token_id in added for entry in only_in_target + only_in_draft
    )
    return VocabularyMatch(
        num_shared=len(in_target.keys() | in_draft.keys()) - len(unequal),
        differences=differences,
        only_in_target=only_in_target,
        only_in_draft=only_in_draft,
        is_match=not differences and is_tail_of_added,
    )


def require_match(
    target: Tokenizer, draft: Tokenizer, *, target_name: str = "target", draft_name: str = "draft"
) -> None:
    """Refuse a pair whose vocabularies differ.

    Raises:
        VocabularyError: names the first differing ids with both tokens.
    """
    match = compare_vocabularies(target, draft)
    if not match.is_match:
        raise VocabularyError(describe_mismatch(match, target_name=target_name, draft_name=draft_name))


def describe_mismatch(match: VocabularyMatch, *, target_name: str, draft_name: str) -> str:
    """What differs, where first, and what to do about it."""
    first = "; ".join(
        f"id {entry.token_id} is {_quoted(entry.target_token)} in the target, {_quoted(entry.draft_token)} in the draft"
        for entry in match.first_unequal(MAX_NAMED)
    )
    num_unequal = len(match.differences) + len(match.only_in_target) + len(match.only_in_draft)
    return (
        f"{target_name} and {draft_name} do not share their tokens: {match.num_shared} ids agree, "
        f"{num_unequal} do not. First: {first}. Speculation needs the same tokens under the same ids; "
        "take a draft of the target's own family, or draft without a model (prompt_lookup)"
    )


def _quoted(token: str | None) -> str:
    return "missing" if token is None else repr(token)


def vocabulary_digest(tokenizer: Tokenizer) -> bytes:
    """32 bytes that two vocabularies share when their trained tokens have the same ids; added tokens are left out."""
    trained = sorted((id_, token) for token, id_ in tokenizer.vocabulary().items() if id_ not in tokenizer.added_ids)
    return sha256(json.dumps(trained).encode()).digest()
