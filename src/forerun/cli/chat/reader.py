"""What the user types: messages of one line or several, and answers to questions."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from forerun.cli.answer import is_terminal
from forerun.cli.interrupt import StopOnInterrupt

Complete = Callable[[str], Sequence[str]]  # the line so far to what its last word may become


class TypedLines:
    """Lines of stdin. Ctrl-C is a KeyboardInterrupt while a line is read, and forgotten before."""

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

    def agrees(self, question: str, *, unless_told: bool = True) -> bool:
        """Whether the person at the terminal agrees; where nobody can be asked, no.

        Args:
            unless_told: what Enter alone means.
        """
        if not is_terminal():
            return False
        answer = self._line(f"{question} [{'Y/n' if unless_told else 'y/N'}] ")
        return unless_told if answer == "" else answer is not None and answer.strip().lower() in ("y", "yes")

    def _line(self, prompt: str) -> str | None:
        try:
            return self._interrupt.read_line(prompt if is_terminal() else "")
        except EOFError:
            return None


def edit_lines(complete: Complete) -> None:
    """Give `input` line editing, history and completion, and let it take pasted lines as one message."""
    with suppress(ImportError):  # not every Python has it
        import readline

        def choose(word: str, number: int) -> str | None:
            line = readline.get_line_buffer()[: readline.get_endidx()]
            return dict(enumerate(complete(line))).get(number)

        is_libedit = "libedit" in (readline.__doc__ or "")  # macOS's, which calls its functions otherwise
        readline.parse_and_bind("set enable-bracketed-paste on")
        readline.set_completer_delims(" ")
        readline.set_completer(choose)
        readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")


def typed_so_far() -> str:
    """What stands on the line that was given up."""
    with suppress(ImportError):
        import readline

        return readline.get_line_buffer()
    return ""
