"""Prints an answer to stdout while it is generated."""

import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Final

from forerun.cli.failures import say
from forerun.cli.interrupt import StopOnInterrupt
from forerun.cli.streams import RESET, takes_colours, unechoed
from forerun.core.steps import DecodeStep, Generation

if TYPE_CHECKING:
    from forerun.engine.stream import GenerationStream
    from forerun.text.tokenizer import Tokenizer

Show = Callable[[DecodeStep], None]
End = Callable[[Generation, str], None]  # given the text that was shown so far
GREEN_UNDERLINED: Final = "\x1b[32;4m"
UNDERLINED: Final = "\x1b[4m"
SOON_S: Final = 0.5  # the progress line appears only if reading the prompt takes longer


def write_answer(
    start: "Callable[[], GenerationStream]", show: Show, end: End | None = None
) -> tuple[Generation, bool]:
    """Start a stream, show every step, and end the line.

    Ctrl-C stops the answer after the current round, or at once while the prompt is read. A second Ctrl-C always stops
    it at once.

    Returns:
        The answer, complete or up to the interruption, and whether it was interrupted.
    """
    with unechoed(), StopOnInterrupt() as interrupt:
        shown = ""
        stream = start()
        with suppress(KeyboardInterrupt):
            interrupt.lose_patience()  # until the prompt is read: a pass can take long, and no text is lost
            read_prompt(stream)
            interrupt.patience = 1
            for step in stream:
                show(step)
                shown += step.text
                if interrupt.is_asked:
                    stream.cancel()
        interrupt.patience = inf
        if interrupt.is_asked:
            stream.cancel()
        result = stream.result()
        (end or end_text)(result, shown)
    if interrupt.is_asked and not result.token_ids:
        say("(stopped while the prompt was read)")
    return result, interrupt.is_asked


def read_prompt(stream: "GenerationStream") -> None:
    """Read the prompt. On a terminal, a temporary line shows the progress if it takes long."""
    began = perf_counter()
    is_shown = False
    try:
        for part in stream.prefill():
            read_s = perf_counter() - began
            if read_s > SOON_S and takes_colours("stderr"):
                is_shown = True
                left_s = part.left_s(read_s)
                left = "" if left_s is None else f", {left_s:.0f} s left"
                line = f"reading {part.num_read:,} of {part.num_tokens:,} tokens{left}"
                print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)
    finally:
        if is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def end_text(result: Generation, shown: str) -> None:
    """Print the text that a cancelled answer had held back, and end the line."""
    print(result.text[len(shown) :], end="" if result.text.endswith("\n") else "\n", flush=True)


def show_plainly(step: DecodeStep) -> None:
    print(step.text, end="", flush=True)


def origin_shower(tokenizer: "Tokenizer") -> Show:
    """A `Show` that marks the text of accepted draft tokens if stdout is a terminal."""
    origins = TokenOrigins(tokenizer)
    return lambda step: print(mark_origins(origins.of(step)), end="", flush=True)


def mark_origins(pieces: Sequence[tuple[str, bool]]) -> str:
    """Join the pieces of `TokenOrigins`; drafted ones are marked if stdout is a terminal."""
    begin, end = _marks("stdout")
    return "".join([f"{begin}{text}{end}" if was_drafted else text for text, was_drafted in pieces])


def explain_marks() -> None:
    """Explain the marks on stdout in a line on stderr, if there are marks."""
    if any(_marks("stdout")):
        begin, end = _marks("stderr")
        say(f"{begin}drafted and accepted{end} · chosen by the target itself\n")


def _marks(name: str) -> tuple[str, str]:
    """Escape codes before and after drafted text: green and underlined on a terminal, only underlined with NO_COLOR."""
    if not takes_colours(name):
        return "", ""
    return UNDERLINED if os.environ.get("NO_COLOR") else GREEN_UNDERLINED, RESET


class TokenOrigins:
    """Tells which characters of a streamed answer were drafted.

    A step's text may lag behind its tokens. So the tokens are decoded here a second time, each with its origin, and
    the step's text is matched with these characters in order.
    """

    def __init__(self, tokenizer: "Tokenizer") -> None:
        from forerun.text.detokenizer import IncrementalDecoder

        self._decoder = IncrementalDecoder(tokenizer)
        self._was_drafted: deque[bool] = deque()

    def of(self, step: DecodeStep) -> list[tuple[str, bool]]:
        """The step's text in pieces, each with whether it was drafted."""
        for place, token_id in enumerate(step.token_ids):
            was_drafted = place < step.stats.num_accepted
            self._was_drafted.extend([was_drafted] * len(self._decoder.feed((token_id,))))
        pieces: list[tuple[str, bool]] = []
        for character in step.text:
            was_drafted = self._was_drafted.popleft() if self._was_drafted else False
            if pieces and pieces[-1][1] == was_drafted:
                pieces[-1] = (pieces[-1][0] + character, was_drafted)
            else:
                pieces.append((character, was_drafted))
        return pieces
