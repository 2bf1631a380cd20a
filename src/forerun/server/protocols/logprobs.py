"""Log-probabilities in the formats of OpenAI's chat and completions: those of the target, before temperature, penalties
and filters.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from forerun.core.steps import DecodeStep, TokenLogprob
from forerun.server.protocols.sse import Body
from forerun.text.detokenizer import IncrementalDecoder
from forerun.text.tokenizer import Tokenizer

IMPOSSIBLE: Final = -9999.0


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """One token of a text.

    Args:
        text: the text that the token adds.
        top: the likeliest tokens at its place, likeliest first, with their log-probabilities.
        offset: its place in the text, in characters.
    """

    text: str
    logprob: float
    top: Sequence[tuple[str, float]]
    offset: int


class TokenLogprobs:
    """The log-probabilities of one text's tokens.

    A token's text is the text that it adds, so the token texts joined give the whole text. If a character takes several
    tokens, it belongs to the last one. Alternative tokens are decoded separately.

    Args:
        offset: length in characters of the echoed prompt before the text.
    """

    def __init__(self, tokenizer: Tokenizer, *, offset: int) -> None:
        self._tokenizer = tokenizer
        self._offset = offset
        self._pieces = IncrementalDecoder(tokenizer)

    def of(self, step: DecodeStep) -> list[TokenEntry]:
        """The entries of a step's tokens; none if the request wants none."""
        entries = [self._entry(item) for item in step.logprobs]
        if entries and step.finish is not None:
            entries[-1] = replace(entries[-1], text=entries[-1].text + self._pieces.flush())
        return entries

    def _entry(self, item: TokenLogprob) -> TokenEntry:
        text = self._pieces.feed((item.token_id,))
        offset = self._offset
        self._offset += len(text)
        top = [(self._tokenizer.decode((token_id,)), finite(logprob)) for token_id, logprob in item.top]
        return TokenEntry(text, finite(item.logprob), top, offset)


def text_logprobs(entries: Sequence[TokenEntry]) -> Body | None:
    """Log-probabilities as in OpenAI's completions; None for none."""
    if not entries:
        return None
    return {
        "tokens": [entry.text for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [likeliest(entry) for entry in entries],
        "text_offset": [entry.offset for entry in entries],
    }


def chat_logprobs(entries: Sequence[TokenEntry]) -> Body | None:
    """Log-probabilities as in OpenAI's chat; None for none."""
    return {"content": token_bodies(entries), "refusal": None} if entries else None


def token_bodies(entries: Sequence[TokenEntry]) -> list[Body]:
    """The tokens in the form of a chat answer."""
    return [
        {**named(entry.text, entry.logprob), "top_logprobs": [named(text, logprob) for text, logprob in entry.top]}
        for entry in entries
    ]


def finite(logprob: float) -> float:
    """The value, or at least -9999, which OpenAI writes for impossible tokens since JSON has no infinity."""
    return max(logprob, IMPOSSIBLE)


def likeliest(entry: TokenEntry) -> dict[str, float]:
    """Log-probabilities by token text, likeliest first, and including the chosen token, as in OpenAI and vLLM.

    Several tokens may have the same text, such as parts of a character; the likeliest is kept.
    """
    found: dict[str, float] = {}
    for text, logprob in (*entry.top, (entry.text, entry.logprob)):
        found.setdefault(text, logprob)
    return found


def named(text: str, logprob: float) -> Body:
    """A token in the format of a chat answer."""
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
