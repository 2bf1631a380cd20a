"""--show-tree: prints every round's draft tree when it is verified, then the text with drafted parts marked."""

import os
import sys
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Final

from forerun.cli.answer import Show, TokenOrigins, mark_origins
from forerun.cli.failures import say
from forerun.cli.streams import RESET, takes_colours
from forerun.cli.tree_picture import Fate, Line, draw_tree, shown_token, width
from forerun.core.steps import DecodeStep, DraftedTree, Generation

if TYPE_CHECKING:
    from forerun.text.tokenizer import Tokenizer

COLOURS: Final = {Fate.ACCEPTED: "\x1b[32m", Fate.REJECTED: "\x1b[2m", Fate.CHOSEN: "\x1b[1m", Fate.LINE: "\x1b[2m"}
WITHOUT_COLOUR: Final = {Fate.ACCEPTED: "\x1b[1m", Fate.CHOSEN: "\x1b[1m"}
PLAIN_LETTERS: Final = str.maketrans("─┬├└│→…·⏎␍⇥", "-+|`|>~_$$$")  # for encodings without these
LEGEND: Final = "[accepted]  rejected  →chosen by the target itself; a number counts the rounds"
MARGIN: Final = 5  # columns of the round's number and a space


class TreeLog:
    """Prints the trees of answers on stdout, which is a terminal.

    Rounds without a tree share a line. `start_answer` gives the `Show` of an answer, `end` is its `End`.
    """

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer
        say(self._encoded(LEGEND, "stderr"))

    def start_answer(self) -> Show:
        self._origins = TokenOrigins(self._tokenizer)
        self._pieces = list[tuple[str, bool]]()
        self._num_rounds = 0
        self._column = 0
        return self.show

    def show(self, step: DecodeStep) -> None:
        """Draw a round, and keep its text."""
        self._num_rounds += 1
        self._pieces += self._origins.of(step)
        if not step.token_ids:  # the round only released text that was held back
            return
        tree = step.stats.tree
        if tree is None:
            self._add_chosen(step.token_ids)
        else:
            self._draw(tree, step.token_ids[-1])

    def end(self, result: Generation, shown: str) -> None:
        """The whole text, drafted and accepted parts marked."""
        self._end_line()
        text = mark_origins(self._pieces) + result.text[len(shown) :]
        print("\n" + text, end="" if text.endswith("\n") else "\n", flush=True)

    def _draw(self, tree: DraftedTree, bonus: int) -> None:
        self._end_line()
        lines = draw_tree(tree, bonus, self._text_of, get_terminal_size().columns - 1 - MARGIN)
        for place, line in enumerate(lines):
            number = f"{self._num_rounds:>{MARGIN - 1}} " if place == 0 else " " * MARGIN
            print(number + self._painted(line))
        sys.stdout.flush()

    def _add_chosen(self, token_ids: tuple[int, ...]) -> None:
        """Print the tokens of a round without a tree, after those of the rounds before it."""
        for token_id in token_ids:
            text = f"→{shown_token(self._text_of(token_id))}"
            if self._column and self._column + 1 + width(text) >= get_terminal_size().columns - 1:
                self._end_line()
            before = " " if self._column else f"{self._num_rounds:>{MARGIN - 1}}  "
            self._column += width(before + text)
            print(before + self._painted(((text, Fate.CHOSEN),)), end="", flush=True)

    def _end_line(self) -> None:
        if self._column:
            print()
        self._column = 0

    def _text_of(self, token_id: int) -> str:
        return self._tokenizer.decode([token_id]) or f"<{token_id}>"  # control tokens have no text

    def _painted(self, line: Line) -> str:
        styles = WITHOUT_COLOUR if os.environ.get("NO_COLOR") else COLOURS
        has_styles = takes_colours("stdout")
        pieces = []
        for text, fate in line:
            style = styles.get(fate, "") if has_styles else ""
            pieces.append(f"{style}{self._encoded(text, 'stdout')}{RESET if style else ''}")
        return "".join(pieces)

    def _encoded(self, text: str, name: str) -> str:
        """The text in characters that the terminal's encoding has."""
        try:
            text.encode(getattr(sys, name).encoding or "ascii")
        except UnicodeEncodeError:
            return text.translate(PLAIN_LETTERS)
        return text
