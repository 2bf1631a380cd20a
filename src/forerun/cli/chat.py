"""forerun chat: talk to a model in the terminal."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from forerun.cli.answer import Show, describe_stats, is_terminal, show_plainly, tree_shower, write_answer
from forerun.cli.declare import option, with_options
from forerun.cli.drafter_options import DrafterOptions
from forerun.cli.failures import INTERRUPTED, flags_of, in_flags, say, shows_errors
from forerun.cli.loading import open_engine
from forerun.cli.options import EngineOptions, SamplingOptions, settle
from forerun.core.config import SamplingParams
from forerun.core.drafter_config import BUILTIN_TARGET
from forerun.core.errors import ForerunError, require
from forerun.core.steps import FinishReason, Generation
from forerun.engine.conversation import Conversation

if TYPE_CHECKING:
    from forerun.engine.engine import Engine
    from forerun.engine.prompt import Prompt

HELP: Final = """\
/help    this list             /clear   forget what was said
/stats   numbers of the last answer     /multi   several lines, up to a line with only /end
/exit    leave (or Ctrl-D)     Ctrl-C   stop the answer; at the prompt, leave
A line that ends in \\ goes on in the next one. ! works in place of /."""
PLAIN_MODE: Final = "this model has no chat template, so it continues the text you type rather than answering it"


@shows_errors
@with_options(DrafterOptions, EngineOptions, SamplingOptions)
def chat(
    drafter_options: DrafterOptions,
    engine_options: EngineOptions,
    sampling: SamplingOptions,
    model: Annotated[str, typer.Argument(help="Checkpoint folder or hub name.")] = BUILTIN_TARGET,
    quick: Annotated[
        str | None, option("--quick", "-q", help="Send this one message, print the answer, leave.")
    ] = None,
    system_prompt: Annotated[str | None, option("--system-prompt", help="What comes before the first message.")] = None,
    stats: Annotated[bool, option("--stats", help="Print statistics after every answer.")] = False,
    show_tree: Annotated[bool, option("--show-tree", help="Colour tokens by who wrote them.")] = False,
) -> None:
    """Talk to a model. What was said stays in its cache, so that a turn costs only what is new."""
    require(quick is None or quick.strip() != "", "the message of --quick is empty: give at least one character")
    config = engine_options.config(model, drafter_options.config(model))
    sampling.params()  # complains before the model is loaded
    with open_engine(config) as engine:
        params = settle(sampling, engine.default_sampling)
        session = Session(engine, params, system_prompt=system_prompt, says_stats=stats, shows_tree=show_tree)
        if quick is not None:
            if session.answer(quick):
                raise typer.Exit(INTERRUPTED)
            return
        session.run()


class Session:
    """A chat from the first prompt to /exit."""

    def __init__(
        self,
        engine: "Engine",
        params: SamplingParams,
        *,
        system_prompt: str | None,
        says_stats: bool,
        shows_tree: bool,
    ) -> None:
        self._engine, self._params = engine, params
        self._says_stats, self._shows_tree = says_stats, shows_tree
        has_template = engine.tokenizer.has_chat_template
        self._conversation = Conversation(has_template=has_template, system_prompt=system_prompt)
        self._last: Generation | None = None
        if not has_template:
            say(PLAIN_MODE)

    def run(self) -> None:
        """Read and answer until the user leaves. A turn that fails is reported, and the chat goes on."""
        if is_terminal():
            import readline  # noqa: F401 - gives `input` line editing and history

            say("/help lists the commands")
        while (said := _read_turn()) is not None:
            try:
                if said[:1] in ("/", "!"):
                    if not self._obey(said[1:].strip()):
                        return
                elif said.strip():
                    self.answer(said)
            except ForerunError as error:
                say(f"error: {in_flags(str(error), flags_of(chat))}; /clear forgets what was said")

    def answer(self, said: str) -> bool:
        """Answer one message; True when the user interrupted the answer."""
        prompt = self._conversation.prompt(said)
        self._last, is_interrupted = write_answer(lambda: self._engine.stream(prompt, self._params), self._make_show())
        self._conversation.add(said, self._missing_space(prompt, self._last) + self._last.text)
        if self._last.finish_reason is FinishReason.LENGTH:
            say(f"({self._cause_of_cut(self._last)})")
        if self._says_stats:
            say(describe_stats(self._last))
        return is_interrupted

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

    def _make_show(self) -> Show:
        return tree_shower(self._engine.tokenizer) if self._shows_tree else show_plainly

    def _obey(self, command: str) -> bool:
        """Do what a command says; False to leave."""
        match command:
            case "exit" | "quit":
                return False
            case "clear":
                self._conversation.clear()
                say("forgotten")
            case "stats" if self._last is not None:
                say(describe_stats(self._last))
            case "stats":
                say("nothing was answered yet")
            case "multi":
                said = _read_until_end()
                if said.strip():
                    self.answer(said)
            case "help":
                say(HELP)
            case _:
                say(f"there is no command /{command}\n{HELP}")
        return True


def _read_turn() -> str | None:
    """What the user types, joined over lines that end in a backslash; None at the end of input."""
    lines: list[str] = []
    while True:
        try:
            line = input(("... " if lines else "> ") if is_terminal() else "")
        except EOFError:
            return "\n".join(lines) if lines else None
        if not line.endswith("\\"):
            return "\n".join([*lines, line])
        lines.append(line[:-1])


def _read_until_end() -> str:
    lines: list[str] = []
    while True:
        try:
            line = input("... " if is_terminal() else "")
        except EOFError:
            return "\n".join(lines)
        if line.strip() in ("/end", "!end"):
            return "\n".join(lines)
        lines.append(line)
