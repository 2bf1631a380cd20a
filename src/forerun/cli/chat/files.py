"""Conversations on disk: /save, /load, and a file that holds one as it goes on."""

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

MOST_BESIDE: Final = 1000  # files of one name with a number each
identity_of = cache(lambda model: find_model(model).identity())


def resumed(path: Path | None, files: KeptFiles) -> Transcript | None:
    """The conversation to go on with; None where it begins. A file that cannot be kept is refused at once."""
    if path is None:
        return None
    require_writable(path, needs_folder=True)
    return None if files.is_known(path) else read_transcript(path, files)


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
    """/save: what is there already is replaced only if the user agrees, or if it is as this chat left it."""
    path = _path(name, "save")
    is_known = session.files.is_known(path)
    if not is_known:
        question = f"{path} is there already: replace it?"
        if not session.lines.agrees(question, unless_told=False):
            say(f"{path} was there already and stays as it is: name another file")
            return
    session.files.write(path, transcript_of(session).to_json(), is_agreed=not is_known)
    say(f"{count_of(session.conversation)} saved to {path}")


def load(session: Session, name: str) -> None:
    """/load: the conversation of a file in place of this one. Where one is kept in a file, it is that file from now."""
    path = _path(name, "load")
    take_over(session, read_transcript(path, session.files))
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
        """Write it if need be; where another program has changed it, go on in a new file beside it.

        Raises:
            ConfigError: it cannot be written.
        """
        path, transcript = session.file, transcript_of(session)
        if path is None or transcript == self._written:
            return
        for place in (path, *(path.with_stem(f"{path.stem}-{number}") for number in range(2, MOST_BESIDE))):
            with suppress(FileChangedError):
                session.files.write(place, transcript.to_json())
                session.file, self._written = place, transcript
                break
        else:
            raise ConfigError(f"{path} was changed by another program, and so were others beside it: /save FILE")
        if place != path:
            say(
                f"{path} was changed by another program and stays as it is: this conversation is in {place} from now on"
            )
