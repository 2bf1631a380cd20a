"""Conversations and tools, as OpenAI's API takes them, become what templates take."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from forerun.text.chat_template import ChatTemplate
from forerun.text.output.messages import prepared
from forerun.text.output.traits import HERMES, TemplateTraits
from tests.text.output.families import FAMILIES, TOOLS
from tests.text.output.loose_families import LOOSE_FAMILIES

ALL = FAMILIES | LOOSE_FAMILIES
SPECIAL = {"bos_token": "<s>"}
IDS = ("call_" + "a" * 24, "call_" + "b" * 24)
SYSTEM: dict[str, Any] = {"role": "system", "content": "Be brief."}
USER: dict[str, Any] = {"role": "user", "content": "Weather in Rome?"}
TOOLS_IN_FULL = [
    TOOLS[0],
    {"type": "function", "function": {"name": "get-time", "parameters": {"type": "object", "properties": {}}}},
]
KNOWN_IDS = {
    "mistral_list": ("70a7b20b2", "c90d3f4a6"),
    "kimi": ("functions.weather:0", "functions.get-time:1"),
}
TEXT_ARGUMENTS = ("deepseek",)  # families whose templates join arguments as text
NULL_CONTENT = ("deepseek",)  # and those that ask whether the content is none
WRITTEN = ("smollm3", "plain_chat", "lfm2", "olmo3")  # and those whose templates leave out calls


def calls(*, is_text: bool, ids: Sequence[str] = IDS) -> list[dict[str, Any]]:
    arguments = ('{"city": "Rome"}', "{}") if is_text else ({"city": "Rome"}, {})
    return [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": said}}
        for id_, name, said in zip(ids, ("weather", "get-time"), arguments, strict=True)
    ]


def results(ids: Sequence[str] = IDS, **names: str) -> list[dict[str, Any]]:
    said = [
        {"role": "tool", "tool_call_id": id_, "content": text} for id_, text in zip(ids, ("sunny", "noon"), strict=True)
    ]
    return (
        [{**message, "name": name} for message, name in zip(said, ("weather", "get-time"), strict=True)]
        if names
        else said
    )


def canonical(name: str) -> list[dict[str, Any]]:
    """The conversation as the template's author would write it."""
    if name == "llama3":
        pairs = zip(calls(is_text=False), results(name="yes"), strict=True)
        turns = [message for call, said in pairs for message in ({"role": "assistant", "tool_calls": [call]}, said)]
        return [SYSTEM, USER, *turns]
    ids = KNOWN_IDS.get(name, IDS)
    if name in WRITTEN:
        answer: dict[str, Any] = {"role": "assistant", "content": ALL[name].two_calls}
    else:
        answer = {"role": "assistant", "content": None if name in NULL_CONTENT else ""}
        answer["tool_calls"] = calls(is_text=name in TEXT_ARGUMENTS, ids=ids)
    if name == "gemma4":
        given = [("weather", "sunny"), ("get-time", "noon")]
        answer["tool_responses"] = [{"name": tool, "response": said} for tool, said in given]
        return [SYSTEM, USER, answer]
    if name == "plain_chat":
        said = "<tool_response>\nsunny\n</tool_response>\n<tool_response>\nnoon\n</tool_response>"
        return [SYSTEM, USER, answer, {"role": "user", "content": said}]
    return [SYSTEM, USER, answer, *results(ids, name="yes")]


def render_directly(source: str, messages: Sequence[Mapping[str, Any]], **variables: object) -> str:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    template = utils._compile_jinja_template(source)
    return str(template.render(messages=messages, add_generation_prompt=True, **SPECIAL, **variables))


def short_ids(text: str) -> str:
    """Mistral's ids are a digest; here only their form matters."""
    return re.sub(r'"id": "[a-zA-Z0-9]{9}"', '"id": "ID"', text)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("is_text", [True, False])
def test_two_calls_and_their_results_are_what_the_template_wants(name: str, is_text: bool) -> None:
    template = ChatTemplate(source=ALL[name].template, special_tokens=SPECIAL)
    answer = {"role": "assistant", "content": None, "tool_calls": calls(is_text=is_text), "refusal": None}
    traits = template.traits()
    messages, variables = prepared(traits, [SYSTEM, USER, answer, *results()], TOOLS)
    text = template.render(messages, variables)
    template.close()
    told = dict.fromkeys(variables, TOOLS_IN_FULL)
    expected = canonical(name)
    if not traits.takes_tools:
        rules = messages[0]["content"]
        assert rules.startswith("Be brief.\n\n# Tools\n")
        assert '"name": "get-time"' in rules
        expected[0] = {"role": "system", "content": rules}
    assert short_ids(text) == short_ids(render_directly(ALL[name].template, expected, **told))
    assert short_ids(ALL[name].two_calls.replace("ID1", "a" * 9).replace("ID2", "b" * 9)) in short_ids(text)


def test_rules_before_the_first_question_are_one_and_later_ones_a_reminder() -> None:
    developer = {"role": "developer", "content": [{"type": "text", "text": "Use tools."}]}
    later = {"role": "system", "content": "Time is short."}
    turns = [SYSTEM, developer, USER, {"role": "assistant", "content": "Hm"}, later, USER]
    first = {"role": "system", "content": "Be brief.\n\nUse tools."}
    hm = {"content": "Hm", "role": "assistant"}
    messages, _ = prepared(TemplateTraits(), turns)
    assert messages == [first, USER, hm, later, USER]
    messages, _ = prepared(TemplateTraits(takes_later_system=False), turns)
    reminder = "<system-reminder>\nTime is short.\n</system-reminder>"
    assert messages == [first, USER, hm, {"role": "user", "content": f"{reminder}\n\n{USER['content']}"}]
    messages, _ = prepared(TemplateTraits(takes_system=False), turns[:3])
    assert messages == [{"role": "user", "content": f"Be brief.\n\nUse tools.\n\n{USER['content']}"}]
    messages, _ = prepared(TemplateTraits(takes_developer=True), [developer, USER])
    assert messages == [{"role": "developer", "content": "Use tools."}, USER]


@pytest.mark.parametrize("broken", ["no JSON", "[1]", '"text"', "{", 5])
def test_arguments_that_are_no_object_are_handed_over_or_left_out(broken: object) -> None:
    function = {"name": "weather", "arguments": broken}
    answer = {"role": "assistant", "tool_calls": [{"id": "x", "type": "function", "function": function}]}

    def arguments(**traits: bool) -> object:
        known = TemplateTraits(tools_variable="tools", calls=HERMES, **traits)
        messages, _ = prepared(known, [USER, answer], TOOLS)
        return messages[1]["tool_calls"][0]["function"]["arguments"]

    assert arguments() == broken
    assert arguments(takes_broken_arguments=False) == {}
    assert arguments(takes_broken_arguments=False, wants_mapping=False) == "{}"


def test_thoughts_of_earlier_answers_have_one_name() -> None:
    messages, _ = prepared(TemplateTraits(), [USER, {"role": "assistant", "content": "Ho", "reasoning": "Hm"}])
    assert messages[1] == {"role": "assistant", "content": "Ho", "reasoning_content": "Hm"}


def test_without_tools_the_template_gets_none_or_an_empty_list() -> None:
    assert prepared(TemplateTraits(tools_variable="tools"), [USER])[1] == {}
    assert prepared(TemplateTraits(tools_variable="tools", wants_tools_list=True), [USER])[1] == {"tools": []}
