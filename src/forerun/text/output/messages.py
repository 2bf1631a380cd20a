"""Turns conversations and tools in the form of OpenAI's API into the form that a chat template accepts."""

import json
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, TypeAlias

from forerun.text.message import Message, plain_message
from forerun.text.output.traits import CallFormat, TemplateTraits

Called: TypeAlias = Mapping[object, tuple[str, object]]
SHORT_ID: Final = re.compile(r"[a-zA-Z0-9]{9}")
OFFER: Final = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""  # Hermes' words, which many models have seen in training


def prepared(
    traits: TemplateTraits, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
) -> tuple[list[Message], dict[str, object]]:
    """The messages for the template, and its variables.

    Args:
        tools: as in OpenAI's API; for a template without tools they are described in the system message.

    Raises:
        ConfigError: a message is not a mapping, or its content is not text.
    """
    known = [_with_known_role(traits, plain_message(message)) for message in messages]
    if traits.wants_single_calls:
        known = _with_single_calls(known)
    offer = [] if traits.takes_tools or not tools else [OFFER.format(tools="\n".join(map(_to_json, tools)))]
    variables: dict[str, object] = {}
    if traits.takes_tools and (tools or traits.wants_tools_list):
        variables[traits.tools_variable] = [_with_parameters(tool) for tool in tools]
    num_first = next((num for num, message in enumerate(known) if message.get("role") == "user"), len(known))
    rules = [message["content"] for message in known[:num_first] if message.get("role") == "system"]
    rest = [message for place, message in enumerate(known) if place >= num_first or message.get("role") != "system"]
    return _with_rules(traits, [*filter(None, rules), *offer], _turns(traits, rest)), variables


def _with_known_role(traits: TemplateTraits, message: Message) -> Message:
    is_developer = message.get("role") == "developer" and not traits.takes_developer
    return {**message, "content": message.get("content") or "", **({"role": "system"} if is_developer else {})}


def _with_single_calls(messages: Sequence[Message]) -> list[Message]:
    """The conversation with each call in a separate answer, followed by its result."""
    results = {message["tool_call_id"]: message for message in messages if "tool_call_id" in message}
    single: list[Message] = []
    for message in messages:
        calls = message.get("tool_calls") or ()
        if len(calls) > 1:
            for place, call in enumerate(calls):
                content = {} if place == 0 else {"content": ""}
                single.append({**message, **content, "tool_calls": [call]})
                if call.get("id") in results:
                    single.append(results.pop(call["id"]))
        elif "tool_call_id" not in message or results.pop(message["tool_call_id"], None) is not None:
            single.append(message)
    return single


def _with_rules(traits: TemplateTraits, rules: Sequence[str], turns: list[Message]) -> list[Message]:
    """The conversation with its system message first, or in the first user's turn if the template accepts none."""
    text = "\n\n".join(rules)
    if not text:
        return turns
    if traits.takes_system:
        return [{"role": "system", "content": text}, *turns]
    if turns and turns[0].get("role") == "user":
        return [{**turns[0], "content": f"{text}\n\n{turns[0]['content']}"}, *turns[1:]]
    return [{"role": "user", "content": text}, *turns]


def _turns(traits: TemplateTraits, messages: Sequence[Message]) -> list[Message]:
    called: dict[object, tuple[str, object]] = {}  # name and known id of the latest call with this id
    num_calls = 0
    turns: list[Message] = []
    was_turned = False  # whether the last message became a user's because the template accepts no other role
    for message in messages:
        turned = None
        match message.get("role"):
            case "system" if not traits.takes_later_system:
                turned = f"<system-reminder>\n{message['content']}\n</system-reminder>"
            case "assistant":
                for call in message.get("tool_calls") or ():
                    name, id_ = call["function"]["name"], call.get("id")
                    called[id_] = name, _known_id(traits, id_, name, num_calls)
                    num_calls += 1
                message = _answer(traits, message, called)
            case "tool" | "function":
                message = _result(traits, message, called)
                if traits.wants_tool_responses and turns and turns[-1].get("role") == "assistant":
                    response = {"name": message["name"], "response": message["content"]}
                    turns[-1] = {**turns[-1], "tool_responses": [*turns[-1].get("tool_responses", ()), response]}
                    continue
                if not traits.takes_tool_role:
                    turned = f"<tool_response>\n{message['content']}\n</tool_response>"
        if turned is not None:
            message = {"role": "user", "content": turned}
        if turns and message.get("role") == turns[-1].get("role") == "user" and (was_turned or turned is not None):
            joint = "\n" if was_turned and turned is not None else "\n\n"
            turns[-1] = {**turns[-1], "content": f"{turns[-1]['content']}{joint}{message['content']}"}
        else:
            turns.append(message)
        was_turned = turned is not None
    return turns


