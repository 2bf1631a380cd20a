"""Conversations on disk: /save, /load, and a file that is updated after every turn."""

from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from forerun.cli.chat.session import Session, count_of, shortened
from forerun.cli.chat.transcript import Transcript, read_transcript
from forerun.cli.failures import find_model, say
from forerun.core.errors import ConfigError
from forerun.core.kept_files import FileChangedError, KeptFiles
from forerun.core.output_file import require_writable
from forerun.core.paths import path_of

MOST_BESIDE: Final = 1000  # numbered files with the same name
identity_of = cache(lambda model: find_model(model).identity())


def resumed(path: Path | None, files: KeptFiles) -> Transcript | None:
    """The conversation to continue; None for a new one. A file that cannot be written is refused at once."""
    if path is None:
        return None
    require_writable(path, needs_folder=True)
    return None if files.is_known(path) else read_transcript(path, files)


def with_flags(saved: Transcript, session: Session) -> Transcript:
    """A conversation with the settings of the command line, which take precedence over the saved ones."""
    start = session.settings_at_start
    return replace(
        saved,
        params=start.params,
        variables={**saved.variables, **start.variables},
        system_prompt=session.conversation.system_prompt or saved.system_prompt,
    )


def transcript_of(session: Session) -> Transcript:
    """The conversation in the form of a file."""
    model = session.engine.config.target
    talk = session.conversation
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
    """Continue another conversation."""
    model = session.engine.config.target
    talk = session.conversation
    if transcript.identity != identity_of(model):
        say(f"{shortened(transcript.model)} answered so far in this conversation; {model} continues it")
    session.settings = replace(session.settings, params=transcript.params, variables=transcript.variables)
    talk.system_prompt = transcript.system_prompt
    talk.turns = list(transcript.turns)
    talk.num_dropped = transcript.num_dropped
    if talk.turns:
        say(f"{count_of(talk)} so far; the last question was: {shortened(talk.turns[-1].said)}")


def save(session: Session, name: str) -> None:
    """/save: an existing file is replaced only if the user agrees, or if it is unchanged since this chat wrote it."""
    path = _path(name, "save")
    is_known = session.files.is_known(path)
    if not is_known:
        question = f"{path} exists already: replace it?"
        if not session.lines.agrees(question, default=False):
            say(f"{path} exists already and was not changed: name another file")
            return
    session.files.write(path, transcript_of(session).to_json(), is_agreed=not is_known)
    say(f"{count_of(session.conversation)} saved to {path}")


def load(session: Session, name: str) -> None:
    """/load: continue a file's conversation instead of this one. A chat that is saved to a file now uses this file."""
    path = _path(name, "load")
    take_over(session, read_transcript(path, session.files))
    if session.file is not None:
        session.file = path


def _path(name: str, command: str) -> Path:
    if not name:
        raise ConfigError(f"/{command} needs the name of a file: /{command} talk.json")
    return path_of(name)


class KeptFile:
    """Writes a session's file when the conversation has changed, so that no turn is lost if the process is killed."""

    def __init__(self) -> None:
        self._written: Transcript | None = None

    def update(self, session: Session) -> None:
        """Write the file if needed; if another program has changed it, use a new file next to it.

        Raises:
            ConfigError: it cannot be written.
        """
        path = session.file
        transcript = transcript_of(session)
        if path is None or transcript == self._written:
            return
        for place in (path, *(path.with_stem(f"{path.stem}-{number}") for number in range(2, MOST_BESIDE))):
            with suppress(FileChangedError):
                session.files.write(place, transcript.to_json())
                session.file = place
                self._written = transcript
                break
        else:
            raise ConfigError(f"{path} was changed by another program, and so were others next to it: use /save FILE")
        if place != path:
            say(f"{path} was changed by another program and is not overwritten: this conversation is now in {place}")
