"""Small requests whose texts are known: what a crowded or hurt server answers is compared with them."""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.server.strain.wire import Answer, Line

STARTS: Final = (
    "def read(path):",
    "class Tree:",
    "import ",
    "for item in",
    "return ",
    "# The sum of",
    "if name ==",
    "x = [",
)
NUM_TOKENS: Final = (8, 24)


@dataclass(frozen=True, kw_only=True)
class Question:
    """A request for a completion or a chat, greedy or sampled."""

    path: str
    asked: Mapping[str, Any]

    def body(self, **changes: Any) -> bytes:
        return json.dumps({**self.asked, **changes}).encode()


def question(rng: random.Random) -> Question:
    """One of very many."""
    text = rng.choice(STARTS) + "".join(
        rng.choice((" a", " b", "(", "\n", " self", " 1")) for _ in range(rng.randrange(6))
    )
    asked: dict[str, Any] = {"max_tokens": rng.randint(*NUM_TOKENS), "seed": rng.randrange(2**31)}
    asked["temperature"] = rng.choice((0.0, 0.7, 1.0))
    if rng.random() < 0.3:
        return Question(path="/v1/chat/completions", asked={**asked, "messages": [{"role": "user", "content": text}]})
    return Question(path="/v1/completions", asked={**asked, "prompt": text})


def text_of(answer: Answer) -> str:
    """The text of a whole answer, or of a stream that came to its end."""
    if answer.headers[b"content-type"].startswith(b"text/event-stream"):
        *events, done = [part[6:] for part in answer.body.split(b"\n\n") if part.startswith(b"data: ")]
        assert done == b"[DONE]", answer.body[-500:]
        return "".join(piece_of(choice) for event in events for choice in json.loads(event)["choices"])
    return piece_of(answer.json()["choices"][0])


def piece_of(choice: Mapping[str, Any]) -> str:
    told = choice.get("message") or choice.get("delta")
    return choice["text"] if "text" in choice else (told or {}).get("content") or ""


async def plain_text(line: Line, asked: Question) -> str:
    """The text without any drafter."""
    answer = await line.post(asked.path, asked.body(forerun={"drafter": "none"}))
    assert answer.status == 200, answer
    return text_of(answer)
