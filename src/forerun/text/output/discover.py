"""Finds a chat template's traits by rendering conversations made for it; runs in the template's own process."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any, Final

from forerun.core.shared_length import shared_length
from forerun.text.output.call_difference import ARGUMENTS, KEYS, NAMES, VALUES, format_of, same_end, same_start
from forerun.text.output.known_formats import known_format, known_thought
from forerun.text.output.traits import HERMES, CallFormat, EmptyContent, TemplateTraits

Said = Mapping[str, Any]
Render = Callable[[Said], str]
EMPTY: Final[Mapping[EmptyContent, Said]] = {"text": {"content": ""}, "null": {"content": None}, "absent": {}}
USER: Final = {"role": "user", "content": "probe question"}
CONTENT = "probe-answer~"
THOUGHT = "probe-thought~"
RULE = "probe-rule~"
LATER = "probe-later~"
RESULT = "probe-result~"
LONE = "probe-lone~"
SHORT_ID = "probeid01"
LONG_ID = "call_" + "probeid1" * 3
TOOL_NAME: Final = "probe_tool"
TOOL: Final[Said] = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": "A probe.",
        "parameters": {
            "type": "object",
            "properties": {key: {"type": "string", "description": "A probe."} for key in KEYS},
            "required": list(KEYS),
        },
    },
}
STARTS: Final = ("S", "A", "AU", "C", "CU", "T", "TU")
PATHS: Final = ("", "U", "UA", "UAU", "UCU", "UCA", "UCAU", "UCTU", "UCTA", "UCTAU")  # turns before a lone result
TOOLS_VARIABLES: Final = ("tools", "xml_tools")


class Probe:
    """Renders conversations; gives None if the template refuses one."""

    def __init__(self, render: Render, given: Said, tools_variable: str = "") -> None:
        self._render = render
        self._given = dict(given)
        self._tools = {tools_variable: [TOOL]} if tools_variable else {}

    def text(self, messages: Sequence[Said], **variables: object) -> str | None:
        """The text of these messages, without the beginning of an answer."""
        given = {**self._given, **self._tools, "add_generation_prompt": False, **variables, "messages": messages}
        try:
            return self._render(given)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - every error of an untrusted program counts as a refusal
            return None

    def shows(self, word: str, messages: Sequence[Said], **variables: object) -> bool:
        """Whether the text of these messages contains this word."""
        return self.shows_all((word,), messages, **variables)

    def shows_all(self, words: Iterable[str], messages: Sequence[Said], **variables: object) -> bool:
        """Whether the template takes these messages, and their text contains these words."""
        text = self.text(messages, **variables)
        return text is not None and all(word in text for word in words)


def discover(source: str, variables: Iterable[str], render: Render, given: Said) -> TemplateTraits:
    """The form of conversations that this template accepts, and the form of its model's answers.

    Args:
        variables: the variables that the template uses.
        render: returns the text for values of its variables, or raises.
        given: variables of every conversation, such as bos_token.
    """
    names = frozenset(variables)
    bare = Probe(render, given)
    wants_list = bare.text([USER]) is None and bare.text([USER], tools=[]) is not None
    bare = Probe(render, {**given, "tools": []}) if wants_list else bare
    asked = (name for name in TOOLS_VARIABLES if name in names and bare.shows(TOOL_NAME, [USER], **{name: [TOOL]}))
    tools_variable = next(asked, "")
    probe = Probe(render, given, tools_variable)
    known, is_mapping, empty = _calls(source, probe) if tools_variable else (None, True, _empty(bare))
    drops = tools_variable != "" and not _shows_calls(probe, is_mapping, empty, NAMES[0])
    calls = known or (HERMES if tools_variable else None)
    call = _call_message((NAMES[0],), is_mapping=is_mapping, empty=empty)
    result = {"role": "tool", "tool_call_id": SHORT_ID, "name": NAMES[0], "content": RESULT}
    has_results = probe.shows(RESULT, [USER, call, result])
    takes_calls = tools_variable != "" and not drops and probe.text([USER, call]) is not None
    long_id = _call_message((NAMES[0],), is_mapping=is_mapping, empty=empty, id_=LONG_ID)
    several = _call_message(NAMES, is_mapping=is_mapping, empty=empty)
    given_result = {"name": NAMES[0], "response": RESULT}
    return TemplateTraits(
        variables=tuple(sorted(names - {"messages", "documents", "add_generation_prompt", *TOOLS_VARIABLES, *given})),
        tools_variable=tools_variable,
        wants_tools_list=wants_list,
        wants_descriptions=tools_variable != "" and bare.text([USER], **{tools_variable: [_undescribed()]}) is None,
        calls=calls,
        thought=known_thought(source) or _thought(bare),
        wants_mapping=is_mapping,
        takes_broken_arguments=probe.text([USER, _with_arguments(call, "no JSON")]) is not None,
        empty_content=empty,
        **_turns(bare, probe, call, result, takes_calls=takes_calls, has_results=has_results),
        takes_later_system=_takes_later_system(bare),
        takes_developer="developer" in source and _takes_developers(bare),
        takes_tool_role=tools_variable != "" and has_results,
        wants_ids=takes_calls and any(probe.text([USER, *said]) is None for said in _without_ids(call, result)),
        wants_short_ids=takes_calls and probe.text([USER, long_id]) is None,
        wants_single_calls=takes_calls and not probe.shows_all(NAMES, [USER, several]),
        wants_named_ids=drops and calls is not None and calls.is_numbered,  # Kimi's history has names only in ids
        drops_calls=drops and (calls is None or not calls.is_numbered),
        wants_tool_responses="tool_responses" in source
        and not has_results
        and probe.shows(RESULT, [USER, {**call, "tool_responses": [given_result]}]),
    )


def _turns(
    bare: Probe, probe: Probe, call: Said, result: Said, *, takes_calls: bool, has_results: bool
) -> dict[str, Any]:
    """The traits that say which turns the template accepts, and after which others."""
    rule = {"role": "system", "content": RULE}
    answer = {"role": "assistant", "content": CONTENT}
    lone = {**result, "name": "", "content": LONE}
    takes_system = bare.shows(RULE, [rule, USER])
    starts: dict[str, list[Said]] = {"S": [rule], "U": [USER], "A": [answer], "C": [call, result], "T": [lone]}
    shown = {"A": CONTENT, "U": USER["content"]} | ({"S": RULE} if takes_system else {})
    shown |= ({"T": LONE} if has_results else {}) | ({"C": VALUES[1]} if takes_calls else {})
    refuses_repeated = None in (bare.text([USER, USER]), bare.text([USER, answer, answer, USER]))
    alternates = refuses_repeated and bare.text([USER, answer, USER]) is not None
    return {
        "takes_system": takes_system,
        "takes_system_before_answers": not takes_system or bare.shows(RULE, [rule, USER, answer]),
        "takes_empty_answers": bare.text([USER, {**answer, "content": ""}, USER]) is not None,
        "alternates": alternates,
        "skips_calls": alternates and takes_calls and probe.text([USER, call, result, USER]) is None,
        "refused_starts": tuple(
            start + mark
            for mark, asked in (("", bare), ("+", probe))
            for start in STARTS
            if not asked.shows_all(
                [shown[letter] for letter in start if letter in shown],
                [message for letter in start for message in starts[letter]],
            )
        ),
        "refused_results": tuple(
            path
            for path in (PATHS if has_results else ())
            if _refuses(probe, [{"U": USER, "A": answer, "C": call, "T": result}[letter] for letter in path], lone)
        ),
    }


def _refuses(probe: Probe, turns: Sequence[Said], result: Said) -> bool:
    """Whether a tool's result is refused, or left out, after turns that are accepted."""
    whole = [*turns, result] if turns else [result, USER]
    return (not turns or probe.text(turns) is not None) and not probe.shows(LONE, whole)


