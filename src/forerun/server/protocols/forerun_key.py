"""The `forerun` key of an event: the source of each token in a round, the round's tree and its timeline."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from forerun.core.steps import DecodeStep, DraftedTree
from forerun.text.detokenizer import IncrementalDecoder
from forerun.text.tokenizer import Tokenizer

BONUS = "bonus"
DRAFT = "draft"


class RoundDetails:
    """Details of one text's rounds, for display. Times are milliseconds since the start of the first round."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pieces = IncrementalDecoder(tokenizer)
        self._num_rounds = 0
        self._began_s: float | None = None

    def of(self, step: DecodeStep) -> dict[str, Any]:
        """The details of the next round."""
        stats = step.stats
        self._num_rounds += 1
        if self._began_s is None and stats.spans:
            self._began_s = min(span.start_s for span in stats.spans)
        makers = who_guessed(stats.tree, len(step.token_ids), stats.num_accepted)
        texts = [self._pieces.feed((id_,)) for id_ in step.token_ids]
        if step.finish is not None:
            texts[-1] += self._pieces.flush()
        return {
            "round": self._num_rounds,
            "tokens": [
                {"id": id_, "text": text, "by": by} for id_, text, by in zip(step.token_ids, texts, makers, strict=True)
            ],
            "tree": None if stats.tree is None else tree_body(stats.tree, self._text_of),
            "spans": [
                {"who": span.lane, "begin_ms": self._ms(span.start_s), "end_ms": self._ms(span.end_s)}
                for span in stats.spans
            ],
            "draft_ms": round(stats.draft_s * 1e3, 3),
            "verify_ms": round(stats.verify_s * 1e3, 3),
            "drafted_by": stats.drafted_by,
            "drafter_state": stats.drafter.value,
            **({} if stats.skips is None else {"skips": asdict(stats.skips)}),
        }

    def _text_of(self, token_id: int) -> str:
        return self._tokenizer.decode((token_id,))

    def _ms(self, moment_s: float) -> float:
        return round((moment_s - (self._began_s or 0.0)) * 1e3, 3)


def who_guessed(tree: DraftedTree | None, num_tokens: int, num_accepted: int) -> Sequence[str]:
    """The source of each token in a round: the drafter of an accepted token, the target for the bonus token."""
    sources = () if tree is None else tree.sources
    drafted = [DRAFT] * num_accepted if tree is None else [sources[node] for node in tree.path]
    return [*drafted[:num_tokens], *[BONUS] * (num_tokens - len(drafted))]


def tree_body(tree: DraftedTree, text_of: Callable[[int], str]) -> dict[str, Any]:
    """A tree as JSON. Parents come before children, and the root's parent is -1."""
    return {
        "texts": [text_of(token_id) for token_id in tree.token_ids],
        "parents": list(tree.parents),
        "path": list(tree.path),
        "sources": list(tree.sources),
    }
