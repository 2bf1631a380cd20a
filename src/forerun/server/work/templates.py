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
from forerun.server.config import ServerConfig
from forerun.server.protocol.errors import ApiError, invalid
from forerun.text.chat_template import ChatTemplate

START_S: Final = 10.0  # for Python and Jinja to be imported
MAX_GROWTH: Final = 4  # bytes of a rendered text for each byte that may come in; JSON escapes included


class TemplateRenderer:
    """Renders one conversation at a time."""

    def __init__(self, template: ChatTemplate, config: ServerConfig) -> None:
        self._template, self._config = template, config
        self._child: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._is_closed = False

    async def begin(self) -> None:
        """Start the child ahead of the first request."""
        async with self._turn:
            await self._running_child()

    async def render(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, object]) -> str:
        """The text of a conversation.

        Raises:
            ApiError: the template refuses it, or takes too much time or memory.
        """
        line = json.dumps({"messages": messages, "variables": variables}).encode() + b"\n"
        async with self._turn:
            child = await self._running_child()
            try:
                async with asyncio.timeout(self._config.max_template_s):
                    answer = await self._exchange(child, line)
            except (TimeoutError, ValueError, OSError, asyncio.IncompleteReadError):
                await self._end_child()
                raise too_costly() from None
            except asyncio.CancelledError:
                await self._end_child()  # its answer would be taken for the next conversation's
                raise
        match answer:
            case {"text": str(text)}:
                return text
            case {"error": "refused"}:
                raise invalid("The model's chat template refuses these messages.", param="messages")
            case _:
                raise too_costly()

    async def close(self) -> None:
        """End the child."""
        self._is_closed = True
        await self._end_child()

    async def _running_child(self) -> asyncio.subprocess.Process:
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
        await self._send(self._child, json.dumps(head).encode() + b"\n")
        try:
            async with asyncio.timeout(START_S):  # a first, empty conversation is refused, once all is imported
                await self._exchange(self._child, b'{"messages": [], "variables": {}}\n')
        except (TimeoutError, ValueError, OSError, asyncio.IncompleteReadError):
            await self._end_child()
            raise too_costly() from None
        return self._child

    async def _exchange(self, child: asyncio.subprocess.Process, line: bytes) -> Any:
        await self._send(child, line)
        assert child.stdout is not None, "the child was started with a pipe"
        answer = await child.stdout.readuntil(b"\n")
        return json.loads(answer)

    async def _send(self, child: asyncio.subprocess.Process, line: bytes) -> None:
        assert child.stdin is not None, "the child was started with a pipe"
        child.stdin.write(line)
        await child.stdin.drain()

    async def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None and child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()


def too_costly() -> ApiError:
    return invalid(
        "The model's chat template takes too much time or memory for these messages.",
        param="messages",
        code="template_limit",
    )
