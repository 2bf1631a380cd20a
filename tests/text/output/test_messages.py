"""Conversations and tools, as OpenAI's API takes them, become what templates take."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import pytest

from forerun.text.chat_template import USUAL, ChatTemplate
from forerun.text.output.discover import PATHS, discover
from forerun.text.output.messages import prepared
from forerun.text.output.traits import HERMES, TemplateTraits
from forerun.text.output.turns import UNDERSTOOD
from forerun.text.template_child import compile_template, names
from tests.marks import in_turn
from tests.text.output.families import FAMILIES, TOOLS
from tests.text.output.loose_families import LOOSE_FAMILIES
from tests.text.output.strict_templates import STRICT

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


@pytest.mark.parametrize(("name", "is_text"), in_turn([*ALL], [True, False]))
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

    assert arguments() == (broken if isinstance(broken, str) else json.dumps(broken))
    assert arguments(takes_broken_arguments=False) == {}
    assert arguments(takes_broken_arguments=False, wants_mapping=False) == "{}"


def test_thoughts_of_earlier_answers_have_one_name() -> None:
    messages, _ = prepared(TemplateTraits(), [USER, {"role": "assistant", "content": "Ho", "reasoning": "Hm"}])
    assert messages[1] == {"role": "assistant", "content": "Ho", "reasoning_content": "Hm"}


def test_without_tools_the_template_gets_none_or_an_empty_list() -> None:
    assert prepared(TemplateTraits(tools_variable="tools"), [USER])[1] == {}
    assert prepared(TemplateTraits(tools_variable="tools", wants_tools_list=True), [USER])[1] == {"tools": []}


LETTERS = "SUACTE"  # system, user, answer, calls, tool's result, empty answer


class Here:
    """A template in this process, without the limits of its own: for thousands of conversations."""

    def __init__(self, source: str) -> None:
        template = compile_template(source)
        assert not isinstance(template, dict)
        self._render = template.render
        self._given = {**USUAL, **SPECIAL}
        self.traits = discover(source, names(source), self._render, self._given)

    def text(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
        known, variables = prepared(self.traits, messages, tools)
        return self._render({**self._given, **variables, "messages": known})


def conversation(letters: Sequence[str], *, has_ids: bool = True) -> Iterator[dict[str, Any]]:
    """A conversation in which each text is a word of its own."""
    open_ids: list[str] = []
    for place, letter in enumerate(letters):
        word = f"{letter.lower()}{place}."
        match letter:
            case "S" | "U" | "A" | "E":
                role = {"S": "system", "U": "user"}.get(letter, "assistant")
                yield {"role": role, "content": "" if letter == "E" else word}
            case "C":
                function = {"name": "weather", "arguments": json.dumps({"city": word})}
                id_ = {"id": f"call_{place}"} if has_ids else {}
                open_ids += id_.values()
                yield {"role": "assistant", "content": None, "tool_calls": [{**id_, "function": function}]}
            case _:
                id_ = {"tool_call_id": open_ids.pop(0) if open_ids else f"other_{place}"} if has_ids else {}
                yield {"role": "tool", **id_, "content": word}


@pytest.mark.parametrize("name", STRICT)
def test_no_order_of_turns_is_refused_and_every_text_is_in_the_prompt(name: str) -> None:
    template = Here(STRICT[name])
    for letters in (letters for num in range(1, 5) for letters in product(LETTERS, repeat=num)):
        for tools in ([], TOOLS) if not set(letters) & {"C", "T"} else (TOOLS,):
            text = template.text([*conversation(letters, has_ids=len(letters) % 2 == 0)], tools)
            for place, letter in enumerate(letters):
                assert letter == "E" or f"{letter.lower()}{place}." in text, (letters, text)


def test_turns_that_a_template_takes_stay_as_they_are() -> None:
    taken = {"ministral": ("SUAU", "UCTAU", "UACTU", "CTUA", "UCTCTA"), "gpt_oss": ("UUAA", "UCUT", "UCTS", "AUSU"),
             "qwen35": ("AU", "ACTU", "TU"), "llama": ("AU", "EUA"), "nemo": ("SUAU", "CTU")}  # fmt: skip
    for name, orders in taken.items():
        template = Here(STRICT[name])
        for letters in orders:
            given = [*conversation(letters)]
            known, _ = prepared(template.traits, given, TOOLS if "C" in letters else ())
            assert [message["role"] for message in known] == [message["role"] for message in given], (name, letters)


def test_neighbours_are_joined_and_the_other_role_stands_between_a_result_and_a_users_text() -> None:
    traits = Here(STRICT["ministral"]).traits
    known, _ = prepared(traits, [*conversation("AUUEUAA")], TOOLS)
    assert [(message["role"], message["content"]) for message in known] == [
        ("user", ""), ("assistant", "a0."), ("user", "u1.\n\nu2.\n\nu4."), ("assistant", "a5.\n\na6."),
    ]  # fmt: skip
    known, _ = prepared(traits, [*conversation("UCTUSCT")], TOOLS)
    said = [(message["role"], message.get("content")) for message in known if "tool_calls" not in message]
    reminder = "<system-reminder>\ns4.\n</system-reminder>"
    assert said == [
        ("user", "u0."), ("tool", "t2."), ("assistant", UNDERSTOOD), ("user", f"u3.\n\n{reminder}"), ("tool", "t6."),
    ]  # fmt: skip


def test_what_templates_demand_is_found_by_trying_them() -> None:
    found = {name: Here(source).traits for name, source in STRICT.items()}
    assert [name for name, traits in found.items() if traits.alternates] == ["gemma", "ministral", "nemo"]
    assert [name for name, traits in found.items() if traits.skips_calls] == ["ministral", "nemo"]
    assert [name for name, traits in found.items() if not traits.takes_empty_answers] == ["ministral"]
    assert [name for name, traits in found.items() if traits.wants_ids] == ["nemo"]
    assert [name for name, traits in found.items() if not traits.takes_system_before_answers] == ["nemo"]
    assert found["gpt_oss"].refused_results == ("", "U", "UA", "UAU", "UCA", "UCAU", "UCTA", "UCTAU")
    assert found["apertus"].refused_results == ("", "U", "UAU", "UCU", "UCAU", "UCTU", "UCTAU")
    assert found["left_out"].refused_results == PATHS
    assert found["qwen35"].refused_starts == ("S", "A", "C", "T", "S+", "A+", "C+", "T+")
    assert found["llama"].refused_starts == ("S+", "C+", "CU+")
    for family in ALL.values():
        traits = Here(family.template).traits
        assert (traits.alternates, traits.refused_starts, traits.refused_results) == (False, (), ())
        assert traits.takes_empty_answers


def test_no_message_call_or_tool_is_lost_because_a_template_shows_only_the_first_or_demands_more() -> None:
    template = Here(STRICT["first_only"])
    developers = [{"role": "developer", "content": word} for word in ("one.", "two.")]
    answer = {"role": "assistant", "content": None, "reasoning": "thought.", "tool_calls": calls(is_text=False)}
    bare = [
        {"type": "function", "function": {"name": name, **said}}
        for name, said in (("a", {}), ("b", {"description": None}))
    ]
    text = template.text([SYSTEM, *developers, USER, answer, *results()], bare)
    for word in ("Be brief.", "one.", "two.", "thought.", "weather{", "get-time{", "sunny", "noon", "[a: ]", "[b: ]"):
        assert text.count(word) == 1, (word, text)
    assert prepared(template.traits, [USER], TOOLS[:1])[1] == {"tools": TOOLS[:1]}


@pytest.mark.parametrize("ids", [None, "", "call_0", "abcdefghi"])
def test_calls_with_one_id_or_none_keep_their_results(ids: str | None) -> None:
    call = {"type": "function", "function": {"name": "weather", "arguments": {}}}
    calls = [{**call, "id": ids}] * 2
    said = {"role": "tool", "tool_call_id": ids}
    turn = [{"role": "assistant", "tool_calls": calls}, {**said, "content": "one"}, {**said, "content": "two"}]
    alone = [{"role": "assistant", "tool_calls": calls[:1]}, {**said, "content": "three"}]
    for name in ("nemo", "llama", "gpt_oss"):
        known, _ = prepared(Here(STRICT[name]).traits, [USER, *turn, USER, *alone], TOOLS)
        results = [message for message in known if message["role"] == "tool"]
        assert [message["content"] for message in results] == ["one", "two", "three"]
        assert {message["name"] for message in results} == {"weather"}
        if name == "nemo":
            shown = [call["id"] for message in known for call in message.get("tool_calls", ())]
            assert shown == [message["tool_call_id"] for message in results]
            assert all(re.fullmatch("[a-zA-Z0-9]{9}", id_) for id_ in shown)
        if name == "llama":
            assert [message["role"] for message in known[1:5]] == ["assistant", "tool", "assistant", "tool"]


def test_a_result_belongs_to_the_last_answers_call_with_its_id() -> None:
    traits = TemplateTraits(tools_variable="tools", calls=HERMES)

    def answer(*names: str) -> dict[str, Any]:
        functions = [{"name": name, "arguments": {}} for name in names]
        return {"role": "assistant", "tool_calls": [{"id": "call_0", "function": function} for function in functions]}

    said = {"role": "tool", "tool_call_id": "call_0", "content": "x"}
    turns = [USER, answer("denied"), USER, answer("first", "second"), said, said, {**said, "tool_call_id": None}]
    known, _ = prepared(traits, turns, TOOLS)
    assert [message["name"] for message in known if message["role"] == "tool"] == ["first", "second", "denied"]
