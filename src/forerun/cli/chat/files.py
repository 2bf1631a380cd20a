"""Conversations on disk: /save, /load, and a file that holds one as it goes on."""

from dataclasses import replace
from functools import cache
from pathlib import Path

from forerun.cli.chat.session import Session, count_of, shortened
from forerun.cli.chat.transcript import Transcript, read_transcript
from forerun.cli.failures import find_model, say
from forerun.core.errors import ConfigError
from forerun.core.output_file import require_writable

identity_of = cache(lambda model: find_model(model).identity())


def resumed(path: Path | None) -> Transcript | None:
    """The conversation to go on with; None where it begins. A file that cannot be kept is refused at once."""
    if path is None:
        return None
    require_writable(path, needs_folder=True)
    return read_transcript(path) if path.exists() else None


def with_flags(saved: Transcript, session: Session) -> Transcript:
    """A conversation with what the command line asked for, which goes before what was saved."""
    start = session.settings_at_start
    return replace(
        saved,
        params=start.params,
        variables={**saved.variables, **start.variables},
        system_prompt=session.conversation.system_prompt or saved.system_prompt,
    )


def transcript_of(session: Session) -> Transcript:
    """The conversation as a file holds it."""
    model, talk = session.engine.config.target, session.conversation
    return Transcript(
        model=model,
        identity=identity_of(model),
        params=session.settings.params,
        variables=session.settings.variables,
        system_prompt=talk.system_prompt,
        turns=tuple(talk.turns),
        num_dropped=talk.num_dropped,
    )


def take_over(session: Session, transcript: Transcript) -> None:
    """Go on with another conversation."""
    model, talk = session.engine.config.target, session.conversation
    if transcript.identity != identity_of(model):
        say(f"this conversation was held with {shortened(transcript.model)}; {model} goes on with it")
    session.settings = replace(session.settings, params=transcript.params, variables=transcript.variables)
    talk.system_prompt, talk.turns = transcript.system_prompt, list(transcript.turns)
    talk.num_dropped = transcript.num_dropped
    if talk.turns:
        say(f"{count_of(talk)} so far; the last question was: {shortened(talk.turns[-1].said)}")


def save(session: Session, name: str) -> None:
    """/save: what is there already is replaced only if the user agrees, or if it is this chat's own."""
    path = _path(name, "save")
    if path.exists() and path not in session.own_files:
        question = f"{path} is there already: replace it?"
        if not session.lines.agrees(question, unless_told=False):
            say(f"{path} was there already and stays as it is: name another file")
            return
    transcript_of(session).write(path)
    session.own_files.add(path)
    say(f"{count_of(session.conversation)} saved to {path}")


def load(session: Session, name: str) -> None:
    """/load: the conversation of a file in place of this one. Where one is kept in a file, it is that file from now."""
    path = _path(name, "load")
    take_over(session, read_transcript(path))
    session.own_files.add(path)
    if session.file is not None:
        session.file = path


def _path(name: str, command: str) -> Path:
    if not name:
        raise ConfigError(f"/{command} needs the name of a file: /{command} talk.json")
    return Path(name).expanduser()


class KeptFile:
    """Writes a session's file whenever it differs from the conversation: whatever ends the process, no turn is lost."""

    def __init__(self) -> None:
        self._written: Transcript | None = None

    def update(self, session: Session) -> None:
        """Write it if need be.

        Raises:
            ConfigError: it cannot be written.
        """
        if session.file is None:
            return
        transcript = transcript_of(session)
        if transcript != self._written:
            transcript.write(session.file)
            self._written = transcript
