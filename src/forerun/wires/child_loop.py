"""The loop of a process that runs a model's untrusted programs; `BoundedChild` is its other end."""

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias

Said: TypeAlias = Mapping[str, Any]
Answer: TypeAlias = Callable[[Said], Said]

SPARE_CPU_S: Final = 1  # the limit has whole seconds; the waiting process gives up sooner


def answer_questions(answerer: Callable[[Said], Answer]) -> None:
    """Answer each line of the input with a line of JSON, until the input ends.

    Args:
        answerer: takes the first line and returns the function that answers the others. It is called with the limits of
            the first question.
    """
    head = json.loads(sys.stdin.buffer.readline())
    answer = None
    for line in sys.stdin.buffer:
        try:
            asked = json.loads(line)
            limit(asked["max_s"], asked["max_bytes"])
            answer = answer or answerer(head)
            text = json.dumps(answer(asked))
        except MemoryError:
            text = json.dumps({"costly": "it took more memory than its limit"})
        sys.stdout.buffer.write(text.encode() + b"\n")
        sys.stdout.buffer.flush()


def limit(max_s: float, max_bytes: int) -> None:
    """Have the system end this process if it computes for longer, even if the process that waits for it has ended.

    Windows has no such limits: there only the process that waits ends this one, when its time is over.
    """
    if sys.platform == "win32":
        return
    import resource

    usage = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(usage.ru_utime + usage.ru_stime + max_s) + SPARE_CPU_S
    for kind, most in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, max_bytes)):
        _, hard = resource.getrlimit(kind)
        with suppress(ValueError, OSError):  # a system without this limit, as macOS is for memory
            resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
