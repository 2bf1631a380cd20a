"""Answers made of events, written by the writer of a protocol."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from forerun.core.steps import DecodeStep, FinishReason, Generation, GenerationStats, StepStats
from forerun.server.protocols.answer import Answer, AnswerChoice, EventParser
from forerun.server.protocols.generation_request import GenerationRequest, PlainTexts
from forerun.server.protocols.protocol import ApiProtocol
from forerun.text.output.events import OutputEvent
from forerun.text.tokenizer import Tokenizer

STATS = StepStats(
    num_drafted=0, num_verified=1, num_accepted=0, num_near_ties=0, draft_s=0.0, verify_s=0.0, was_hit=False
)
OF_ALL = GenerationStats(
    **{item.name: 1 for item in fields(GenerationStats) if item.name not in ("rounds_by", "speedup", "skips")}
)


class Script:
    """Gives the events of each round in turn."""

    def __init__(self, rounds: Sequence[Sequence[OutputEvent]]) -> None:
        self._rounds = [list(events) for events in rounds]

    def feed(self, text: str) -> list[OutputEvent]:
        return self._rounds.pop(0)

    def finish(self) -> list[OutputEvent]:
        return []


def written(
    protocol: ApiProtocol,
    rounds: Sequence[Sequence[OutputEvent]] | Sequence[str],
    tokenizer: Tokenizer,
    *,
    parser: EventParser | None = None,
    source: Any = None,
    finish: FinishReason = FinishReason.STOP,
    stop: str = "",
) -> tuple[bytes, dict[str, Any]]:
    """An answer as a stream and as a whole.

    Args:
        rounds: the events of each round, or its text, for the parser.
    """
    texts = [said if isinstance(said, str) else "x" for said in rounds]
    script = Script([said for said in rounds if not isinstance(said, str)])
    choice = AnswerChoice(tokenizer, parser or script, echo="", has_details=False)
    request = GenerationRequest(prompt=PlainTexts(prompts=("",)), param="", source=source, streams=True)
    answer = Answer(request=request, request_id="r", model="m", choices=[choice], num_prompt_tokens=3, drafter="none")
    writer = protocol.writer(answer)
    stream = writer.start() + writer.wait()
    for place in range(len(rounds)):
        is_last = place == len(rounds) - 1
        step = DecodeStep(
            token_ids=(5,),
            text=texts[place],
            finish=finish if is_last else None,
            stats=STATS,
            stop=stop if is_last else "",
        )
        stream += writer.add(0, choice.parse(step))
    choice.end(Generation(text="", token_ids=(5,), finish_reason=finish, seed=0, stats=OF_ALL))
    stream += writer.end(0) + writer.close()
    return stream, writer.whole()
