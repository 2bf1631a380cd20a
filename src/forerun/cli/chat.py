"""forerun chat: talk to a model in the terminal."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from forerun.cli.answer import describe_stats, is_terminal, write_answer
from forerun.cli.declare import option, with_options
from forerun.cli.drafter_options import DrafterOptions
from forerun.cli.engine_loading import open_engine
from forerun.cli.failures import INTERRUPTED, flags_of, in_flags, say, shows_errors
from forerun.cli.interrupt import StopOnInterrupt
from forerun.cli.logs import LogOptions, note, note_all
from forerun.cli.options import EngineOptions, ModelOptions, SamplingOptions, settle
from forerun.cli.output_options import OutputOptions
from forerun.core.config import SamplingParams
from forerun.core.drafter_config import BUILTIN_TARGET
from forerun.core.errors import ForerunError, require
from forerun.core.steps import FinishReason, Generation
from forerun.text.conversation import Conversation

if TYPE_CHECKING:
    from forerun.engine.engine import Engine
    from forerun.text.prompt import Prompt

HELP: Final = """\
/help    this list             /clear   forget what was said
/stats   numbers of the last answer     /multi   several lines, up to a line with only /end
/exit    leave (or Ctrl-D)     Ctrl-C   stop the answer; at the prompt, clear the line
A line that ends in \\ goes on in the next one; pasted lines are one message. ! works in place of /: to send a line
that begins with one of them, put a space before it."""
PLAIN_MODE: Final = "this model has no chat template, so it continues the text you type rather than answering it"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """How the conversation goes."""

    system_prompt: Annotated[
        str | None, option("--system-prompt", "--system", "-sys", help="What comes before the first message.")
    ] = None
    stats: Annotated[bool, option("--stats", help="Print statistics after every answer.")] = False


@shows_errors
@with_options(ChatOptions, ModelOptions, DrafterOptions, EngineOptions, SamplingOptions, OutputOptions, LogOptions)
def chat(
    *options: Any,
    model: Annotated[str | None, typer.Argument(help=f"Checkpoint folder or hub name [{BUILTIN_TARGET}].")] = None,
    quick: Annotated[
        str | None, option("--quick", "-q", help="Send this one message, print the answer, leave.")
    ] = None,
) -> None:
    """Talk to a model. What was said stays in its cache, so that a turn costs only what is new."""
    _talk(*options, model=model, message=quick)


@shows_errors
@with_options(ChatOptions, ModelOptions, DrafterOptions, EngineOptions, SamplingOptions, OutputOptions, LogOptions)
def run(
    *options: Any,
    model: Annotated[str | None, typer.Argument(help=f"Checkpoint folder or hub name [{BUILTIN_TARGET}].")] = None,
    message: Annotated[str | None, typer.Argument(help="One message; else what is piped in, else a chat.")] = None,
) -> None:
    """Answer one message, or talk where there is none: chat, called as ollama calls it."""
    if message is None and not is_terminal():
        message = sys.stdin.read().removesuffix("\n")
    _talk(*options, model=model, message=message)


def _talk(
    talk: ChatOptions,
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
    sampling.params()  # complains before the model is loaded
    with logs.speaking(), open_engine(config) as engine:
        params = settle(sampling, engine.default_sampling)
        note_all(config=config, params=params)
        session = Session(engine, params, talk, form)
        if message is None:
            session.run()
        elif session.answer(message):
            raise typer.Exit(INTERRUPTED)


class Session:
    """A chat from the first prompt to /exit."""

    def __init__(self, engine: "Engine", params: SamplingParams, talk: ChatOptions, form: OutputOptions) -> None:
        self._engine, self._params, self._form = engine, params, form
        self._says_stats = talk.stats
        has_template = engine.tokenizer.has_chat_template
        self._conversation = Conversation(has_template=has_template, system_prompt=talk.system_prompt)
        self._last: Generation | None = None
        self._make_show, self._end = form.begin(engine)
        if not has_template:
            note(PLAIN_MODE)

    def run(self) -> None:
        """Read and answer until the user leaves. A turn that fails is reported, and the chat goes on."""
        if is_terminal():
            _edit_lines()
            say("/help lists the commands")
        with StopOnInterrupt() as self._interrupt:
            while self._take_turn():
                pass

    def _take_turn(self) -> bool:
        """One message or command; False when the user leaves."""
        try:
            said = self._read_turn()
            if said is None:
                return False
            if said[:1] in ("/", "!") and "\n" not in said:
                return self._obey(said[1:].strip())
            if said.strip():
                self.answer(said[1:] if said[:2] in (" /", " !") else said)
        except ForerunError as error:
            say(f"error: {in_flags(str(error), flags_of(chat))}; /clear forgets what was said")
        except KeyboardInterrupt:  # at the prompt, as answers have their own ways
            if not is_terminal():
                raise
            say("" if _typed() else "\n/exit or Ctrl-D leaves")
        return True

    def answer(self, said: str) -> bool:
        """Answer one message; True when the user interrupted the answer."""
        prompt = self._conversation.prompt(said)
        answer, is_interrupted = write_answer(
            lambda: self._engine.stream(prompt, self._params), self._make_show(), self._end
        )
        if not answer.token_ids:
            return is_interrupted  # while the prompt was read: the conversation is as it was
        self._last = answer
        self._conversation.add(said, self._missing_space(prompt, self._last) + self._last.text)
        if self._last.finish_reason is FinishReason.LENGTH and not self._form.is_json:
            say(f"({self._cause_of_cut(self._last)})")
        if self._says_stats:
            self._form.note_numbers(self._numbers(self._last))
        return is_interrupted

    def _numbers(self, answer: Generation) -> str:
        return describe_stats(answer, is_greedy=self._params.is_greedy)

    def _cause_of_cut(self, answer: Generation) -> str:
        num_new, longest = answer.stats.num_new_tokens, self._engine.spec.max_positions
        max_length = self._engine.max_length
        if answer.stats.num_prompt_tokens + num_new < max_length:
            return f"cut after {num_new} tokens; --max-new-tokens allows more"
        allowed = f", --max-length allows up to {longest}" if max_length < longest else ""
        return f"cut: the context of {max_length} tokens is full; /clear forgets what was said{allowed}"

    def _missing_space(self, prompt: "Prompt", answer: Generation) -> str:
        """The space before an answer that continues a text: sentencepiece tokenizers drop it where a text begins."""
        if not isinstance(prompt, str):
            return ""
        tokenizer, prompt_ids = self._engine.tokenizer, self._engine.encode(prompt)
        joined = tokenizer.decode([*prompt_ids, *answer.token_ids])[len(tokenizer.decode(prompt_ids)) :]
        return joined[: len(joined) - len(tokenizer.decode(answer.token_ids))]

    def _obey(self, command: str) -> bool:
        """Do what a command says; False to leave."""
        match command:
            case "exit" | "quit":
                return False
            case "clear":
                self._conversation.clear()
                say("forgotten")
            case "stats" if self._last is not None:
                say(self._numbers(self._last))
            case "stats":
                say("nothing was answered yet")
            case "multi":
                said = self._read_until_end()
                if said.strip():
                    self.answer(said)
            case "help":
                say(HELP)
            case _:
                say(f"there is no command /{command}; to send this line as it is, put a space before it\n{HELP}")
        return True

    def _read_turn(self) -> str | None:
        """What the user types, joined over lines that end in a backslash; None at the end of input."""
        lines: list[str] = []
        while (line := self._read_line("... " if lines else "> ")) is not None:
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])
        return "\n".join(lines) if lines else None

    def _read_until_end(self) -> str:
        lines: list[str] = []
        while (line := self._read_line("... ")) is not None and line.strip() not in ("/end", "!end"):
            lines.append(line)
        return "\n".join(lines)

    def _read_line(self, prompt: str) -> str | None:
        try:
            return self._interrupt.read_line(prompt if is_terminal() else "")
        except EOFError:
            return None


def _edit_lines() -> None:
    """Give `input` line editing and history, and let it take pasted lines as one."""
    import readline

    readline.parse_and_bind("set enable-bracketed-paste on")


def _typed() -> str:
    """What stands on the line that was given up."""
    import readline

    return readline.get_line_buffer()
