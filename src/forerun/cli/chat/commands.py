"""What a line that begins with a slash does: one entry a command."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from forerun.cli.chat.session import Session
from forerun.cli.failures import say

FOOT: Final = """\
Ctrl-C stops the answer; at the prompt it clears the line. A line that ends in \\ goes on in the next one; pasted lines
are one message. ! works in place of /: to send a line that begins with one of them, put a space before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command by its name and others that it goes by, and what it does with the text behind it."""

    names: tuple[str, ...]
    argument: str = ""
    help: str
    act: Callable[[Session, str], None]


def obey(session: Session, line: str) -> None:
    """Do what a line says."""
    word, _, argument = line.partition(" ")
    command = next((command for command in COMMANDS if word in command.names), None)
    if command is None:
        say(f"there is no command /{word}; to send this line as it is, put a space before it\n{help_text()}")
    else:
        command.act(session, argument.strip())


def help_text() -> str:
    """Every command with what it does."""
    calls = [f"/{command.names[0]} {command.argument}".rstrip() for command in COMMANDS]
    width = max(map(len, calls))
    lines = [f"{call:<{width}}  {command.help}" for call, command in zip(calls, COMMANDS, strict=True)]
    return "\n".join([*lines, FOOT])


def completions(line: str) -> Sequence[str]:
    """The commands that a line may become."""
    if line[:1] not in ("/", "!") or " " in line:
        return ()
    return [f"{line[0]}{command.names[0]} " for command in COMMANDS if command.names[0].startswith(line[1:])]


def _leave(session: Session, _: str) -> None:
    session.is_over = True


def _clear(session: Session, _: str) -> None:
    session.conversation.clear()
    say("forgotten")


def _answer_lines(session: Session, _: str) -> None:
    said = session.reader.until_end()
    if said.strip():
        session.answer(said)


COMMANDS: Final = (
    Command(names=("help", "?"), help="this list", act=lambda *_: say(help_text())),
    Command(names=("clear",), help="forget what was said", act=_clear),
    Command(names=("stats",), help="numbers of the last answer", act=lambda session, _: session.say_stats()),
    Command(names=("multi",), help="several lines, up to a line with only /end", act=_answer_lines),
    Command(names=("exit", "quit", "bye"), help="leave (or Ctrl-D)", act=_leave),
)
