"""Log-probabilities in the formats of OpenAI's chat and completions, and of vLLM's prompts: those of the target, before
temperature, penalties and filters.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
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
        entries = [self.entry(item.token_id, item.logprob, item.top) for item in step.logprobs]
        return self.ended(entries) if step.finish is not None else entries

    def entry(self, token_id: int, logprob: float, top: Sequence[tuple[int, float]]) -> TokenEntry:
        """The entry of the next token."""
        text = self._pieces.feed((token_id,))
        offset = self._offset
        self._offset += len(text)
        named_top = [(self._tokenizer.decode((other,)), finite(value)) for other, value in top]
        return TokenEntry(text, finite(logprob), named_top, offset)

    def ended(self, entries: Sequence[TokenEntry]) -> list[TokenEntry]:
        """The text's last entries; the last one gets the text that was still held back."""
        return [*entries[:-1], *(replace(last, text=last.text + self._pieces.flush()) for last in entries[-1:])]


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """The log-probabilities of a prompt's tokens.

    Args:
        first_id: the first token, which has none.
        items: those of the other tokens; empty if none were requested.
    """

    tokenizer: Tokenizer
    first_id: int
    items: Sequence[TokenLogprob]

    def entries(self, num_top: int) -> list[TokenEntry]:
        """The entries of the tokens, with this many likeliest ones; the first one's log-probability means nothing."""
        tokens = TokenLogprobs(self.tokenizer, offset=0)
        first = tokens.entry(self.first_id, 0.0, ())
        others = [tokens.entry(item.token_id, item.logprob, item.top[:num_top]) for item in self.items]
        return tokens.ended([first, *others])

    def by_id(self, num_top: int | None) -> Body:
        """The key `prompt_logprobs` in vLLM's form: for each token, by id, first itself and then the likeliest ones;
        null for the first token. No key if `num_top` is None.
        """
        if num_top is None:
            return {}
        text_of = cache(lambda token_id: self.tokenizer.decode((token_id,)))

        def alternatives(item: TokenLogprob) -> Body:
            found = {item.token_id: (item.num_likelier, item.logprob)}
            for place, (token_id, logprob) in enumerate(item.top[:num_top]):
                found.setdefault(token_id, (place, logprob))
            return {
                str(token_id): {"logprob": finite(logprob), "rank": place + 1, "decoded_token": text_of(token_id)}
                for token_id, (place, logprob) in found.items()
            }

        return {"prompt_logprobs": [None, *map(alternatives, self.items)]}


def text_logprobs(written: Sequence[TokenEntry], echoed: Sequence[TokenEntry] = ()) -> Body | None:
    """Log-probabilities as in OpenAI's completions; None for none.

    Args:
        echoed: of the prompt before the text; null stands for the log-probability of its first token.
    """
    entries = [*echoed, *written]
    if not entries:
        return None
    nothing = [None] if echoed else []
    scored = entries[len(nothing) :]
    return {
        "tokens": [entry.text for entry in entries],
        "token_logprobs": [*nothing, *(entry.logprob for entry in scored)],
        "top_logprobs": [*nothing, *map(likeliest, scored)],
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
        if logprob is not None:
            found.setdefault(text, logprob)
    return found


def named(text: str, logprob: float | None) -> Body:
    """A token in the format of a chat answer."""
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
