"""Trees as --show-tree draws them."""

import os
import pty
import re
import subprocess
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.cli.tree_picture import MAX_LINES, MAX_TOKEN, Fate, draw_tree, shown_token, width
from forerun.core.steps import DraftedTree
from tests.cli.conftest import RunProcess, command, environment

WORDS = ["<root>", " quick", " brown", " bear", " cat", " red", " fox"]
TREE = DraftedTree(token_ids=(0, 1, 5, 2, 6, 3, 4), parents=(-1, 0, 0, 1, 2, 3, 3), path=(1, 3))
PICTURE = """\
┬[ quick]─[ brown]┬→ fox
│                 ├ bear
│                 └ cat
└ red─ fox"""


def drawn(tree: DraftedTree, num_columns: int = 75) -> list[str]:
    lines = draw_tree(tree, 6, lambda token_id: WORDS[token_id % len(WORDS)], num_columns)
    return ["".join(text for text, _ in line) for line in lines]


def test_the_accepted_path_is_the_first_line_and_the_others_hang_where_they_branch_off() -> None:
    assert "\n".join(drawn(TREE)) == PICTURE


def test_what_is_too_wide_or_too_high_is_cut_with_a_mark() -> None:
    assert drawn(TREE, 14)[0] == "┬[ quick]─[ b…"
    wide = DraftedTree(token_ids=tuple(range(20)), parents=(-1, *[0] * 19), path=())
    assert len(drawn(wide)) == MAX_LINES
    assert drawn(wide)[-1] == "… 13 more"


@st.composite
def trees(draw: st.DrawFn) -> DraftedTree:
    num_nodes = draw(st.integers(2, 24))
    parents = [-1, *[draw(st.integers(0, node - 1)) for node in range(1, num_nodes)]]
    path = []
    here = 0
    while (children := [node for node in range(num_nodes) if parents[node] == here]) and draw(st.booleans()):
        here = draw(st.sampled_from(children))
        path.append(here)
    return DraftedTree(token_ids=tuple(range(num_nodes)), parents=tuple(parents), path=tuple(path))


@given(tree=trees(), num_columns=st.integers(10, 100), text=st.text(max_size=30))
def test_no_line_is_wider_than_it_may_be_and_the_path_comes_first(
    tree: DraftedTree, num_columns: int, text: str
) -> None:
    lines = draw_tree(tree, 0, lambda token_id: f"{token_id} {text}", num_columns)
    assert len(lines) <= MAX_LINES
    assert all(width("".join(piece for piece, _ in line)) <= num_columns for line in lines)
    assert width(shown_token(text)) <= MAX_TOKEN
    accepted = [piece for piece, fate in lines[0] if fate is Fate.ACCEPTED]
    assert len(accepted) <= len(tree.path)
    assert not any(fate is Fate.ACCEPTED for line in lines[1:] for _, fate in line)


FLAGS = ("generate", "builtin", "--draft", "builtin-draft", "-n", "16", "-p", "def read_lines(path):")


@pytest.fixture(scope="module")
def plain(run_process: RunProcess) -> str:
    """The text without the trees."""
    return run_process(*FLAGS, "--quiet").stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("term", "no_colour", "has_escapes", "has_colours"),
    [("xterm", "", True, True), ("dumb", "", False, False), ("xterm", "1", True, False)],
)
def test_a_terminal_shows_every_round_and_then_the_text(
    plain: str, term: str, no_colour: str, has_escapes: bool, has_colours: bool
) -> None:
    leader, follower = pty.openpty()
    changes = environment(TERM=term, NO_COLOR=no_colour)
    shown = subprocess.Popen(command(*FLAGS, "--show-tree"), env=changes, stdout=follower, stderr=follower)
    os.close(follower)
    written = bytearray()
    with suppress(OSError):  # how Linux says that nobody writes any more
        while data := os.read(leader, 65536):
            written += data
    os.close(leader)
    assert shown.wait() == 0
    text = written.decode().replace("\r\n", "\n")
    assert ("\x1b" in text, "\x1b[32m" in text) == (has_escapes, has_colours)
    bare = re.sub(r"\x1b\[[0-9;]*[mK]", "", text)
    assert plain in bare.partition("\n\n")[2]
    assert re.search(r"^   1 [┬─]", bare, re.MULTILINE)
    if "0.00 accepted per round" not in bare:  # as where the draft's process is late, on a busy machine
        assert re.search(r"^ +\d+ .\[", bare, re.MULTILINE), "no round accepted a token"
    trees_shown = bare.partition("counts the rounds\n")[2].partition("\n\n")[0]
    assert max(map(width, trees_shown.splitlines())) < 80
