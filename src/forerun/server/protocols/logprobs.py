"""Log-probabilities in the formats of OpenAI's chat and completions: those of the target, before temperature, penalties
and filters.
"""

from collections.abc import Sequence
from typing import Any, Final

from forerun.core.steps import DecodeStep, TokenLogprob
from forerun.text.tokenizer import IncrementalDecoder, Tokenizer

IMPOSSIBLE: Final = -9999.0


class LogprobWriter:
    """The log-probabilities of one text's tokens.

    A token's text is what it adds to the text before it, so the token texts joined give the whole text. If a character
    takes several tokens, it belongs to the last one. Alternative tokens are decoded separately.

    Args:
        offset: length in characters of the echoed prompt before the text.
    """

    def __init__(self, tokenizer: Tokenizer, *, is_chat: bool, offset: int) -> None:
        self._tokenizer, self._is_chat, self._offset = tokenizer, is_chat, offset
        self._pieces = IncrementalDecoder(tokenizer)
        self._all: list[dict[str, Any]] = []

    def of(self, step: DecodeStep) -> dict[str, Any] | None:
        """The log-probabilities of a step's tokens; None if the request wants none."""
        entries = [self._entry(item) for item in step.logprobs]
        if entries and step.finish is not None:
            entries[-1]["token"] += self._pieces.flush()
        self._all += entries
        return self._body(entries) if entries else None

    def whole(self) -> dict[str, Any] | None:
        """The log-probabilities of all tokens; None if there are none."""
        return self._body(self._all) if self._all else None

    def _entry(self, item: TokenLogprob) -> dict[str, Any]:
        text, offset = self._pieces.feed((item.token_id,)), self._offset
        self._offset += len(text)
        top = [(self._tokenizer.decode((token_id,)), finite(logprob)) for token_id, logprob in item.top]
        return {"token": text, "logprob": finite(item.logprob), "top": top, "offset": offset}

    def _body(self, entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
        if not self._is_chat:
            return {
                "tokens": [entry["token"] for entry in entries],
                "token_logprobs": [entry["logprob"] for entry in entries],
                "top_logprobs": [likeliest(entry["top"], entry) for entry in entries],
                "text_offset": [entry["offset"] for entry in entries],
            }
        content = [
            {
                **named(entry["token"], entry["logprob"]),
                "top_logprobs": [named(text, logprob) for text, logprob in entry["top"]],
            }
            for entry in entries
        ]
        return {"content": content, "refusal": None}


def finite(logprob: float) -> float:
    """The value, or at least -9999, which OpenAI writes for impossible tokens since JSON has no infinity."""
    return max(logprob, IMPOSSIBLE)


def likeliest(top: Sequence[tuple[str, float]], entry: dict[str, Any]) -> dict[str, float]:
    """Log-probabilities by token text, likeliest first, and including the chosen token, as in OpenAI and vLLM.

    Several tokens may have the same text, such as parts of a character; the likeliest is kept.
    """
    found: dict[str, float] = {}
    for text, logprob in (*top, (entry["token"], entry["logprob"])):
        found.setdefault(text, logprob)
    return found


def named(text: str, logprob: float) -> dict[str, Any]:
    """A token in the format of a chat answer."""
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
