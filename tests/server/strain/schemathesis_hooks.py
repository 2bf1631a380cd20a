"""What schemathesis is told of rules that a JSON schema cannot state; read by it, not by the tests."""

from typing import Any

import schemathesis

MOST_MESSAGES = 40  # of 2,048: more do not fit into the built-in model's context
WRITING = ("completions", "messages", "responses", "infill")  # the ends of paths whose answers are texts
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")
LARGEST = 10**19 - 1  # longer numbers are no JSON to the server, in fields that nobody reads too


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Keep answers short, and leave out what only the lengths or the products of fields make wrong."""
    body = shortened(case.body)
    if isinstance(body, dict):
        if case.path.endswith(WRITING):
            for name in LIMITS:
                wanted = body.get(name, -1)
                if wanted in (None, -1) or (type(wanted) is int and 1 <= wanted <= 2**20):
                    body[name] = 2
        if body.get("continue_final_message") is True:
            body["continue_final_message"] = None  # which needs an answer as the last message
        messages, prompt = body.get("messages"), body.get("prompt")
        if isinstance(messages, list) and len(messages) <= 2048:
            body["messages"] = messages[:MOST_MESSAGES]
        if isinstance(prompt, list) and len(prompt) <= 16 and body.get("n") is not None:
            body["prompt"] = prompt[:1]  # n times the number of prompts has a bound
    case.body = body


def shortened(value: Any) -> Any:
    """The same with whole numbers of 19 digits at most; what was out of bounds is so still."""
    match value:
        case dict():
            return {name: shortened(item) for name, item in value.items()}
        case list():
            return [shortened(item) for item in value]
        case int() if abs(value) > LARGEST:
            return LARGEST if value > 0 else -LARGEST
    return value
