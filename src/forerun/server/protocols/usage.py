"""Parts of answers: usage and timings, in the formats of OpenAI and llama-server."""

from typing import Final

from forerun.core.steps import DrafterState, FinishReason, GenerationStats, StepStats
from forerun.server.protocols.answer import Answer
from forerun.server.protocols.sse import Body

FINISH: Final[dict[FinishReason, str]] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "length",  # a prompt that was only read
}


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
        | ({"replica": answer.replica} if answer.replica else {}),
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
    }  # fmt: skip


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
