"""What the writers of OpenAI's chat and completions share."""

from collections.abc import Sequence
from typing import Any

import forerun
from forerun.server.protocols.answer import Answer, AnswerChoice
from forerun.server.protocols.errors import ApiError
from forerun.server.protocols.protocol import openai_event
from forerun.server.protocols.sse import COMMENT, DONE, Body, data_event
from forerun.server.protocols.usage import FINISH, reported, usage_so_far


class OpenaiWriter:
    """Writes answers whose events have choices, each with a part of its text.

    Args:
        prefix: of the answer's id.
        kind: of the events.
        part: the key of a choice's part.
        nothing: the part of an event without text.
    """

    def __init__(self, answer: Answer, *, prefix: str, kind: str, part: str, nothing: Any) -> None:
        self._answer = answer
        self._kind = kind
        self._part = part
        self._nothing = nothing
        self._about = {
            "id": f"{prefix}-{answer.key}",
            "created": answer.created_s,
            "model": answer.model,
            "system_fingerprint": f"forerun-{forerun.__version__}",
        }

    def end(self, index: int) -> bytes:
        """The last event of a text; that of the last text has the timings, as in llama-server."""
        answer = self._answer
        is_last = index == len(answer.choices) - 1 and not answer.request.shows_usage
        roots = {"timings": reported(answer)["timings"]} if is_last else usage_so_far(answer)
        return self._chunk(index, self._nothing, finish_of(answer.choices[index]), **roots)

    def close(self) -> bytes:
        usage = self._event([], **reported(self._answer)) if self._answer.request.shows_usage else b""
        return usage + DONE

    def wait(self) -> bytes:
        return COMMENT

    def fail(self, error: ApiError) -> bytes:
        return openai_event(error, self._answer.request_id)

    def _chunk(
        self, index: int, part: Any, finish: str | None = None, *, logprobs: Body | None = None, **roots: Any
    ) -> bytes:
        choice = {"index": index, self._part: part, "logprobs": logprobs, "finish_reason": finish}
        return self._event([choice], **roots)

    def _event(self, choices: Sequence[Body], **roots: Any) -> bytes:
        return data_event({"object": self._kind, **self._about, "choices": choices, **roots})


def finish_of(choice: AnswerChoice) -> str | None:
    """Why a text ended, in OpenAI's words."""
    if choice.ends_with_calls:
        return "tool_calls"
    return None if choice.finish is None else FINISH[choice.finish]
