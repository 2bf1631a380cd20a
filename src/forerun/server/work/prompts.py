"""Converts a request's prompts to token ids, in threads outside the event loop and with limits on time and memory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from forerun.core.errors import ConfigError
from forerun.server.config import ServerConfig
from forerun.server.protocol.errors import ApiError, invalid
from forerun.text.bounded_child import LimitError, Limits
from forerun.text.chat_template import ChatTemplate
from forerun.text.message import Message

if TYPE_CHECKING:  # imports torch, which is loaded in the engine's thread after the server listens
    from forerun.engine.engine import Engine

Found = TypeVar("Found")
ADD_PROMPT: Final = "add_generation_prompt"  # a variable of every template
ENCODE_S: Final = 10.0  # 2 MiB of text take a second or two, and longer while the engine uses all cores
NUM_READERS: Final = 4  # owners whose prompts are read at a time, so that an owner with long prompts delays no other


class PromptReader:
    """Computes token ids of prompts with the engine's tokenizer, in its own threads.

    Each owner uses one thread at a time, see `turn`, so that many long prompts of one owner do not delay the others.
    """

    def __init__(self, engine: "Engine", config: ServerConfig) -> None:
        self._tokenizer, self._vocab_size, self._max_length = (
            engine.tokenizer,
            engine.spec.vocab_size,
            engine.max_length,
        )
        self._variables = engine.config.chat_template_kwargs
        self._threads = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="tokenizer")
        self._turns: dict[str, asyncio.Lock] = {}
        self._template = engine.tokenizer.chat_template
        self._limits = Limits(max_s=config.max_template_s, max_bytes=config.max_template_bytes)
        self._asked_for = frozenset[str]()  # variables of the template, known after `begin`

    async def begin(self) -> None:
        """Find the chat template's variables, which takes a moment.

        Raises:
            ConfigError: the chat template is invalid, or takes too long.
        """
        if (template := self._template) is not None:
            loop = asyncio.get_running_loop()
            self._asked_for = await loop.run_in_executor(self._threads, lambda: template.variables(self._limits))

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._template is not None:
            self._template.close()

    @asynccontextmanager
    async def turn(self, owner: str) -> AsyncIterator[None]:
        """Within the block, no other prompt of this owner is read.

        Raises:
            ApiError: the wait for the owner's other prompts took too long.
        """
        lock = self._turns.setdefault(owner, asyncio.Lock())
        try:
            async with asyncio.timeout(ENCODE_S):
                await lock.acquire()
        except TimeoutError:
            raise too_slow() from None
        try:
            yield
        finally:
            lock.release()

    def unknown_variables(self, variables: Mapping[str, object]) -> list[str]:
        """The names of variables that the chat template does not use."""
        return [name for name in variables if name not in self._asked_for]

    async def chat(
        self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, object], *, continues: bool = False
    ) -> tuple[list[int], str]:
        """Ids of a conversation, and its text as formatted by the chat template.

        Args:
            continues: end the text with the last message, an answer that the model continues.

        Raises:
            ApiError: the model has no template, or the template refuses the messages.
        """
        template = self._template
        if template is None:
            raise invalid(
                "This model has no chat template: use /v1/completions.", param="messages", code="no_chat_template"
            )
        known = {name: value for name, value in variables.items() if name in self._asked_for or name == ADD_PROMPT}
        variables = {**self._variables, **known}
        parted = await self._apart(lambda: self._tokenizer.parted(messages))
        variables = self._tokenizer.parted_variables(variables)
        text = await self._apart(lambda: rendered(template, parted, variables, self._limits, continues=continues))
        return await self._apart(lambda: self._tokenizer.encode_rendered(text)), text

    async def text(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a plain text."""
        return await self._apart(lambda: self._tokenizer.encode(text, add_special_tokens=add_special_tokens))

    async def prediction(self, text: str) -> list[int]:
        """Token ids of a text that the answer may resemble, at most as many as fit into the context."""
        ids = await self.text(text, add_special_tokens=False) if text else []
        return ids[: self._max_length]

    def require_prompt(self, ids: Sequence[int], *, param: str) -> None:
        """Raise ApiError for an empty prompt, for ids that the model lacks, and if no room is left for an answer."""
        if not ids:
            raise invalid("The prompt has no tokens: give at least one character.", param=param)
        if max(ids) >= self._vocab_size or min(ids) < 0:
            raise invalid(
                f"The prompt has a token id that the model lacks: its ids are 0 to {self._vocab_size - 1}.", param=param
            )
        if len(ids) >= self._max_length:
            raise invalid(
                f"This model's maximum context length is {self._max_length} tokens, and the prompt has {len(ids)}: "
                "shorten it.",
                param="messages",
                code="context_length_exceeded",
            )

    def require_vocabulary(self, ids: Sequence[int], *, param: str) -> None:
        """Raise ApiError for ids that the model lacks."""
        if ids and max(ids) >= self._vocab_size:
            raise invalid(
                f"{param} has a token id that the model lacks: its ids are 0 to {self._vocab_size - 1}.", param=param
            )

    async def decode(self, ids: Sequence[int]) -> str:
        """The text of these token ids."""
        return await self._apart(lambda: self._tokenizer.decode(ids))

    async def _apart(self, work: Callable[[], Found]) -> Found:
        """Do work in a thread that would block the event loop, and return its result."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(ENCODE_S):
                return await loop.run_in_executor(self._threads, work)
        except TimeoutError:
            raise too_slow() from None
        except ConfigError:
            raise invalid("The prompt is not a text that the tokenizer can read.", param="messages") from None


def too_slow() -> ApiError:
    return ApiError(503, "Reading the prompt took too long: try again later.", code="prompt_timeout", retry_after_s=10)


def rendered(
    template: ChatTemplate, messages: Sequence[Message], variables: Mapping[str, object], limits: Limits,
    *, continues: bool = False,
) -> str:  # fmt: skip
    """The text of a conversation, as formatted by the chat template.

    Raises:
        ApiError: the template refuses the conversation, or takes too much time or memory.
    """
    try:
        return template.render(messages, variables, limits, continue_final_message=continues)
    except LimitError:
        raise invalid(
            "The model's chat template takes too much time or memory for these messages.",
            param="messages",
            code="template_limit",
        ) from None
    except ConfigError as error:
        reason = str(error)
        raise invalid(f"{reason[:1].upper()}{reason[1:]}.", param="messages") from None
