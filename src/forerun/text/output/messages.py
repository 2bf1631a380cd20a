"""Turns conversations and tools in the form of OpenAI's API into the form that a chat template accepts."""

import json
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, TypeAlias

from forerun.text.conversation import Message, plain_message
from forerun.text.output.traits import CallFormat, TemplateTraits
from forerun.text.output.turns import Turns

Place: TypeAlias = tuple[int, int]  # of a call: the number of its message, and its number there
Called: TypeAlias = tuple[str, object]  # a call's name, and its id in the template's form
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
        variables[traits.tools_variable] = [_complete(traits, tool) for tool in tools]
    num_first = next((num for num, message in enumerate(known) if message.get("role") == "user"), len(known))
    rules = [message["content"] for message in known[:num_first] if message.get("role") == "system"]
    rest = [message for place, message in enumerate(known) if place >= num_first or message.get("role") != "system"]
    turns = _with_rules(traits, [*filter(None, rules), *offer], _turns(traits, rest))
    return _with_start(traits, turns, has_tools=bool(tools)), variables


def _with_known_role(traits: TemplateTraits, message: Message) -> Message:
    is_developer = message.get("role") == "developer" and not traits.takes_developer
    return {**message, "content": message.get("content") or "", **({"role": "system"} if is_developer else {})}


def _with_single_calls(messages: Sequence[Message]) -> list[Message]:
    """The conversation with each call in a separate answer, followed by its result."""
    asked = _asked(messages)
    results = {call: messages[place] for place, call in asked.items()}
    single: list[Message] = []
    for place, message in enumerate(messages):
        calls = message.get("tool_calls") or ()
        if len(calls) > 1:
            for number, call in enumerate(calls):
                said = message if number == 0 else {"role": "assistant", "content": ""}
                single.append({**said, "tool_calls": [call]})
                if (place, number) in results:
                    single.append(results[place, number])
        elif place not in asked or len(messages[asked[place][0]]["tool_calls"]) == 1:
            single.append(message)
    return single


def _asked(messages: Sequence[Message]) -> dict[int, Place]:
    """The call of each tool's result, by the result's place.

    It is the first call with the result's id, in the last answer that has one without a result yet: clients use ids
    again. A result without an id belongs to the first call without a result.
    """
    open_calls: dict[Place, object] = {}
    asked: dict[int, Place] = {}
    for place, message in enumerate(messages):
        open_calls |= {(place, number): call.get("id") for number, call in enumerate(message.get("tool_calls") or ())}
        if message.get("role") in ("tool", "function"):
            given = message.get("tool_call_id")
            same = [call for call, id_ in open_calls.items() if id_ == given] or (given is None and [*open_calls]) or ()
            if same:
                asked[place] = min(same, key=lambda call: (-call[0], call[1]))
                del open_calls[asked[place]]
    return asked


def _with_rules(traits: TemplateTraits, rules: Sequence[str], turns: list[Message]) -> list[Message]:
    """The conversation with its system message first, or in the first user's turn if the template accepts none."""
    text = "\n\n".join(rules)
    if not text:
        return turns
    is_shown = traits.takes_system_before_answers or not turns or turns[-1].get("role") == "user"
    if traits.takes_system and is_shown:
        return [{"role": "system", "content": text}, *turns]
    first = next((place for place, message in enumerate(turns) if message.get("role") == "user"), -1)
    if first == 0 or (first > 0 and traits.alternates):
        told = {**turns[first], "content": f"{text}\n\n{turns[first]['content']}"}
        return [*turns[:first], told, *turns[first + 1 :]]
    return [{"role": "user", "content": text}, *turns]


def _with_start(traits: TemplateTraits, turns: list[Message], *, has_tools: bool) -> list[Message]:
    """The conversation, which an empty user's turn begins if the template demands one."""
    num_rules = 1 if turns and turns[0].get("role") in ("system", "developer") else 0
    first = turns[num_rules] if len(turns) > num_rules else {}
    letters = {"": "S", "assistant": "C" if first.get("tool_calls") else "A", "tool": "T"}
    has_user = any(message.get("role") == "user" for message in turns)
    start = letters.get(first.get("role", ""), "") + ("U" if has_user else "") + ("+" if has_tools else "")
    if turns and start not in traits.refused_starts:
        return turns
    return [*turns[:num_rules], {"role": "user", "content": ""}, *turns[num_rules:]]


