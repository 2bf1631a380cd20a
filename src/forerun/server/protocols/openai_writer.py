"""What the writers of OpenAI's chat and completions share: events, usage, and timings in llama-server's form."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import forerun
from forerun.core.steps import DrafterState, FinishReason, GenerationStats, SkipReport, StepStats
from forerun.server.protocols.answer import Answer, AnswerChoice
from forerun.server.protocols.errors import ApiError
from forerun.server.protocols.protocol import openai_event
from forerun.server.protocols.sse import COMMENT, DONE, Body, data_event

FINISH: Final[dict[FinishReason, str]] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "length",  # a prompt that was only read
}


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

    def wait(self, progress: Body | None = None) -> bytes:
        return COMMENT if progress is None else self._chunk(0, self._nothing, **usage_so_far(self._answer), **progress)

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


def reported(answer: Answer) -> Body:
    """Usage of all texts and the timings of the last one."""
    return {"usage": usage(answer), "timings": timings(answer.results[-1].stats)}


def usage(answer: Answer) -> Body:
    """Token usage of a request. A prompt counts once, even if several texts are written for it."""
    results = answer.results
    predicted = results if answer.request.prediction else ()  # forced tokens of a grammar are drafted like a prediction
    num_new = sum(result.stats.num_new_tokens for result in results)
    return {
        **counted(answer.num_prompt_tokens, num_new),
        "prompt_tokens_details": {"cached_tokens": answer.num_cached_tokens},
        "completion_tokens_details": {
            "accepted_prediction_tokens": sum(result.stats.num_predicted_accepted for result in predicted),
            "rejected_prediction_tokens": sum(result.stats.num_predicted_rejected for result in predicted),
        },
        "forerun": speculation(results[-1].stats, answer.drafter, answer.choices[-1].last)
        | ({"replica": answer.process} if answer.process else {})
        | ({"prompt_change": answer.prompt_change} if answer.prompt_change else {}),
    }


def usage_so_far(answer: Answer) -> Body:
    """The key `usage` of an event before the last one, if the client wants any."""
    request = answer.request
    if not request.shows_usage:
        return {}
    return {"usage": counted(answer.num_prompt_tokens, answer.num_new_tokens) if request.shows_usage_so_far else None}


def counted(num_prompt: int, num_new: int) -> Body:
    """Only token counts."""
    return {"prompt_tokens": num_prompt, "completion_tokens": num_new, "total_tokens": num_prompt + num_new}


def speculation(stats: GenerationStats, drafter: str, last: StepStats | None) -> Body:
    """Statistics of speculative decoding for one text."""
    speedup = stats.speedup
    return {
        "drafter": drafter,
        "tokens_per_round": round(stats.tokens_per_round, 3),
        "hit_rate": round(stats.hit_rate, 4),
        "speedup": None if speedup is None else {
            "value": round(speedup.value, 3), "low": round(speedup.low, 3), "high": round(speedup.high, 3),
        },
        "plain_token_ms": None if speedup is None else round(speedup.plain_token_s * 1e3, 3),
        "drafter_state": (DrafterState.READY if last is None else last.drafter).value,
        "rounds": stats.num_rounds,
        "drafted": stats.num_drafted,
        "accepted": stats.num_accepted,
        **skipping(stats.skips),
    }  # fmt: skip


def skipping(skips: SkipReport | None) -> Body:
    """The key `skips` of a target that drafts for itself; empty for others."""
    return {} if skips is None else {"skips": asdict(skips)}


def timings(stats: GenerationStats) -> Body:
    """The times of one text under llama-server's names.

    The last prompt token is read in the first round, so prompt_n includes it and the prompt times do not.
    """
    num_read = stats.num_prompt_tokens - stats.num_reused_tokens
    return {
        "prompt_n": num_read,
        "prompt_ms": round(stats.prefill_s * 1e3, 3),
        "prompt_per_token_ms": token_ms(stats.prompt_tokens_per_s),
        "prompt_per_second": round(stats.prompt_tokens_per_s, 2),
        "predicted_n": stats.num_new_tokens,
        "predicted_ms": round(stats.decode_s * 1e3, 3),
        "predicted_per_token_ms": token_ms(stats.tokens_per_s),
        "predicted_per_second": round(stats.tokens_per_s, 2),
        "cache_n": stats.num_reused_tokens,
        "draft_n": stats.num_drafted,
        "draft_n_accepted": stats.num_accepted,
    }


def token_ms(tokens_per_s: float) -> float:
    """Milliseconds per token; 0 if there were no tokens."""
    return round(1e3 / tokens_per_s, 3) if tokens_per_s else 0.0
