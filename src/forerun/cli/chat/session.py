"""A conversation with its settings: it answers messages, and shows and stores the answers."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Final

from forerun.cli.answer import write_answer
from forerun.cli.answer_statistics import advice, all_numbers, counted
from forerun.cli.chat.reader import TypedLines
from forerun.cli.chat.settings import ChatSettings
from forerun.cli.failures import say
from forerun.cli.flags import option, output, with_flags_of
from forerun.cli.logs import note
from forerun.cli.output_options import OutputOptions
from forerun.cli.streams import printable
from forerun.cli.wrap import wrapped
from forerun.core.config import UNTIL_FULL, SamplingParams, seed_of_text
from forerun.core.kept_files import KeptFiles
from forerun.core.steps import FinishReason, Generation
from forerun.text.conversation import Conversation

if TYPE_CHECKING:
    from forerun.engine.engine import Engine
    from forerun.text.prompt import Prompt

PLAIN_MODE: Final = "this model has no chat template, so it continues the text you type rather than answering it"
WAYS_OUT: Final = "/shift drops the oldest turns, /clear forgets all"
MAX_SHOWN: Final = 60  # characters of a message, to recognise it by


@with_flags_of()
class ChatOptions:
    """Settings of the conversation."""

    system_prompt: Annotated[
        str | None, option("--system-prompt", "--system", "-sys", help="System prompt, before the first message.")
    ] = None
    context_shift: Annotated[
        bool, option("--context-shift", help="If the context is full, drop the oldest turns without asking.")
    ] = False
    resume: Annotated[
        Path | None,
        output("--resume", help="Continue this file's conversation and save it there; the file may be new."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """An answer with its prompt and settings."""

    prompt: "Prompt"
    settings: ChatSettings
    result: Generation


class Session:
    """The state of a chat, which its commands change.

    Args:
        params: the sampling parameters until a command changes them. Without max_new_tokens, answers end at the model's
            end of text; a model without a chat template has no end of turn, so the engine's limit holds for it.
        files: the files that this chat has read or written.
    """

    def __init__(
        self,
        engine: "Engine",
        params: SamplingParams,
        lines: TypedLines,
        *,
        options: ChatOptions,
        form: OutputOptions,
        files: KeptFiles,
    ) -> None:
        has_template = engine.tokenizer.has_chat_template
        if params.max_new_tokens is None and has_template:
            params = replace(params, max_new_tokens=UNTIL_FULL)
        self.engine = engine
        self.lines = lines
        self.settings = self.settings_at_start = ChatSettings(
            params=params,
            variables=engine.config.chat_template_kwargs,
            allowed=engine.tokenizer.template_variables(),
        )
        self.conversation = Conversation(has_template=has_template, system_prompt=options.system_prompt)
        self.is_over = False
        self.file = options.resume  # it is updated after every turn
        self.files = files
        self._form = form
        self._options = options
        self._last: Answered | None = None
        self._num_again = 0  # answers to the last question before this one
        self._was_advised = False
        self._make_show, self._end = form.start_display(engine)
        if not has_template:
            note(PLAIN_MODE)

    def answer(self, said: str) -> bool:
        """Answer one message; True when the user interrupted the answer."""
        self._num_again = 0
        return self._answer(said, self.settings)

    def answer_again(self) -> None:
        """Replace the last answer by another one to the same question, unless it would be the same."""
        turns = self.conversation.turns
        num_turns = len(self.conversation.turns)
        if not turns:
            say("nothing was answered yet")
            return
        before = turns[-1]
        num_dropped = self.conversation.num_dropped
        self.conversation.take_back()
        try:
            if self._would_repeat(before.said):
                say("the answer would be the same, as decoding is greedy; /set temperature 0.7 gives others")
                return
            self._num_again += 1
            self._answer(before.said, self._with_another_seed())
        finally:
            if len(turns) < num_turns:  # interrupted before the first word, or failed
                turns.append(before)
                self.conversation.num_dropped = num_dropped

    def go_on(self) -> None:
        """Continue the last answer from its end, for example if it was stopped or cut off."""
        talk = self.conversation
        if not talk.turns[talk.num_dropped :]:
            say("there is no answer to continue")
            return
        turn = talk.turns[-1]
        variables = self.settings.variables
        prompt = self.engine.encode(talk.going_on(), chat_template_kwargs=variables, continue_final_message=True)
        result, _ = self._write(prompt, self.settings)
        if not result.text:
            say("(the model adds nothing)")
        if result.token_ids:
            text = self._missing_space(prompt, result) + result.text
            is_stopped = is_cancelled(result)
            talk.turns[-1] = replace(turn, answer=turn.answer + text, is_stopped=is_stopped)

    def drop(self, num_dropped: int) -> None:
        """Stop sending this many of the oldest turns."""
        self.conversation.num_dropped = num_dropped
        total = count_of(self.conversation)
        say(f"(left out from now on: the oldest {num_dropped} of {total}; files keep them all)")

    def say_stats(self) -> None:
        """Print the statistics of the last answer."""
        last = self._last
        if last is None:
            say("nothing was answered yet")
            return
        say(all_numbers(last.result, self.engine.config.drafter, is_greedy=last.settings.params.is_greedy))

    def _make_room(self, said: str, settings: ChatSettings) -> None:
        """Drop the oldest turns if the answer needs their room and the user agrees."""
        talk = self.conversation
        max_length = self.engine.max_length
        num_new = settings.params.max_new_tokens

        def num_tokens(num_dropped: int) -> int:
            prompt = talk.prompt(said, num_dropped)
            return len(self.engine.encode(prompt, chat_template_kwargs=settings.variables))

        num_dropped = turns_to_drop(
            num_tokens,
            num_dropped=talk.num_dropped,
            num_turns=len(talk.turns),
            max_length=max_length,
            num_new=None if num_new == UNTIL_FULL else num_new,
        )
        question = f"the context of {max_length} tokens is full: drop the oldest {counted(num_dropped, 'turn')}?"
        if num_dropped > talk.num_dropped and (self._options.context_shift or self.lines.agrees(question)):
            self.drop(num_dropped)

    def _answer(self, said: str, settings: ChatSettings) -> bool:
        self._make_room(said, settings)
        prompt = self.conversation.prompt(said)
        result, is_interrupted = self._write(prompt, settings)
        if result.token_ids:  # else it was stopped while the prompt was read, and the conversation is unchanged
            answer = self._missing_space(prompt, result) + result.text
            self.conversation.add(said, answer, is_stopped=is_cancelled(result))
        return is_interrupted

    def _write(self, prompt: "Prompt", settings: ChatSettings) -> tuple[Generation, bool]:
        """Print an answer; return it, and whether the user interrupted it."""
        with wrapped("stdout"):
            result, is_interrupted = write_answer(
                lambda: self.engine.stream(prompt, settings.params, chat_template_kwargs=settings.variables),
                self._make_show(),
                self._end,
            )
        if result.token_ids:
            self._last = Answered(prompt=prompt, settings=settings, result=result)
            self._tell(result, is_greedy=settings.params.is_greedy)
        return result, is_interrupted

    def _tell(self, result: Generation, *, is_greedy: bool) -> None:
        """Print the lines under an answer: why it is incomplete, its statistics, and what would be faster."""
        drafter = self.engine.config.drafter
        if not self._form.is_json and is_cancelled(result):
            say("[stopped]")
        if not self._form.is_json and result.finish_reason is FinishReason.LENGTH:
            say(f"({self._cause_of_cut(result)})")
        self._form.note_numbers(result, drafter, is_greedy=is_greedy)
        hint = advice(result, drafter)
        if hint is not None and not self._was_advised and not self._form.is_json:
            self._was_advised = True
            note(hint)

    def _with_another_seed(self) -> ChatSettings:
        """The settings for another answer: with a seed computed from their own if they have one, else a new one."""
        params = self.settings.params
        if params.is_greedy or params.seed is None:
            return self.settings
        return replace(self.settings, params=replace(params, seed=seed_of_text(params.seed, self._num_again)))

    def _would_repeat(self, said: str) -> bool:
        """Whether the model would give the last answer again."""
        last = self._last
        return (
            last is not None
            and self.settings.params.is_greedy
            and not is_cancelled(last.result)
            and (last.prompt, last.settings) == (self.conversation.prompt(said), self.settings)
        )

    def _cause_of_cut(self, answer: Generation) -> str:
        num_new = answer.stats.num_new_tokens
        longest = self.engine.spec.max_positions
        max_length = self.engine.max_length
        if answer.stats.num_prompt_tokens + num_new < max_length:
            return f"cut after {num_new} tokens; --max-new-tokens allows more"
        allowed = f", --max-length allows up to {longest}" if max_length < longest else ""
        return f"cut: the context of {max_length} tokens is full; {WAYS_OUT}{allowed}"

    def _missing_space(self, prompt: "Prompt", answer: Generation) -> str:
        """The space before an answer that continues a text: sentencepiece tokenizers drop it where a text begins."""
        from forerun.text.prompt import holds_messages  # imports tokenizers

        if holds_messages(prompt):
            return ""
        tokenizer = self.engine.tokenizer
        prompt_ids = self.engine.encode(prompt)
        joined = tokenizer.decode([*prompt_ids, *answer.token_ids])[len(tokenizer.decode(prompt_ids)) :]
        return joined[: len(joined) - len(tokenizer.decode(answer.token_ids))]


def is_cancelled(result: Generation) -> bool:
    """Whether the user stopped it before its end."""
    return result.finish_reason is FinishReason.CANCELLED


def count_of(conversation: Conversation) -> str:
    """How many turns there are, in words."""
    return counted(len(conversation.turns), "turn")


def shortened(text: str) -> str:
    """The beginning of a text on one line, without control characters, which a file may contain."""
    return printable(shorten(text, MAX_SHOWN, placeholder=" ..."))


LEAST_ANSWER: Final = 256  # tokens that an answer without a limit should have room for, as generate's have
LEAST_SHARE: Final = 4  # or this part of a context that is shorter than four such answers
KEPT_SHARE: Final = 2  # half of the context is kept, as in llama.cpp, so that turns are not dropped again soon


def turns_to_drop(
    num_tokens: Callable[[int], int], *, num_dropped: int, num_turns: int, max_length: int, num_new: int | None
) -> int:
    """How many of the oldest turns must be dropped, including those that were dropped before.

    Args:
        num_tokens: tokens of the prompt by the number of turns that are dropped.
        num_new: the limit of the answer in tokens, if there is one.

    Returns:
        `num_dropped` if the prompt fits, and also if it would not fit even without any turn.
    """
    wanted = num_new or min(LEAST_ANSWER, max_length // LEAST_SHARE)
    limit = max_length - wanted
    alone = num_tokens(num_turns)
    if num_tokens(num_dropped) <= limit or alone >= max_length:
        return num_dropped
    last = num_tokens(num_turns - 1)  # the last turn is kept if it fits, as the question may be about it
    kept = max(last if last <= limit else alone, min(limit, max_length // KEPT_SHARE))
    return bisect_left(range(num_turns), True, lo=num_dropped, key=lambda number: num_tokens(number) <= kept)
