"""The forerun key of an event: who guessed each token of a round, its tree, and who worked when."""

from collections.abc import Callable, Sequence
from typing import Any

from forerun.core.steps import DecodeStep, DraftedTree
from forerun.text.tokenizer import IncrementalDecoder, Tokenizer

BONUS, DRAFT = "bonus", "draft"


class RoundDetails:
    """Details of one text's rounds, for a page that shows them. Times are milliseconds since the first began."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pieces = IncrementalDecoder(tokenizer)
        self._num_rounds = 0
        self._began_s: float | None = None

    def of(self, step: DecodeStep) -> dict[str, Any]:
        """The next round."""
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
        }

    def _text_of(self, token_id: int) -> str:
        return self._tokenizer.decode((token_id,))

    def _ms(self, moment_s: float) -> float:
        return round((moment_s - (self._began_s or 0.0)) * 1e3, 3)


def who_guessed(tree: DraftedTree | None, num_tokens: int, num_accepted: int) -> Sequence[str]:
    """Who each token of a round comes from: accepted ones from what drafted them, the bonus token from the target."""
    sources = () if tree is None else tree.sources
    drafted = [DRAFT] * num_accepted if tree is None else [sources[node] for node in tree.path]
    return [*drafted[:num_tokens], *[BONUS] * (num_tokens - len(drafted))]


def tree_body(tree: DraftedTree, text_of: Callable[[int], str]) -> dict[str, Any]:
    """A tree as a page draws it; parents come before children, and the root's parent is -1."""
    return {
        "texts": [text_of(token_id) for token_id in tree.token_ids],
        "parents": list(tree.parents),
        "path": list(tree.path),
        "sources": list(tree.sources),
    }
