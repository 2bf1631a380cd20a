"""OpenAI-compatible servers side by side: tokens/s of one stream, and the first token of a conversation's second turn.

python -m forerun_lab.checks.served_peers --serve "NAME=COMMAND with {port}" --serve "OTHER=..." [--data mt_bench]

Each command starts one server, all of them stay up, and every question goes to each in turn, over HTTP to
/v1/chat/completions, streamed: the question, then a second one on top of the answer. Times are a client's: from the
request to the event of the first tokens, and from there to the event of the last ones.
"""

import argparse
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

from forerun_lab.bench.peers.event_stream import post_events
from forerun_lab.bench.peers.server_peer import started
from forerun_lab.checks.common import questions_of, standard_arguments, write_results

SECOND_QUESTION = "Say it again in one short sentence."
Message = dict[str, str]


@dataclass(kw_only=True)
class Answers:
    """The results of one server: seconds to the first tokens of both turns, tokens/s after them, and tokens of the
    second prompt that were reused."""

    first_s: list[float] = field(default_factory=list)
    second_s: list[float] = field(default_factory=list)
    tokens_per_s: list[float] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)


def ask(url: str, messages: Sequence[Message], num_new: int) -> tuple[str, float, float, dict[str, Any]]:
    """An answer: its text, seconds to its first event with text, seconds from there to the last, and its usage."""
    body = {
        "messages": list(messages), "max_tokens": num_new, "temperature": 0.0, "seed": 1, "ignore_eos": True,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    texts = []
    times = []
    usage = dict[str, Any]()
    began = perf_counter()
    for event in post_events(f"{url}/v1/chat/completions", body):
        usage = event.get("usage") or usage
        if text := "".join(choice["delta"].get("content") or "" for choice in event["choices"]):
            texts.append(text)
            times.append(perf_counter() - began)
    return "".join(texts), times[0], times[-1] - times[0], usage


def measure(url: str, question: str, num_new: int, answers: Answers) -> None:
    """One conversation of two turns."""
    talk = [{"role": "user", "content": question}]
    text, first_s, rest_s, usage = ask(url, talk, num_new)
    answers.first_s.append(first_s)
    answers.tokens_per_s.append((usage["completion_tokens"] - 1) / rest_s)
    talk += [{"role": "assistant", "content": text}, {"role": "user", "content": SECOND_QUESTION}]
    _, second_s, _, usage = ask(url, talk, 16)
    answers.second_s.append(second_s)
    answers.cached.append((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))


def row_of(name: str, mine: Answers, first: Answers) -> dict[str, object]:
    ratios = [one / other for one, other in zip(first.tokens_per_s, mine.tokens_per_s, strict=True)]
    return {
        "server": name,
        "conversations": len(mine.first_s),
        "tokens/s": f"{median(mine.tokens_per_s):.1f}",
        "first over this": f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        "first token ms": f"{1e3 * median(mine.first_s):.1f}",
        "second turn's ms": f"{1e3 * median(mine.second_s):.1f}",
        "cached tokens": f"{median(mine.cached):.0f}",
    }


def main() -> None:
    parser = standard_arguments(__doc__, "served_peers", num_prompts=4, num_new=128)
    parser.add_argument("--serve", action="append", required=True, metavar="NAME=COMMAND")
    arguments: argparse.Namespace = parser.parse_args()
    commands = dict(entry.split("=", 1) for entry in arguments.serve)
    found = {name: Answers() for name in commands}
    questions = [question.turns[0] for question, _ in questions_of(arguments, arguments.num_prompts)]
    with ExitStack() as stack:
        urls = {name: stack.enter_context(started(shlex.split(command))) for name, command in commands.items()}
        for question in questions:
            for name, url in urls.items():
                measure(url, question, arguments.num_new, found[name])
    arguments.serve = list(commands)
    first = found[next(iter(found))]
    notes = [
        "Medians over conversations; tokens/s from the first event of an answer on, greedy, "
        f"{arguments.num_new} tokens each; 'first over this': those of the first server over this one's, by question."
    ]
    write_results(arguments, "Servers side by side", [row_of(name, mine, first) for name, mine in found.items()], notes)


if __name__ == "__main__":
    main()
