"""Converts a request's prompts to token ids, in threads outside the event loop and with limits on time and memory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from forerun.core.errors import ConfigError
from forerun.core.grammar import Grammar
from forerun.server.config import ServerConfig
from forerun.server.protocols.errors import ApiError, PromptTooLongError, invalid
from forerun.server.protocols.generation_request import Chat, GenerationRequest, Middle, PlainTexts
from forerun.server.protocols.response_format import INVALID_GRAMMAR
from forerun.server.work.answer_grammar import schemas_of
from forerun.server.work.chats import ChatReader, sentence
from forerun.server.work.engine_call import Prompt
from forerun.server.work.fill_in_middle import MiddleReader, middle_reader
from forerun.text.grammar_check import GrammarCheck, GrammarFaultError
from forerun.wires.bounded_child import Limits

if TYPE_CHECKING:  # imports torch, which is loaded in the engine's thread after the server listens
    from forerun.engine.engine import Engine

Found = TypeVar("Found")
MAX_FAULT_CHARACTERS: Final = 300
ENCODE_S: Final = 10.0  # 2 MiB of text take a second or two, and longer while the engine uses all cores
NUM_READERS: Final = (
    4  # owners whose prompts are read at a time, so that an owner with long prompts does not delay others
)


class PromptReader:
    """Computes token ids of prompts with the engine's tokenizer, in its own threads.

    Each owner uses one thread at a time, see `turn`, so that many long prompts of one owner do not delay the others.
    """

    def __init__(self, engine: "Engine", config: ServerConfig) -> None:
        self._tokenizer = engine.tokenizer
        self._vocab_size = engine.spec.vocab_size
        self._max_length = engine.max_length
        self._threads = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="tokenizer")
        self._turns: dict[str, asyncio.Lock] = {}
        limits = Limits(max_s=config.max_template_s, max_bytes=config.max_template_bytes)
        template = engine.tokenizer.chat_template
        self._chats = None if template is None else ChatReader(engine, template, limits, config.max_thought_tokens)
        self._middles = middle_reader(engine.tokenizer)
        self._engine = engine
        self._grammars = GrammarCheck()

    async def start(self) -> None:
        """Find the traits of the chat template, which takes a moment.

        Raises:
            ConfigError: the chat template is invalid, or takes too long.
        """
        loop = asyncio.get_running_loop()
        if self._chats is not None:
            await loop.run_in_executor(self._threads, self._chats.read_traits)
        await loop.run_in_executor(self._threads, self._grammars.start)

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._grammars.close()
        if self._chats is not None:
            self._chats.close()

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

    async def read(self, request: GenerationRequest) -> list[Prompt]:
        """A request's prompts as the model reads them.

        Raises:
            ApiError: a prompt or the grammar cannot be read, or the model does not support the request.
        """
        shape = request.grammar
        match request.prompt:
            case Chat() as chat:
                prompts = [await self.rendered(chat, shape)]
            case PlainTexts(prompts=given, echoes=echoes):
                prompts = [await self._plain(each, shape, echoes=echoes) for each in given]
            case Middle() as gap:
                middles = self._middles_of()
                ids = await self._apart(lambda: middles.ids(gap))
                echo = gap.prefix if gap.echoes else ""
                prompts = [Prompt(ids=ids, echo=echo, grammar=shape, end_ids=middles.end_ids)]
        if (grammar := prompts[0].grammar) is not None:
            await self._apart(lambda: self._require_grammar(grammar, request))
        if not request.prediction:
            return prompts
        predicted = await self.text(request.prediction, add_special_tokens=False)
        return [replace(prompt, prediction=predicted[: self._max_length]) for prompt in prompts]

    async def _plain(self, prompt: str | Sequence[int], shape: Grammar | None, *, echoes: bool) -> Prompt:
        """A text to continue, or its token ids."""
        if isinstance(prompt, str):
            return Prompt(ids=await self.text(prompt), echo=prompt if echoes else "", grammar=shape)
        return Prompt(ids=prompt, echo=await self.decode(prompt) if echoes else "", grammar=shape)

    async def rendered(self, chat: Chat, shape: Grammar | None = None) -> Prompt:
        """A conversation as the model reads it.

        Args:
            shape: what the answer must look like, without its thoughts.

        Raises:
            ApiError: the model has no template, or the template refuses the messages.
        """
        chats = self._chats
        if chats is None:
            raise invalid(
                "This model has no chat template: use /v1/completions.", param="messages", code="no_chat_template"
            )
        return await self._apart(lambda: chats.read(chat, shape))

    @property
    def fills_middles(self) -> bool:
        """True if the model can fill in the middle of a text."""
        return self._middles is not None

    def _middles_of(self) -> MiddleReader:
        if self._middles is None:
            raise invalid(
                "This model has no marks to fill in the middle of a text: leave the suffix out, or serve a model for "
                "code that has them.",
                param="suffix",
                code="no_infill",
            )
        return self._middles

    async def text(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a plain text."""
        return await self._apart(lambda: self._tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def _require_grammar(self, grammar: Grammar, request: GenerationRequest) -> None:
        """Raise ApiError, which names the cause, for a grammar that cannot be used."""
        at = request.grammar_at if request.grammar is not None else "tools"
        try:
            self._grammars.require(grammar, schemas_of(request))
            self._engine.require_grammar(grammar)
        except GrammarFaultError as error:
            place = error.place or at
            raise invalid(
                f"{place} cannot be made into a grammar: {str(error)[:MAX_FAULT_CHARACTERS]}.",
                param=place.partition(".")[0],
                code=INVALID_GRAMMAR,
            ) from None
        except ConfigError as error:
            raise invalid(sentence(error), param=at.partition(".")[0], code=INVALID_GRAMMAR) from None

    def require_prompt(self, ids: Sequence[int], *, param: str) -> None:
        """Raise ApiError for an empty prompt, for ids that the model lacks, and if no room is left for an answer."""
        if not ids:
            raise invalid("The prompt has no tokens: give at least one character.", param=param)
        if max(ids) >= self._vocab_size or min(ids) < 0:
            raise invalid(
                f"The prompt has a token id that the model lacks: its ids are 0 to {self._vocab_size - 1}.", param=param
            )
        if len(ids) >= self._max_length:
            raise PromptTooLongError(len(ids), self._max_length, param=param)

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
