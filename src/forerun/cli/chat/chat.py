"""forerun chat: talk to a model in the terminal."""

import sys
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import typer

from forerun.cli.chat.files import KeptFile, resumed, take_over, with_flags
from forerun.cli.chat.reader import TypedLines, edit_lines, typed_so_far
from forerun.cli.chat.session import WAYS_OUT, ChatOptions, Session
from forerun.cli.chat.slash_commands import completions, obey
from forerun.cli.chat.transcript import MAX_BYTES
from forerun.cli.drafter_options import DrafterOptions
from forerun.cli.engine_loading import open_engine
from forerun.cli.failures import INTERRUPTED, flags_of, in_flags, say
from forerun.cli.flags import option, with_options
from forerun.cli.interrupt import StopOnInterrupt
from forerun.cli.logs import LogOptions, note_all
from forerun.cli.options import MODEL_HELP, EngineOptions, ModelOptions, SamplingOptions, settle
from forerun.cli.output_options import OutputOptions
from forerun.core.errors import ContextOverflowError, ForerunError, require
from forerun.core.kept_files import KeptFiles


@with_options(ChatOptions, ModelOptions, DrafterOptions, EngineOptions, SamplingOptions, OutputOptions, LogOptions)
def chat(
    *options: Any,
    model: Annotated[str | None, typer.Argument(help=MODEL_HELP)] = None,
    quick: Annotated[
        str | None, option("--quick", "-q", help="Send this one message, print the answer, and exit.")
    ] = None,
) -> None:
    """Chat with a model. Earlier turns stay in its cache, so a turn costs only its new tokens."""
    _chat(*options, model=model, message=quick)


@with_options(ChatOptions, ModelOptions, DrafterOptions, EngineOptions, SamplingOptions, OutputOptions, LogOptions)
def run(
    *options: Any,
    model: Annotated[str | None, typer.Argument(help=MODEL_HELP)] = None,
    message: Annotated[str | None, typer.Argument(help="One message; if left out, the piped input, or a chat.")] = None,
) -> None:
    """Answer one message, or chat if there is none. The arguments are those of ollama run."""
    if message is None and not sys.stdin.isatty():
        message = sys.stdin.read().removesuffix("\n")
        named = "" if model is None else f" for the model {model!r}"
        require(message.strip() != "", f"there is no message{named}: give forerun run MODEL MESSAGE, or pipe one in")
    _chat(*options, model=model, message=message)


def _chat(
    chat_options: ChatOptions,
    model_options: ModelOptions,
    drafter_options: DrafterOptions,
    engine_options: EngineOptions,
    sampling: SamplingOptions,
    form: OutputOptions,
    logs: LogOptions,
    *,
    model: str | None,
    message: str | None,
) -> None:
    require(message is None or message.strip() != "", "the message is empty: give at least one character")
    target = model_options.choose(model)
    config = engine_options.config(target, drafter_options.config(target))
    sampling.params()  # checks the values before the model is loaded
    files = KeptFiles(MAX_BYTES)
    saved = resumed(chat_options.resume, files)
    with logs.speaking(), open_engine(config) as engine:
        params = settle(sampling, engine.default_sampling) if saved is None else sampling.params(saved.params)
        note_all(config=config, params=params)
        with StopOnInterrupt() as interrupt:
            session = Session(engine, params, TypedLines(interrupt), options=chat_options, form=form, files=files)
            if saved is not None:
                take_over(session, with_flags(saved, session))
            if message is None:
                talk(session, flags_of(chat))
                return
            is_interrupted = session.answer(message)
            KeptFile().update(session)
            if is_interrupted:
                raise typer.Exit(INTERRUPTED)


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