def _calls(source: str, probe: Probe) -> tuple[CallFormat | None, bool, EmptyContent]:
    """The format of calls, whether arguments are given as a mapping, and the content of a message with calls."""
    known = known_format(source)
    ways = list(product((True, False), EMPTY))
    for is_mapping, empty in ways:
        if known is not None:
            if _shows_calls(probe, is_mapping, empty, VALUES[1]):
                return known, is_mapping, empty
            continue
        texts = [_calls_text(probe, names, is_mapping, empty) for names in ((NAMES[0],), NAMES)]
        if texts[0] is not None and (found := format_of(texts[0], texts[1])) is not None:
            return found, is_mapping, empty
    accepted = (way for way in ways if probe.text([USER, _call_message((NAMES[0],), is_mapping=way[0], empty=way[1])]))
    return known, *next(accepted, ways[0])


def _empty(probe: Probe) -> EmptyContent:
    return next((way for way in EMPTY if probe.text([USER, {"role": "assistant", **EMPTY[way]}, USER])), "text")


def _calls_text(probe: Probe, names: Sequence[str], is_mapping: bool, empty: EmptyContent) -> str | None:
    """The template's text for these calls alone, without the marks of the message around them."""
    plain = probe.text([USER, {"role": "assistant", "content": CONTENT}])
    text = probe.text([USER, _call_message(names, is_mapping=is_mapping, empty=empty)])
    if plain is None or text is None:
        return None
    head, _, tail = plain.partition(CONTENT)
    same = same_start(head, text)
    num_same = same.rfind("<") if same.rfind("<") > same.rfind(">") else len(same)  # never within a mark
    text = text[num_same:]
    return text.removesuffix(same_end(tail, text))


