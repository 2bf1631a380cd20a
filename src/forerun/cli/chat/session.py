"""A conversation with its settings: questions in, answers shown and kept."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from forerun.cli.answer import describe_stats, write_answer
from forerun.cli.chat.reader import TypedLines
from forerun.cli.chat.wrap import wrapped_stdout
from forerun.cli.declare import option
from forerun.cli.failures import say
from forerun.cli.logs import note
from forerun.cli.output_options import OutputOptions
from forerun.core.config import UNTIL_FULL, SamplingParams
from forerun.core.steps import FinishReason, Generation
from forerun.text.conversation import Conversation

if TYPE_CHECKING:
    from forerun.engine.engine import Engine
    from forerun.text.prompt import Prompt

PLAIN_MODE = "this model has no chat template, so it continues the text you type rather than answering it"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """How the conversation goes."""

    system_prompt: Annotated[
        str | None, option("--system-prompt", "--system", "-sys", help="What comes before the first message.")
    ] = None
    stats: Annotated[bool, option("--stats", help="Print statistics after every answer.")] = False


class Session:
    """What a chat's commands act on.

    Args:
        params: how answers are chosen until a command changes it. Without a limit of their own they go on to the
            model's end of text; those of a model without chat template, which has no end of turn, keep the engine's.
    """

    def __init__(
        self, engine: "Engine", params: SamplingParams, reader: TypedLines, *, options: ChatOptions, form: OutputOptions
    ) -> None:
        has_template = engine.tokenizer.has_chat_template
        if params.max_new_tokens is None and has_template:
            params = replace(params, max_new_tokens=UNTIL_FULL)
        self.engine, self.reader = engine, reader
        self.params = self.params_at_start = params
        self.conversation = Conversation(has_template=has_template, system_prompt=options.system_prompt)
        self.is_over = False
        self._form, self._says_stats = form, options.stats
        self._last: Generation | None = None
        self._make_show, self._end = form.begin(engine)
        if not has_template:
            note(PLAIN_MODE)

    def answer(self, said: str) -> bool:
        """Answer one message; True when the user interrupted the answer."""
        prompt = self.conversation.prompt(said)
        with wrapped_stdout():
            answer, is_interrupted = write_answer(
                lambda: self.engine.stream(prompt, self.params), self._make_show(), self._end
            )
        if not answer.token_ids:
            return is_interrupted  # while the prompt was read: the conversation is as it was
        self._last = answer
        self.conversation.add(said, self._missing_space(prompt, answer) + answer.text)
        if answer.finish_reason is FinishReason.LENGTH and not self._form.is_json:
            say(f"({self._cause_of_cut(answer)})")
        if self._says_stats:
            self._form.note_numbers(self._numbers(answer))
        return is_interrupted

    def say_stats(self) -> None:
        """The numbers of the last answer."""
        say("nothing was answered yet" if self._last is None else self._numbers(self._last))

    def _numbers(self, answer: Generation) -> str:
        return describe_stats(answer, is_greedy=self.params.is_greedy)

    def _cause_of_cut(self, answer: Generation) -> str:
        num_new, longest = answer.stats.num_new_tokens, self.engine.spec.max_positions
        max_length = self.engine.max_length
        if answer.stats.num_prompt_tokens + num_new < max_length:
            return f"cut after {num_new} tokens; --max-new-tokens allows more"
        allowed = f", --max-length allows up to {longest}" if max_length < longest else ""
        return f"cut: the context of {max_length} tokens is full; /clear forgets what was said{allowed}"

    def _missing_space(self, prompt: "Prompt", answer: Generation) -> str:
        """The space before an answer that continues a text: sentencepiece tokenizers drop it where a text begins."""
        if not isinstance(prompt, str):
            return ""
        tokenizer, prompt_ids = self.engine.tokenizer, self.engine.encode(prompt)
        joined = tokenizer.decode([*prompt_ids, *answer.token_ids])[len(tokenizer.decode(prompt_ids)) :]
        return joined[: len(joined) - len(tokenizer.decode(answer.token_ids))]