def _turns(traits: TemplateTraits, messages: Sequence[Message]) -> list[Message]:
    asked = _asked(messages)
    by_place: dict[Place, Called] = {}
    by_id: dict[object, Called] = {}  # the latest call with this id
    turns = Turns(traits)
    for place, message in enumerate(messages):
        turned = None
        match message.get("role"):
            case "system" if not traits.takes_later_system:
                turned = f"<system-reminder>\n{message['content']}\n</system-reminder>"
            case "assistant":
                calls = message.get("tool_calls") or ()
                for number, call in enumerate(calls):
                    name = call["function"]["name"]
                    id_ = call.get("id")
                    by_place[place, number] = by_id[id_] = name, _known_id(traits, id_, name, len(by_place))
                message = _answer(traits, message, [by_place[place, number][1] for number in range(len(calls))])
            case "tool" | "function":
                given = message.get("tool_call_id")
                other = by_id.get(given) or ("", _known_id(traits, given, number=-place))
                message = _result(message, by_place[asked[place]] if place in asked else other)
                is_lone = not turns.end_with_calls and turns.path in traits.refused_results
                last = turns.found[-1] if turns.found else {}
                if traits.wants_tool_responses and not is_lone and last.get("role") == "assistant":
                    response = {"name": message["name"], "response": message["content"]}
                    turns.found[-1] = {**last, "tool_responses": [*last.get("tool_responses", ()), response]}
                    continue
                if is_lone or not traits.takes_tool_role:
                    turned = f"<tool_response>\n{message['content']}\n</tool_response>"
        turns.add(message if turned is None else {"role": "user", "content": turned}, is_turned=turned is not None)
    return turns.found


def _answer(traits: TemplateTraits, message: Message, ids: Sequence[object]) -> Message:
    answer = {key: said for key, said in message.items() if key not in ("reasoning", "tool_calls", "content")}
    if "reasoning" in message:
        answer.setdefault("reasoning_content", message["reasoning"])
    content = message["content"]
    calls = message.get("tool_calls") or ()
    if not calls:
        return {**answer, "content": content}
    if not traits.takes_tools or traits.drops_calls:
        return {**answer, "content": "\n".join(filter(None, (content, written(traits.call_format, calls))))}
    answer["tool_calls"] = [_call(traits, call, id_) for call, id_ in zip(calls, ids, strict=True)]
    if content or traits.empty_content == "text":
        answer["content"] = content
    elif traits.empty_content == "null":
        answer["content"] = None
    return answer


def _call(traits: TemplateTraits, call: Mapping[str, Any], id_: object) -> dict[str, Any]:
    function = call["function"]
    known = {**call, "type": "function", "function": {**function, "arguments": _arguments(traits, function)}}
    return known if id_ is None else {**known, "id": id_}


def _arguments(traits: TemplateTraits, function: Mapping[str, Any]) -> object:
    given = function.get("arguments") or {}
    value = as_object(given)
    if value is None:
        given = given if isinstance(given, str) else _to_json(given)
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


def _result(message: Message, called: Called) -> Message:
    name, id_ = called
    known = {**message, "role": "tool", "name": message.get("name") or name}
    return known if id_ is None else {**known, "tool_call_id": id_}


def _known_id(traits: TemplateTraits, id_: Any, name: str = "", number: int = 0) -> Any:
    """The id in the template's form: nine letters and digits, or the tool's name and a number; made up if it is missing
    and the template demands one."""
    if traits.wants_named_ids and name:
        return f"functions.{name}:{number}"
    if id_ is None and traits.wants_ids:
        id_ = f"call {number}"
    elif not (traits.wants_short_ids and isinstance(id_, str) and not SHORT_ID.fullmatch(id_)):
        return id_
    return sha256(id_.encode()).hexdigest()[:9]


def written(format: CallFormat, calls: Sequence[Mapping[str, Any]]) -> str:
    """Calls as a model writes them: in JSON, or in Python's form."""
    texts = []
    for call in calls:
        name = call["function"]["name"]
        arguments = as_object(call["function"].get("arguments") or {}) or {}
        if format.kind == "pythonic":
            text = f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
        else:
            text = _to_json({format.name_key: name, format.arguments_key: arguments})
        texts.append(f"{format.call_begin}{text}{format.call_end}")
    text = format.separator.join(texts)
    return f"{format.section_begin}{f'[{text}]' if format.is_list else text}{format.section_end}"


def _complete(traits: TemplateTraits, tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tool with the fields that clients may leave out and templates do not."""
    needed: dict[str, object] = {"parameters": {"type": "object", "properties": {}}}
    needed |= {"description": ""} if traits.wants_descriptions else {}
    function = tool["function"]
    missing = {key: value for key, value in needed.items() if function.get(key) is None}
    return {**tool, "function": {**function, **missing}} if missing else tool


def _to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=dict)
