"""The user's input: messages of one or several lines, and answers to questions."""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from forerun.cli.interrupt import StopOnInterrupt

Complete = Callable[[str], Sequence[str]]  # from the line so far to completions of its last word


class TypedLines:
    """Lines of stdin. Ctrl-C raises KeyboardInterrupt while a line is read; earlier ones are forgotten."""

    def __init__(self, interrupt: StopOnInterrupt) -> None:
        self._interrupt = interrupt

    def turn(self) -> str | None:
        """A message or command, joined over lines that end in a backslash; None at the end of input."""
        lines: list[str] = []
        while (line := self._line("... " if lines else "> ")) is not None:
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])
        return "\n".join(lines) if lines else None

    def until_end(self) -> str:
        """Lines up to one with only /end."""
        lines: list[str] = []
        while (line := self._line("... ")) is not None and line.strip() not in ("/end", "!end"):
            lines.append(line)
        return "\n".join(lines)

    def agrees(self, question: str, *, default: bool = True) -> bool:
        """Whether the user agrees; False if stdin is not a terminal.

        Args:
            default: the answer if the user only presses Enter.
        """
        if not sys.stdin.isatty():
            return False
        answer = self._line(f"{question} [{'Y/n' if default else 'y/N'}] ")
        return default if answer == "" else answer is not None and answer.strip().lower() in ("y", "yes")

    def _line(self, prompt: str) -> str | None:
        try:
            return self._interrupt.read_line(prompt if sys.stdin.isatty() else "")
        except EOFError:
            return None


def edit_lines(complete: Complete) -> None:
    """Give `input` line editing, history and completion, and let it take pasted lines as one message."""
    with suppress(ImportError):  # not every Python has it
        import readline

        def choose(word: str, number: int) -> str | None:
            line = readline.get_line_buffer()[: readline.get_endidx()]
            return dict(enumerate(complete(line))).get(number)

        is_libedit = "libedit" in (readline.__doc__ or "")  # macOS's, whose functions have other names
        readline.parse_and_bind("set enable-bracketed-paste on")
        readline.set_completer_delims(" ")
        readline.set_completer(choose)
        readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")


def typed_so_far() -> str:
    """The text on the input line that Ctrl-C interrupted."""
    with suppress(ImportError):
        import readline

        return readline.get_line_buffer()
    return ""
