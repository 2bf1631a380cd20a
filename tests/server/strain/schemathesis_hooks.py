"""What schemathesis is told of rules that a JSON schema cannot state; read by it, not by the tests."""

from typing import Any

import schemathesis

MOST_MESSAGES = 40  # of thousands: more do not fit into the built-in model's context
MOST_TOOLS = 8  # of 1,024, for the same reason
WRITING = ("completions", "messages", "responses", "infill")  # the ends of paths whose answers are texts
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")
LARGEST = 10**19 - 1  # longer numbers are no JSON to the server, in fields that nobody reads too
GRAMMARS = {"regex": "[ab]+", "grammar": 'start: "ab"', "json": {"type": "object"}}
SHAPES = ("structured_outputs", "grammar", "json_schema", "guided_json", "guided_regex", "guided_choice")
SHAPES += ("guided_grammar", "response_format")
TOOL = {"type": "function", "name": "look", "function": {"name": "look", "parameters": {}}}


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
        for name, limit in (("messages", 4096 if "/messages" in case.path else 2048), ("input", 1024)):
            given = body.get(name)
            if isinstance(given, list) and len(given) <= limit:
                body[name] = given[:MOST_MESSAGES]
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(prompt) <= 16 and body.get("n") is not None:
            body["prompt"] = prompt[:1]  # n times the number of prompts has a bound
        if case.meta is not None and case.meta.generation.mode.is_positive:
            add_message(body)
            make_grammars(body)
            make_choice(body, is_anthropic="/messages" in case.path)
            if any(body.get(name) for name in (*SHAPES, "tools")):
                body["ignore_eos"] = None  # the form says where the answer ends
    case.body = body


def add_message(body: dict[str, Any]) -> None:
    """Have one message that is not left out, as system messages without text are."""
    for name in ("messages", "input"):
        if isinstance(body.get(name), list):
            body[name] = [*body[name], {"role": "user", "content": ""}]


def make_grammars(body: dict[str, Any]) -> None:
    """Leave one shape of the answer, and turn its text into one that is a grammar."""
    given = [name for name in SHAPES if body.get(name) is not None]
    for name in given[1:]:
        del body[name]
    for name in given[:1]:
        body[name] = readable(name.removeprefix("guided_"), body[name])
    for name in ("text", "output_config"):
        if isinstance(body.get(name), dict):
            body[name] = readable(name, body[name])


def readable(name: str, value: Any) -> Any:
    """The same with grammars that can be read in the place of any."""
    if name in GRAMMARS or name in ("schema", "json_schema"):
        is_nested = name == "json_schema" and isinstance(value, dict) and "schema" in value
        return {"schema": GRAMMARS["json"]} if is_nested else value and GRAMMARS.get(name, GRAMMARS["json"])
    if isinstance(value, dict):
        found = {key: readable(key, item) for key, item in value.items()}
        if name == "structured_outputs":  # only one of them
            kept = [key for key in (*GRAMMARS, "choice", "json_object") if found.get(key) is not None]
            return {key: item for key, item in found.items() if key not in kept[1:]}
        return found
    return value


def make_choice(body: dict[str, Any], *, is_anthropic: bool) -> None:
    """Have the tool that must be called among the tools, and few others."""
    if body.get("tools"):
        body["tools"] = body["tools"][:MOST_TOOLS]
    choice = body.get("tool_choice")
    if isinstance(choice, dict) or choice in ("required", "any"):
        body["tools"] = [*(body.get("tools") or []), {**TOOL, "type": "custom"} if is_anthropic else TOOL]
        body["tool_choice"] = {"type": "any"} if is_anthropic else "required"


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
