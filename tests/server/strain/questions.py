"""Small requests whose texts are known: what a crowded or hurt server answers is compared with them."""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.server.calling import SCHEMAS, WAYS, Way
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
    """A request.

    Args:
        plain: the request for the same text without a drafter, for a protocol that cannot ask for that.
        way: reads the answer, if it may have calls.
    """

    path: str
    asked: Mapping[str, Any]
    plain: "Question | None" = None
    way: Way | None = None

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


def varied_question(rng: random.Random) -> Question:
    """One of all protocols, perhaps with tools or a given form."""
    match rng.randrange(4):
        case 0:
            return called_question(rng)
        case 1:
            return shaped_question(rng)
    return question(rng)


def called_question(rng: random.Random) -> Question:
    """One that must or may call tools; protocols without seeds are asked greedily."""
    way = rng.choice([*WAYS.values()])
    names = rng.sample([*SCHEMAS], rng.randint(1, len(SCHEMAS)))
    asked = (names, rng.choice(["required", "auto", *names]), rng.random() < 0.3, rng.choice((12, 60)))
    chat = WAYS["chat"]
    sampled = {"temperature": 1.0, "seed": rng.randrange(2**31)}
    drawn = sampled if way is chat and rng.random() < 0.5 else {"temperature": 0.0}
    plain = Question(path=chat.path, asked={**chat.body(*asked), **drawn}, way=chat)
    return Question(path=way.path, asked={**way.body(*asked), **drawn}, plain=plain, way=way)


def shaped_question(rng: random.Random) -> Question:
    """One for a text that fits a JSON schema, a choice or a regular expression."""
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": rng.choice([*SCHEMAS.values()])}}
    shapes: list[dict[str, Any]] = [
        {"response_format": schema},
        {"structured_outputs": {"choice": ["left", "right", "straight on"]}},
        {"structured_outputs": {"regex": "[a-f]{3,9}(, [0-9]+){2}"}},
    ]
    asked = {**question(rng).asked, "max_tokens": rng.choice((6, 40)), **rng.choice(shapes)}
    is_chat = "messages" in asked
    return Question(path="/v1/chat/completions" if is_chat else "/v1/completions", asked=asked)


def text_of(answer: Answer, asked: Question | None = None) -> str:
    """The text of a whole answer, or of a stream that came to its end; with its calls, if it may have any."""
    is_stream = answer.headers[b"content-type"].startswith(b"text/event-stream")
    if asked is not None and asked.way is not None:
        read = asked.way.read(answer.body) if is_stream else asked.way.whole(answer.json())
        return f"{read.content}{[(name, arguments_of(text)) for _, name, text in read.calls]}"
    if is_stream:
        *events, done = [part[6:] for part in answer.body.split(b"\n\n") if part.startswith(b"data: ")]
        assert done == b"[DONE]", answer.body[-500:]
        return "".join(piece_of(choice) for event in events for choice in json.loads(event)["choices"])
    return piece_of(answer.json()["choices"][0])


def piece_of(choice: Mapping[str, Any]) -> str:
    told = choice.get("message") or choice.get("delta")
    return choice["text"] if "text" in choice else (told or {}).get("content") or ""


def arguments_of(text: str) -> Any:
    """The arguments of a call; none of one that was cut."""
    try:
        return json.loads(text)
    except ValueError:
        return {}


async def plain_text(line: Line, asked: Question) -> str:
    """The text without any drafter."""
    asked = asked.plain or asked
    answer = await line.post(asked.path, asked.body(forerun={"drafter": "none"}))
    assert answer.status == 200, answer
    return text_of(answer, asked)
