"""JSON that is almost a request, bytes and values changed at random: refused, in words that tell nothing."""

import asyncio
import json
import random
from typing import Any, Final

from tests.server.strain.wire import TELLING, Address, Answer, Line, Outcome, side_by_side

CHAT: Final[dict[str, Any]] = {
    "model": "builtin", "messages": [{"role": "system", "content": "a"}, {"role": "user", "content": [
        {"type": "text", "text": "b"}]}], "max_tokens": 1, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1,
    "seed": 3, "n": 1, "stop": ["x"], "logit_bias": {"5": 1.5}, "logprobs": True, "top_logprobs": 2, "stream": False,
    "stream_options": {"include_usage": True}, "prediction": {"type": "content", "content": "c"}, "user": "d",
    "chat_template_kwargs": {"add_generation_prompt": True}, "forerun": {"drafter": "none", "details": True},
    "presence_penalty": 0.1, "frequency_penalty": 0.1, "repetition_penalty": 1.1, "stop_token_ids": [7],
}  # fmt: skip
COMPLETION: Final[dict[str, Any]] = {"prompt": "def f(", "max_tokens": 1, "echo": True, "ignore_eos": True, "seed": 1}
REQUESTS: Final = (
    ("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION), ("/tokenize", {"prompt": "a b"}),
    ("/tokenize", {"messages": CHAT["messages"]}), ("/detokenize", {"tokens": [1, 2, 3]}),
)  # fmt: skip
STRANGE: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1, 17, 2**31, 2**53, 2**63, -(2**63), 10**18, 1e308, -0.0, 1e-320, 0.5, "", "0", "1", "x",
    "\x00", "\u202e\ud7ff\uffff", "none", "a" * 300, "a" * 5000, [], {}, [[]], [None], [{}], {"": ""}, {"role": 1},
    [1, "a"], ["a"] * 20, [0] * 3000, {"type": "text"}, {"type": "image_url", "text": "x"}, {"5": "x"}, {"99999999": 1},
    {"a": {"b": {"c": []}}}, "http://127.0.0.1/", "../../etc/passwd", "{{ 7 * 7 }}", "<|im_start|>", "%s%n",
)  # fmt: skip
PIECES: Final = (
    b"NaN", b"Infinity", b"-", b"1e999", b"1" * 40, b"\\ud800", b"\\u12", b"\\x", b"\xff", b"\xed\xa0\x80", b"\xc0\x80",
    b"\x00", b"\x1f", b"\xef\xbb\xbf", b"[" * 70, b"{" * 70, b"]", b"}", b'"', b",", b":", b"//", b"'", b"True", b"\\",
)  # fmt: skip
KINDS: Final = {2: "valid", 4: "refused", 5: "unavailable"}
NUM_LINES: Final = 8
MAX_SHOWN: Final = 20  # faults in words; the rest is only counted


def changed_bytes(body: bytes, rng: random.Random) -> bytes:
    """A byte flipped, a part cut out, doubled or ended early, or a piece put in that JSON does not have."""
    begin = rng.randrange(len(body))
    end = min(len(body), begin + rng.choice((1, 1, 2, 8, 40)))
    match rng.randrange(6):
        case 0:
            return body[:begin] + bytes((body[begin] ^ 1 << rng.randrange(8),)) + body[begin + 1 :]
        case 1:
            return body[:begin] + body[end:]
        case 2:
            return body[:end] + body[begin:end] + body[end:]
        case 3:
            return body[:begin]
        case 4:
            return body[:begin] + rng.choice(PIECES) + body[end:]
        case _:
            return body[:begin] + rng.choice(PIECES) + body[begin:]


def changed_value(value: Any, rng: random.Random) -> Any:
    """The same with one part, however deep, in another form."""
    match value:
        case dict() if value and rng.random() < 0.85:
            name = rng.choice(list(value))
            match rng.randrange(6):
                case 0:
                    return {key: item for key, item in value.items() if key != name}
                case 1:
                    return value | {rng.choice(("tools", "suffix", "best_of", "response_format")): rng.choice(STRANGE)}
                case _:
                    return value | {name: changed_value(value[name], rng)}
        case list() if value and rng.random() < 0.6:
            place = rng.randrange(len(value))
            return [*value[:place], changed_value(value[place], rng), *value[place + 1 :]]
    return rng.choice(STRANGE)


def nested(body: bytes, rng: random.Random) -> bytes:
    """Far too deep, too wide, or with a key twice."""
    depth = rng.choice((65, 1000, 100_000))
    name = rng.choice((b"messages", b"prompt", b"x"))
    match rng.randrange(3):
        case 0:
            return b'{"%b": %b' % (name, b"[" * depth + b"]" * (depth if rng.random() < 0.5 else 1)) + b"}"
        case 1:
            return b'{"%b": [%b]}' % (name, b",".join([b"{}"] * 20_000))
        case _:
            return body[:-1] + b", " + body[1:]


def make(rng: random.Random) -> tuple[str, bytes]:
    """A path and a body that is, most of the time, wrong in one way or in several."""
    path, valid = rng.choice(REQUESTS)
    body = json.dumps(valid, ensure_ascii=rng.random() < 0.5).encode()
    kind = rng.random()
    if kind < 0.45:
        return path, changed_bytes(body, rng)
    if kind < 0.97:
        value: Any = valid
        for _ in range(rng.choice((1, 1, 2, 5))):
            value = changed_value(value, rng)
        return path, json.dumps(bounded(value), ensure_ascii=False).encode("utf-8", "surrogatepass")
    return path, nested(body, rng)


def bounded(value: Any) -> Any:
    """Of what is a request after all, one token: it is about refusals."""
    return {**value, "max_tokens": 1} if isinstance(value, dict) and type(value.get("max_tokens", 1)) is int else value


def fault_of(answer: Answer) -> str | None:
    """What is wrong with an answer; None where nothing is."""
    if answer.status >= 500 and answer.status != 503:
        return f"status {answer.status}"
    if answer.status < 400:
        return None
    if TELLING.search(answer.body):
        return "a body that tells of the inside"
    if set(answer.json()["error"]) != {"message", "type", "param", "code", "request_id"}:
        return "no error object"
    return None


async def strain(address: Address, num_refused: int, *, seed: int) -> Outcome:
    """Send malformed requests until so many were refused."""
    outcome = Outcome()
    rng = random.Random(seed)
    outcome.figures |= {"refused": 0, "valid": 0, "unavailable": 0, "faults": 0}

    async def send(_: int) -> None:
        async with Line(address) as line:
            while outcome.figures["refused"] < num_refused:
                path, body = make(rng)
                try:
                    answer = await line.post(path, body)
                    fault = fault_of(answer)
                    outcome.count(KINDS[answer.status // 100])
                except (OSError, EOFError, TimeoutError, ValueError) as error:
                    fault = f"no answer: {type(error).__name__}"
                    line.close()
                if fault is not None:
                    outcome.count("faults")
                    if len(outcome.faults) < MAX_SHOWN:
                        outcome.faults.append(f"{fault}: POST {path} {body[:2000]!r}")

    await side_by_side(NUM_LINES, send)
    return outcome


def run(address: Address, num_refused: int, *, seed: int = 0) -> Outcome:
    """`strain` in a loop of its own."""
    return asyncio.run(strain(address, num_refused, seed=seed))