def _shows_calls(probe: Probe, is_mapping: bool, empty: EmptyContent, word: str) -> bool:
    """Whether earlier calls are rendered with this word, and neither as a Python mapping nor as a JSON string."""
    text = probe.text([USER, _call_message((NAMES[0],), is_mapping=is_mapping, empty=empty)]) or ""
    return word in text and f"{{'{KEYS[0]}'" not in text and f'{{\\"{KEYS[0]}' not in text


def _call_message(names: Sequence[str], *, is_mapping: bool, empty: EmptyContent, id_: str = SHORT_ID) -> Said:
    arguments = ARGUMENTS if is_mapping else json.dumps(ARGUMENTS)
    calls = [
        {"id": f"{id_[:-1]}{place}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for place, name in enumerate(names, start=1)
    ]
    return {"role": "assistant", **EMPTY[empty], "tool_calls": calls}


def _without_ids(call: Said, result: Said) -> list[list[Said]]:
    """A call and its result without ids: missing, and null."""
    calls = [{key: value for key, value in said.items() if key != "id"} for said in call["tool_calls"]]
    bare_result = {key: value for key, value in result.items() if key != "tool_call_id"}
    nulls = [{**said, "id": None} for said in calls]
    return [[{**call, "tool_calls": said}, bare_result] for said in (calls, nulls)]


def _with_arguments(message: Said, arguments: str) -> Said:
    calls = [{**call, "function": {**call["function"], "arguments": arguments}} for call in message["tool_calls"]]
    return {**message, "tool_calls": calls}


def _undescribed() -> Said:
    """A tool without a description."""
    return {**TOOL, "function": {key: said for key, said in TOOL["function"].items() if key != "description"}}


def _takes_developers(probe: Probe) -> bool:
    """Whether developers' messages are shown, and not only the first one."""
    first, second = ({"role": "developer", "content": content} for content in (RULE, LATER))
    return probe.shows_all((RULE, LATER), [first, second, USER])


def _takes_later_system(probe: Probe) -> bool:
    rule, later = ({"role": "system", "content": content} for content in (RULE, LATER))
    text = probe.text([rule, USER, {"role": "assistant", "content": CONTENT}, later, USER]) or ""
    return RULE in text and text.find(LATER) > text.find(CONTENT) > 0


def _thought(probe: Probe) -> tuple[str, str] | None:
    """The marks around a thought, found in the template's text for an answer with thoughts."""
    answer = {"role": "assistant", "content": CONTENT}
    plain = probe.text([USER, answer])
    text = probe.text([USER, {**answer, "reasoning_content": THOUGHT}])
    if plain is None or text is None or not 0 < text.find(THOUGHT) < text.find(CONTENT):
        return None
    begin = text[shared_length(plain, text) : text.index(THOUGHT)].strip()
    end = text[text.index(THOUGHT) + len(THOUGHT) : text.index(CONTENT)].strip()
    return (begin, end) if begin and end else None
