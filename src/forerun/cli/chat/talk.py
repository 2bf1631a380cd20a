"""A chat from the first prompt to its end."""

import sys
from collections.abc import Mapping
from functools import partial

from forerun.cli.chat.commands import completions, obey
from forerun.cli.chat.files import KeptFile
from forerun.cli.chat.reader import edit_lines, typed_so_far
from forerun.cli.chat.session import WAYS_OUT, Session
from forerun.cli.failures import in_flags, say
from forerun.core.errors import ContextOverflowError, ForerunError


def talk(session: Session, flags: Mapping[str, str]) -> None:
    """Read and answer until the user leaves. A turn that fails is reported, and the chat continues.

    Args:
        flags: the flag of each setting, for error messages.
    """
    kept = KeptFile()
    if sys.stdin.isatty():
        edit_lines(partial(completions, session))
        say("/help lists the commands")
    while not session.is_over:
        try:
            _take_turn(session)
            kept.update(session)
        except ForerunError as error:
            advice = f"; {WAYS_OUT}" if isinstance(error, ContextOverflowError) else ""
            say(f"error: {in_flags(str(error), flags)}{advice}")
        except KeyboardInterrupt:  # at the prompt, as answers handle Ctrl-C themselves
            if not sys.stdin.isatty():
                raise
            say("" if typed_so_far() else "\n/exit or Ctrl-D leaves")


def _take_turn(session: Session) -> None:
    """One message or command, or the end of the input."""
    said = session.lines.turn()
    if said is None:
        session.is_over = True
    elif said[:1] in ("/", "!") and "\n" not in said:
        obey(session, said[1:].strip())
    elif said.strip():
        session.answer(said[1:] if said[:2] in (" /", " !") else said)