def _answer(traits: TemplateTraits, message: Message, called: Called) -> Message:
    answer = {key: said for key, said in message.items() if key not in ("reasoning", "tool_calls", "content")}
    if "reasoning" in message:
        answer.setdefault("reasoning_content", message["reasoning"])
    content, calls = message["content"], message.get("tool_calls") or ()
    if not calls:
        return {**answer, "content": content}
    if not traits.takes_tools or traits.drops_calls:
        return {**answer, "content": "\n".join(filter(None, (content, written(traits.call_format, calls))))}
    answer["tool_calls"] = [_call(traits, call, called) for call in calls]
    if content or traits.empty_content == "text":
        answer["content"] = content
    elif traits.empty_content == "null":
        answer["content"] = None
    return answer


def _call(traits: TemplateTraits, call: Mapping[str, Any], called: Called) -> dict[str, Any]:
    function, (_, id_) = call["function"], called[call.get("id")]
    known = {**call, "type": "function", "function": {**function, "arguments": _arguments(traits, function)}}
    return known if id_ is None else {**known, "id": id_}


def _arguments(traits: TemplateTraits, function: Mapping[str, Any]) -> object:
    given = function.get("arguments") or {}
    value = as_object(given)
    if value is None:
        return given if traits.takes_broken_arguments else {} if traits.wants_mapping else "{}"
    if traits.wants_mapping:
        return value
    return given if isinstance(given, str) else _to_json(value)


def as_object(given: object) -> Mapping[str, Any] | None:
    """The given mapping, which may be JSON text; None if it is not a mapping."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            return None
    return given if isinstance(given, Mapping) else None


def _result(traits: TemplateTraits, message: Message, called: Called) -> Message:
    given = message.get("tool_call_id")
    name, id_ = called.get(given) or ("", _known_id(traits, given))
    known = {**message, "role": "tool", "name": message.get("name") or name}
    return known if given is None else {**known, "tool_call_id": id_}


def _known_id(traits: TemplateTraits, id_: Any, name: str = "", number: int = 0) -> Any:
    """The id in the template's form: nine letters and digits, or the tool's name and a number."""
    if traits.wants_named_ids and name:
        return f"functions.{name}:{number}"
    is_long = traits.wants_short_ids and isinstance(id_, str) and not SHORT_ID.fullmatch(id_)
    return sha256(id_.encode()).hexdigest()[:9] if is_long else id_


def written(format: CallFormat, calls: Sequence[Mapping[str, Any]]) -> str:
    """Calls as a model writes them: in JSON, or in Python's form."""
    texts = []
    for call in calls:
        name, arguments = call["function"]["name"], as_object(call["function"].get("arguments") or {}) or {}
        if format.kind == "pythonic":
            text = f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
        else:
            text = _to_json({format.name_key: name, format.arguments_key: arguments})
        texts.append(f"{format.call_begin}{text}{format.call_end}")
    text = format.separator.join(texts)
    return f"{format.section_begin}{f'[{text}]' if format.is_list else text}{format.section_end}"


def _with_parameters(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool["function"]
    if function.get("parameters") is not None:
        return tool
    return {**tool, "function": {**function, "parameters": {"type": "object", "properties": {}}}}


def _to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=dict)
