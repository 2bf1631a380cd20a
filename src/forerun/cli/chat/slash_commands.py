"""The commands of a chat, which are lines that begin with a slash."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from forerun.cli.chat.files import load, save
from forerun.cli.chat.session import Session, shortened
from forerun.cli.failures import say
from forerun.core.errors import ConfigError, require

FOOT: Final = (
    "Ctrl-C stops the answer; at the prompt it clears the line. A line that ends in \\ continues on the next; pasted "
    "lines are one message. ! works in place of /: to send a line that begins with one of them, put a space before it."
)
EMPTY: Final = '""'  # an empty text, as in a shell


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command: its names, and the function that handles the text after it."""

    names: tuple[str, ...]
    argument: str = ""
    help: str
    act: Callable[[Session, str], None]


def obey(session: Session, line: str) -> None:
    """Run the command in a line."""
    word, _, argument = line.partition(" ")
    command = next((command for command in COMMANDS if word in command.names), None)
    if command is None:
        say(f"there is no command /{word} (/help lists them); to send this line as it is, put a space before it")
    else:
        command.act(session, argument.strip())


def help_text() -> str:
    """Every command with its help."""
    calls = [f"/{command.names[0]} {command.argument}".rstrip() for command in COMMANDS]
    width = max(map(len, calls))
    lines = [f"{call:<{width}}  {command.help}" for call, command in zip(calls, COMMANDS, strict=True)]
    return "\n".join([*lines, FOOT])


def completions(session: Session, line: str) -> Sequence[str]:
    """Completions of the last word of a line: commands, or names of settings."""
    mark = line[:1]
    words = [*line[1:].split(), *([""] if line[-1:] in " /!" else [])]
    match words:
        case [word] if mark in ("/", "!"):
            known = [f"{mark}{command.names[0]} " for command in COMMANDS if command.names[0].startswith(word)]
        case ["set", word]:
            known = [f"{name} " for name in session.settings.names() if name.startswith(word)]
        case _:
            known = []
    return known


def _leave(session: Session, _: str) -> None:
    session.is_over = True


def _clear(session: Session, _: str) -> None:
    session.conversation.clear()
    say("forgotten")


def _answer_lines(session: Session, _: str) -> None:
    said = session.lines.until_end()
    if said.strip():
        session.answer(said)


def _undo(session: Session, _: str) -> None:
    turn = session.conversation.take_back()
    say("there is no turn to remove" if turn is None else f"removed: {shortened(turn.said)}")


def _set_system_prompt(session: Session, text: str) -> None:
    talk = session.conversation
    if text:
        talk.system_prompt = None if text == EMPTY else text
    say("there is no system prompt" if talk.system_prompt is None else f"the system prompt is: {talk.system_prompt}")


def _set(session: Session, text: str) -> None:
    if not text:
        say(session.settings.listed())
        return
    name, _, value = text.partition(" ")
    require(value.strip() != "", f"/set {name} needs a value; default restores the one it had at the start")
    session.settings = session.settings.changed(name, value.strip(), start=session.settings_at_start)
    say(f"{name} is {session.settings.shown(name)}")


def _shift(session: Session, text: str) -> None:
    talk = session.conversation
    num_sent = len(talk.turns) - talk.num_dropped
    try:
        number = int(text) if text else -(-num_sent // 2)
    except ValueError:
        raise ConfigError(f"/shift {text} needs a number of turns, or nothing for half of them") from None
    require(num_sent > 0, "/shift has nothing to leave out: no turn is sent to the model")
    require(0 < number <= num_sent, f"/shift {number} must be a number of turns from 1 to {num_sent}")
    session.drop(talk.num_dropped + number)


COMMANDS: Final = (
    Command(names=("help", "?"), help="this list", act=lambda *_: say(help_text())),
    Command(
        names=("regenerate", "regen"),
        help="another answer to the last question",
        act=lambda session, _: session.answer_again(),
    ),
    Command(
        names=("continue",), help="continue the last answer, as after Ctrl-C", act=lambda session, _: session.go_on()
    ),
    Command(names=("undo",), help="remove the last question and its answer", act=_undo),
    Command(names=("clear",), help="forget the conversation", act=_clear),
    Command(names=("shift",), argument="[N]", help="drop the oldest N turns, or half of them", act=_shift),
    Command(
        names=("system",),
        argument="[TEXT]",
        help='show or set the system prompt; "" removes it',
        act=_set_system_prompt,
    ),
    Command(names=("set",), argument="[NAME VALUE]", help="change a setting; alone: list all of them", act=_set),
    Command(names=("save",), argument="FILE", help="save the conversation and its settings to a file", act=save),
    Command(names=("load",), argument="FILE", help="continue the conversation of a file", act=load),
    Command(names=("stats",), help="statistics of the last answer", act=lambda session, _: session.say_stats()),
    Command(names=("multi",), help="send several lines, up to a line with only /end", act=_answer_lines),
    Command(names=("exit", "quit", "bye"), help="leave (or Ctrl-D)", act=_leave),
)
