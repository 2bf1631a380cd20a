"""A round's draft tree in lines of text: the accepted path in brackets, the target's own token after an arrow.

    ┬[ quick]─[ brown]┬→ fox
    │                 ├ bear
    │                 └ cat
    └ red─ fox

The accepted path comes first, so that it is the first line.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final

from forerun.cli.streams import printable
from forerun.cli.wrap import width_of
from forerun.core.steps import DraftedTree

MAX_TOKEN: Final = 20  # columns of a token: a line of 80 has room for four at least
MAX_LINES: Final = 8  # of a round, so that a screen shows three
CUT: Final = "…"


class Fate(Enum):
    """What happened to a token in the picture; LINE is a drawn line of the tree."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    CHOSEN = "chosen"
    LINE = "line"


Piece = tuple[str, Fate]
Line = tuple[Piece, ...]


def draw_tree(tree: DraftedTree, bonus: int, text_of: Callable[[int], str], num_columns: int) -> list[Line]:
    """The lines of a round, none wider than `num_columns`.

    Args:
        bonus: the token that the target chose where the accepted path ends.
        text_of: a token's text.
    """

    def piece(node: int) -> Piece:
        text = shown_token(text_of(tree.token_ids[node]))
        return (f"[{text}]", Fate.ACCEPTED) if node in tree.path else (text, Fate.REJECTED)

    def below(node: int) -> list[Line]:
        """The lines below a node, without the node itself. The accepted child comes first."""
        children = [child for child, parent in enumerate(tree.parents) if parent == node]
        children.sort(key=lambda child: child not in tree.path)
        blocks = [_with_label(piece(child), below(child)) for child in children]
        if node == (tree.path[-1] if tree.path else 0):
            blocks.insert(0, [((f"→{shown_token(text_of(bonus))}", Fate.CHOSEN),)])
        lines: list[Line] = []
        for place, block in enumerate(blocks):
            is_last = place == len(blocks) - 1
            first = "─" if len(blocks) == 1 else "┬" if place == 0 else "└" if is_last else "├"
            other = " " if is_last else "│"
            lines += [((first if row == 0 else other, Fate.LINE), *line) for row, line in enumerate(block)]
        return lines

    lines = [_cut(line, num_columns) for line in below(0)]
    if len(lines) <= MAX_LINES:
        return lines
    return [*lines[: MAX_LINES - 1], ((f"{CUT} {len(lines) - MAX_LINES + 1} more", Fate.LINE),)]


def shown_token(text: str) -> str:
    """A token's text on one line, with symbols for tabs and line ends, and for spaces if there is nothing else."""
    shown = text.replace("\n", "⏎").replace("\r", "␍").replace("\t", "⇥")
    shown = printable(shown)
    if not shown.strip():
        shown = shown.replace(" ", "·")
    return _within(shown, MAX_TOKEN)


def width(text: str) -> int:
    """Columns of a terminal."""
    return sum(map(width_of, text))


def _with_label(label: Piece, lines: list[Line]) -> list[Line]:
    """A node followed by the lines below it."""
    if not lines:
        return [(label,)]
    margin: Piece = (" " * width(label[0]), Fate.LINE)
    return [(label if row == 0 else margin, *line) for row, line in enumerate(lines)]


def _cut(line: Line, num_columns: int) -> Line:
    kept = list[Piece]()
    room = num_columns
    for text, fate in line:
        if width(text) > room:
            return (*kept, (_within(text, room), fate)) if room else _cut(tuple(kept), num_columns - 1)
        kept.append((text, fate))
        room -= width(text)
    return line


def _within(text: str, num_columns: int) -> str:
    if width(text) <= num_columns:
        return text
    kept = ""
    for character in text:
        if width(kept + character) >= num_columns:
            break
        kept += character
    return kept + CUT
