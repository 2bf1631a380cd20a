"""An answer on stdout as it is written."""

import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Final, TextIO

from forerun.cli.failures import say
from forerun.cli.interrupt import StopOnInterrupt
from forerun.cli.streams import takes_colours, unechoed
from forerun.core.steps import DecodeStep, Generation

if TYPE_CHECKING:
    from forerun.engine.stream import GenerationStream
    from forerun.text.tokenizer import Tokenizer

Show = Callable[[DecodeStep], None]
End = Callable[[Generation, str], None]  # given the text that was shown so far
GREEN_UNDERLINED: Final = "\x1b[32;4m"
UNDERLINED: Final = "\x1b[4m"
RESET: Final = "\x1b[0m"
SOON_S: Final = 0.5  # a prompt that is read by then needs no line that says so


def write_answer(
    start: "Callable[[], GenerationStream]", show: Show, end: "End | None" = None
) -> tuple[Generation, bool]:
    """Start a stream, show every step, and end the line.

    Ctrl-C stops the answer behind the round under way, and at once while the prompt is read; a second one, always at
    once.

    Returns:
        The text so far or in full, and whether it was interrupted.
    """
    with unechoed(), StopOnInterrupt() as interrupt:
        shown, stream = "", start()
        with suppress(KeyboardInterrupt):
            interrupt.lose_patience()  # while the prompt is read: a pass can take long, and nothing is lost
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
    """Let the prompt be read; on a terminal a line that goes away again says how far that is, where it takes long."""
    began, is_shown = perf_counter(), False
    try:
        for part in stream.prefill():
            if perf_counter() - began > SOON_S and takes_colours("stderr"):
                is_shown = True
                print(f"\rreading {part.num_read} of {part.num_tokens} tokens", end="", file=sys.stderr, flush=True)
    finally:
        if is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def end_text(result: Generation, shown: str) -> None:
    """What a cancelled answer had held back, and the end of the line."""
    print(result.text[len(shown) :], end="" if result.text.endswith("\n") else "\n", flush=True)


def show_plainly(step: DecodeStep) -> None:
    print(step.text, end="", flush=True)


def origin_shower(tokenizer: "Tokenizer") -> Show:
    """A `Show` that marks the text of drafted and accepted tokens, where a terminal shows marks."""
    origins = TokenOrigins(tokenizer)
    return lambda step: print(mark_origins(origins.of(step)), end="", flush=True)


def mark_origins(pieces: Sequence[tuple[str, bool]]) -> str:
    """A text in pieces as `TokenOrigins` gives them, drafted ones marked as stdout can show it."""
    begin, end = _marks(sys.stdout)
    return "".join([f"{begin}{text}{end}" if was_drafted else text for text, was_drafted in pieces])


def explain_marks() -> None:
    """What the marks on stdout mean, on stderr; nothing where there are none."""
    if any(_marks(sys.stdout)):
        begin, end = _marks(sys.stderr)
        say(f"{begin}drafted and accepted{end} · chosen by the target itself\n")


def _marks(stream: TextIO) -> tuple[str, str]:
    """What to write around drafted text: green and underlined on a terminal, under NO_COLOR underlined alone."""
    if not takes_colours("stdout" if stream is sys.stdout else "stderr"):
        return "", ""
    return UNDERLINED if os.environ.get("NO_COLOR") else GREEN_UNDERLINED, RESET


class TokenOrigins:
    """Who wrote which characters of a streamed answer.

    A step's text may lag behind its tokens, so the tokens are decoded here a second time, each with its origin, and
    the step's text takes as many characters as it has.
    """

    def __init__(self, tokenizer: "Tokenizer") -> None:
        from forerun.text.tokenizer import IncrementalDecoder

        self._decoder = IncrementalDecoder(tokenizer)
        self._was_drafted: deque[bool] = deque()

    def of(self, step: DecodeStep) -> list[tuple[str, bool]]:
        """The step's text in pieces, each with whether the drafter wrote it."""
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


def is_terminal() -> bool:
    """Whether a person types the input."""
    return sys.stdin.isatty()
