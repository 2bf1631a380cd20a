"""The perplexity of a text under a model: the exponential of the mean negative log-probability of its tokens."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from forerun.core.config import SamplingParams
from forerun.core.errors import require
from forerun.core.steps import PLAIN
from forerun.engine.engine import Engine

LEAST_CHUNK: Final = 4  # tokens, of which one is scored
SCORES: Final = SamplingParams(max_new_tokens=1, ignore_eos=True, prompt_logprobs=0)


class Losses:
    """Sums over the negative log-probabilities of tokens."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self._total = self._squares = 0.0

    def add(self, losses: Iterable[float]) -> None:
        for loss in losses:
            self.num_tokens += 1
            self._total += loss
            self._squares += loss * loss

    @property
    def perplexity(self) -> float:
        return math.exp(self._total / self.num_tokens)

    @property
    def error(self) -> float:
        """The standard error of the perplexity, as if the losses were independent; 0 for a single token."""
        mean = self._total / self.num_tokens
        variance = max(0.0, self._squares / self.num_tokens - mean * mean)
        return self.perplexity * math.sqrt(variance / max(1, self.num_tokens - 1))


def chunks_of(engine: Engine, text: str, length: int) -> list[list[int]]:
    """The text in chunks of `length` tokens, without a shorter last one.

    If the model's texts begin with a BOS token, it is in the place of each chunk's first token.

    Raises:
        ConfigError: the text is shorter than two chunks, or the chunks are too short.
    """
    require(length >= LEAST_CHUNK, f"chunks of {length} tokens are too short: at least {LEAST_CHUNK} are needed")
    ids = engine.tokenizer.encode(text)
    require(
        len(ids) >= 2 * length,
        f"the text has {len(ids)} tokens, fewer than two chunks of {length}: give a longer text or a smaller context",
    )
    first = engine.tokenizer.encode("")[:1]
    return [first + ids[start + len(first) : start + length] for start in range(0, len(ids) - length + 1, length)]


def running_losses(engine: Engine, chunks: Iterable[Sequence[int]]) -> Iterator[Losses]:
    """The losses of the second half of each chunk, for which the first half is the context; yields after every chunk.

    Source: llama.cpp's llama-perplexity, whose definition this is: of n tokens it scores those after the first n/2 + 1.
    """
    losses = Losses()
    for ids in chunks:
        scored = engine.generate(ids, SCORES, drafter=PLAIN).prompt_logprobs[len(ids) // 2 :]
        losses.add(-item.logprob for item in scored)
        yield losses
