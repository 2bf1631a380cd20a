"""A process that renders chat templates, in bounds of memory and time: it may be killed at any moment.

It reads and writes lines of JSON. First comes the template, which is answered by the variables that it asks for, then a
line for each conversation, which is answered by its text; or by what is wrong.
"""

import json
import resource
import sys
from typing import Any, Final

from forerun.core.errors import ConfigError
from forerun.text.chat_template import ChatTemplate

SPARE_CPU_S: Final = 1  # the limit has whole seconds; whoever waits gives up sooner


def main() -> None:
    """Answer until the input ends."""
    head = json.loads(sys.stdin.buffer.readline())
    resource.setrlimit(resource.RLIMIT_AS, (head["max_bytes"], head["max_bytes"]))
    template = ChatTemplate(source=head["source"], special_tokens=head["special_tokens"])
    limit_cpu(head["max_s"])
    say(variables(template))
    for line in sys.stdin.buffer:
        limit_cpu(head["max_s"])
        say(rendered(template, json.loads(line)))


def say(answer: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.flush()


def limit_cpu(seconds: float) -> None:
    """Have the system end this process where it computes for longer, even if nobody is left to kill it."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(usage.ru_utime + usage.ru_stime + seconds) + SPARE_CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))


def variables(template: ChatTemplate) -> dict[str, Any]:
    """What the template asks for, or why it is none."""
    try:
        return {"variables": sorted(template.variables())}
    except ConfigError as error:
        return {"refused": str(error)}


def rendered(template: ChatTemplate, asked: dict[str, Any]) -> dict[str, str]:
    """The text of a conversation, or why there is none."""
    try:
        text = template.render(asked["messages"], asked["variables"], continue_final_message=asked["continues"])
        return {"text": text}
    except ConfigError as error:
        return {"refused": str(error)}
    except MemoryError:
        return {"error": "too large"}


if __name__ == "__main__":
    main()
