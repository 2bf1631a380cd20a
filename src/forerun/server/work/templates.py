"""Chat templates rendered in a process of their own, so that one that runs for ever can be ended.

A template comes with a model and is a program: the sandbox keeps it from files and attributes, but sets no bound to its
time or memory. No bound counted inside is sound (a filter or a product of strings is one step and may take minutes), so
it runs in a child with the system's limits, which is killed where it is late and begun anew for the next request.
"""

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import forerun
from forerun.core.errors import ConfigError
from forerun.server.config import ServerConfig
from forerun.server.protocol.errors import ApiError, invalid
from forerun.text.chat_template import ChatTemplate

START_S: Final = 10.0  # for Python and Jinja to be imported
MAX_GROWTH: Final = 4  # bytes of a rendered text for each byte that may come in; JSON escapes included
# Too late; an answer too long or none; an answer that is no JSON; a child that has ended.
FAULTS: Final = (TimeoutError, asyncio.LimitOverrunError, asyncio.IncompleteReadError, ValueError, OSError)


class TemplateRenderer:
    """Renders one conversation at a time."""

    def __init__(self, template: ChatTemplate, config: ServerConfig) -> None:
        self._template, self._config = template, config
        self._child: asyncio.subprocess.Process | None = None
        self.variables = frozenset[str]()  # that the template asks for, known once the child has begun
        self._turn = asyncio.Lock()

    async def begin(self) -> None:
        """Start the child ahead of the first request.

        Raises:
            ConfigError: it is no template.
            ApiError: to find this out takes too long.
        """
        async with self._turn:
            await self._running_child()

    async def render(
        self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, object], *, continues: bool = False
    ) -> str:
        """The text of a conversation.

        Args:
            continues: end it behind the last message, an answer that goes on.

        Raises:
            ApiError: the template refuses it, or takes too much time or memory.
        """
        line = json.dumps({"messages": messages, "variables": variables, "continues": continues}).encode() + b"\n"
        async with self._turn:
            child = await self._running_child()
            answer = await self._ask(child, line, self._config.max_template_s)
        match answer:
            case {"text": str(text)}:
                return text
            case {"refused": str(reason)}:
                raise invalid(f"{reason[:1].upper()}{reason[1:]}.", param="messages")
            case _:
                raise too_costly()

    async def close(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if child is not None:
            await end_child(child)

    async def _running_child(self) -> asyncio.subprocess.Process:
        """The child, begun anew where there is none."""
        if self._child is not None and self._child.returncode is None:
            return self._child
        source = str(Path(forerun.__file__).resolve().parents[1])
        self._child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "forerun.server.work.template_child",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            env={"PYTHONPATH": source}, limit=MAX_GROWTH * self._config.max_body_bytes,
            start_new_session=True,  # Ctrl-C in a terminal is for the server, which drains first
        )  # fmt: skip
        head = {
            "source": self._template.source,
            "special_tokens": dict(self._template.special_tokens),
            "max_bytes": self._config.max_template_bytes,
            "max_s": self._config.max_template_s,
        }
        child = self._child
        match await self._ask(child, json.dumps(head).encode() + b"\n", START_S):
            case {"variables": [*names]}:
                self.variables = frozenset(names)
                return child
            case {"refused": str(reason)}:
                raise ConfigError(reason)
            case _:
                raise too_costly()

    async def _ask(self, child: asyncio.subprocess.Process, lines: bytes, limit_s: float) -> Any:
        """What the child answers. One that is late, ends or is given up is killed: a later answer would be taken for
        that to the next conversation.
        """
        assert child.stdin is not None, "the child was started with pipes"
        assert child.stdout is not None, "the child was started with pipes"
        try:
            async with asyncio.timeout(limit_s):
                child.stdin.write(lines)
                await child.stdin.drain()
                return json.loads(await child.stdout.readuntil(b"\n"))
        except FAULTS:
            await self.close()
            raise too_costly() from None
        except asyncio.CancelledError:
            await self.close()
            raise


async def end_child(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()


def too_costly() -> ApiError:
    return invalid(
        "The model's chat template takes too much time or memory for these messages.",
        param="messages",
        code="template_limit",
    )
