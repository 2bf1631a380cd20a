"""The values in calls are what the model meant, in JSON that every client can read, however the text is cut."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from forerun.text.output.events import CallArguments, CallEnded, Content, Reasoning
from forerun.text.output.json_text import MAX_DEPTH, NotACallError, json_of, object_of
from forerun.text.output.known_formats import FORMATS
from forerun.text.output.parser import OutputParser
from forerun.text.output.tagged_reader import typed
from forerun.text.output.traits import CallFormat, TemplateTraits

CODER = CallFormat(
    kind="tagged", call_begin="<tool_call>\n", call_end="\n</tool_call>", separator="\n", name_begin="<function=",
    name_end=">", parameter_begin="\n<parameter=", parameter_name_end=">\n", parameter_end="\n</parameter>",
    arguments_end="\n</function>",
)  # fmt: skip
GLM = CallFormat(
    kind="tagged", call_begin="<tool_call>", call_end="\n</tool_call>", separator="\n", parameter_begin="\n<arg_key>",
    parameter_name_end="</arg_key>\n<arg_value>", parameter_end="</arg_value>",
)  # fmt: skip
PYTHONIC = CallFormat(kind="pythonic", is_list=True, separator=", ")
HARMONY = CallFormat(kind="harmony")
HERMES = CallFormat(kind="json", call_begin="<tool_call>\n", call_end="\n</tool_call>", separator="\n")
GEMMA = next(format for _, format in FORMATS if format.call_begin == "<|tool_call>")
TEXT = {"type": "string"}
NULL = {"type": "null"}
WHOLE_NUMBER = {"type": "integer"}
CUT = "cut"


def called(format: CallFormat, text: str, properties: Any) -> tuple[list[Any], str]:
    """The arguments of each call, and the content; an incomplete call's are its text behind `CUT`."""
    parameters = {"type": "object", "properties": properties}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    found = [read(format, tools, pieces) for pieces in ([text], list(text), halves(text))]
    assert found[0] == found[1] == found[2]
    return found[0]


def halves(text: str) -> list[str]:
    return [text[: len(text) // 2], text[len(text) // 2 :]]


def read(format: CallFormat, tools: Any, pieces: Sequence[str]) -> tuple[list[Any], str]:
    parser = OutputParser(
        TemplateTraits(tools_variable="tools", calls=format), tools=tools, rendered_prompt="", finds_calls=True,
        make_id=lambda num: "i" * num,
    )  # fmt: skip
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
    said: dict[int, str] = {}
    for event in events:
        if isinstance(event, CallArguments):
            said[event.index] = said.get(event.index, "") + event.text
    ended = {event.index for event in events if isinstance(event, CallEnded)}
    for text in said.values():
        text.encode()
    calls = [json.loads(text) if index in ended else (CUT, text) for index, text in said.items()]
    return calls, "".join(event.text for event in events if isinstance(event, Content | Reasoning))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r'"\ud83d\ude00"', "\U0001f600"), (r'"\uD83D\uDE00!"', "\U0001f600!"), (r'"a\ud800"', "a\ufffd"),
        (r'"\ud800\u0041"', "\ufffdA"), (r'"\udc00"', "\ufffd"), (r'"\ud800\ud83d\ude00"', "\ufffd\U0001f600"),
        (r'"\/\n\u00e9"', "/\n\xe9"), ("1e999", "1e999"), ("-1e999", "-1e999"), ("NaN", "NaN"),
        ("-Infinity", "-Infinity"), ("1" * 330, "1" * 330), ("12", 12), ("1e5", 1e5), ("true", True), ("None", None),
        ('["NaN", {"a": 1e400}]', ["NaN", {"a": "1e400"}]),
    ],
)  # fmt: skip
def test_a_value_is_the_same_in_json_and_in_python(written: str, meant: Any) -> None:
    json_call = f'<tool_call>\n{{"name": "f", "arguments": {{"x": {written}}}}}\n</tool_call>'
    quoted = f'<tool_call>\n{{"name": "f", "arguments": {json.dumps(f"""{{"x": {written}}}""")}}}\n</tool_call>'
    harmony = f'<|channel|>commentary to=functions.f<|message|>{{"x": {written}}}<|call|>'
    for format, text in ((PYTHONIC, f"[f(x={written})]"), (HERMES, json_call), (HERMES, quoted), (HARMONY, harmony)):
        assert called(format, text, {}) == ([{"x": meant}], "")
    assert json.loads(typed(written, {})) == meant
    assert object_of(f'{{"x": {written}}}') == {"x": meant}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r"'\U0001f600\x41'", "\U0001f600A"), (r"'\Uffffffff'", "\ufffd"), ("07", 7), ("-007.5", -7.5),
        (r"'it\'s'", "it's"), ("{'a': (1, True)}", {"a": [1, True]}),
    ],
)  # fmt: skip
def test_a_value_in_python(written: str, meant: Any) -> None:
    assert called(PYTHONIC, f"[f(x={written})]", {}) == ([{"x": meant}], "")


def test_values_nest_as_deep_as_clients_read_them() -> None:
    for num, is_read in ((MAX_DEPTH - 1, True), (MAX_DEPTH, False), (5000, False)):
        deep = "[" * num + "]" * num
        calls, content = called(HERMES, f'<tool_call>\n{{"name": "f", "arguments": {{"x": {deep}}}}}\n</tool_call>', {})
        assert (calls[0] == (CUT, '{"x": ' + "[" * (MAX_DEPTH - 1))) != is_read
        assert ("]" in content) != is_read
        calls, _ = called(PYTHONIC, f"[f(x={deep})]", {})
        assert bool(calls) == is_read
        assert (object_of(f'{{"x": {deep}}}') is not None) == is_read
        value = json.loads(typed(deep, {}))
        assert isinstance(value, list) == (num <= MAX_DEPTH)
    with pytest.raises(NotACallError):
        json_of("[1] 2")


SAID = ("4", "001", "true", "none", "None", '{"a": 1}', "1.50", "[1]", '"q"', "a")
UNIONS: list[tuple[Any, dict[str, Any]]] = [
    ({"type": ["string", "null"]}, {"null": None}),
    ({"anyOf": [TEXT, NULL], "default": None}, {"null": None}),
    ({"oneOf": [NULL, {"$ref": "#/$defs/Text"}]}, {"null": None}),
    ({"type": ["string", "null"], "enum": [*SAID, None]}, {"null": None}),
    ({"anyOf": [{"type": "string", "enum": [*SAID, "null"]}, NULL]}, {}),
    ({"$ref": "#/properties/text"}, {}),
    ({"allOf": [TEXT, {"minLength": 1}]}, {}),
    ({"type": ["string", "integer"]}, {"4": 4}),
    ({"type": ["string", "number", "boolean"]}, {"4": 4, "1.50": 1.5, "true": True}),
    ({"anyOf": [TEXT, {"type": "array"}]}, {"[1]": [1]}),
    ({"enum": ["4", 4, 1.5]}, {"1.50": 1.5}),
]
UNDECLARED = {
    "4": 4, "true": True, "None": None, '{"a": 1}': {"a": 1}, "1.50": 1.5, "[1]": [1], '"q"': "q", "null": None,
    "True": True, "['a', None]": ["a", None], "{'k': \"v\"}": {"k": "v"},
}  # fmt: skip
TEXTS = ("0x10", "1_000", "123abc", "(5)", "{a: 1}", "[007]", "['a'", "001", "none", "TRUE", "1e", "+1", "{'a'}", "'a'")


@pytest.mark.parametrize(("schema", "others"), UNIONS)
def test_a_text_stays_a_text_where_it_may_be_one(schema: Any, others: dict[str, Any]) -> None:
    for text in (*SAID, "null"):
        value = others.get(text, text)
        properties = {"x": schema, "text": TEXT}
        coder = f"<tool_call>\n<function=f>\n<parameter=x>\n{text}\n</parameter>\n</function>\n</tool_call>"
        glm = f"<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>"
        for format, call in ((CODER, coder), (GLM, glm)):
            schemas = {"type": "object", "properties": properties, "$defs": {"Text": TEXT}}
            tools = [{"type": "function", "function": {"name": "f", "parameters": schemas}}]
            ((found,), _) = read(format, tools, [call])
            assert found == {"x": value}
            assert type(found["x"]) is type(value)


def test_without_a_type_json_is_read_and_pythons_spelling_of_it() -> None:
    for text, value in UNDECLARED.items():
        assert json.loads(typed(text, {"description": "any"})) == value
    for text in TEXTS:
        assert json.loads(typed(text, {})) == text
    assert json.loads(typed("none", WHOLE_NUMBER)) is None
    assert json.loads(typed("TRUE", {"type": ["boolean", "null"]})) is True
    assert json.loads(typed("abc", WHOLE_NUMBER)) == "abc"


BEGIN = "<tool_call>\n<function=f>\n"
END = "\n</function>\n</tool_call>"
PLACES = {"city": TEXT, "state": TEXT, "days": WHOLE_NUMBER}


@pytest.mark.parametrize(
    ("format", "text", "meant"),
    [
        (CODER, "<parameter=city>\nDallas\n<parameter=state>\nTX\n</parameter>", {"city": "Dallas", "state": "TX"}),
        (CODER, "<parameter=days>\n4\n<parameter=state>\nTX\n</parameter>", {"days": 4, "state": "TX"}),
        (CODER, "<parameter=city>\n<parameter=state>\nTX\n</parameter>", {"city": "", "state": "TX"}),
        (CODER, "<parameter=city>\na\n<parameter=other>\nb\n</parameter>", {"city": "a\n<parameter=other>\nb"}),
        (CODER, "<parameter=city>\na\n<parameter=city>\nb\n</parameter>", {"city": "a\n<parameter=city>\nb"}),
        (CODER, "<parameter=city>\nuse <parameter=state> here\n</parameter>", {"city": "use <parameter=state> here"}),
        (GLM, "<arg_key>city</arg_key><arg_value>Dallas<arg_key>state</arg_key><arg_value>TX</arg_value>",
         {"city": "Dallas", "state": "TX"}),
        (GLM, "<arg_key>city</arg_key>\n<arg_value>Dallas\n<arg_key>days</arg_key>\n<arg_value>4</arg_value>",
         {"city": "Dallas", "days": 4}),
    ],
)  # fmt: skip
def test_an_end_mark_may_be_missing(format: CallFormat, text: str, meant: Any) -> None:
    whole = f"{BEGIN}{text}{END}" if format is CODER else f"<tool_call>f\n{text}\n</tool_call>"
    assert called(format, whole, PLACES) == ([meant], "")


@pytest.mark.parametrize(
    "value",
    [
        "one\n</parameter>\ntwo", "one\n</parameter>\n</function>\ntwo", "one\n</parameter>\n</function>\n</tool_cal",
        "one\n<function=demo>\n</function>\n</tool_call>\ntwo", "</parameter>two", "one </arg_value> two",
        "one </tool_call> two", "one </arg_value> </arg_value> two",
    ],
)  # fmt: skip
@pytest.mark.parametrize("format", [CODER, GLM])
def test_a_value_may_hold_end_marks(format: CallFormat, value: str) -> None:
    coder = f"{BEGIN}<parameter=city>\n{value}\n</parameter>\n<parameter=state>\n{value}\n</parameter>{END}"
    glm = "<tool_call>f" + "".join(
        f"\n<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>" for key in ("city", "state")
    )
    text = coder if format is CODER else f"{glm}\n</tool_call>"
    assert called(format, text, PLACES) == ([{"city": value, "state": value}], "")


def test_a_call_whose_last_mark_is_missing_ends_where_it_closed() -> None:
    text = f"{BEGIN}<parameter=city>\na\n</parameter>\n</function>"
    assert called(CODER, text, PLACES) == ([{"city": "a"}], "")
    assert called(CODER, f"{text}\nDone.", PLACES) == ([{"city": "a"}], "Done.")


@pytest.mark.parametrize("name", ["\necho A\n</parameter", "no<te=", "", "a\nb"])
def test_a_line_or_a_mark_is_no_name(name: str) -> None:
    bad = f"<parameter={name}>\nb\n</parameter>"
    assert called(CODER, f"{BEGIN}{bad}{END}", PLACES)[0] == []
    calls, content = called(CODER, f"{BEGIN}<parameter=city>\na\n</parameter>\n{bad}{END}", PLACES)
    assert calls == [(CUT, '{"city": "a"')]
    assert content.endswith(bad[len("<parameter=") + len(name) :] + END)


@pytest.mark.parametrize(
    "arguments", ['{"data": {"envs": {"a": "b"}', '{"data" {"a": 1}}', '{"a": 1,}', '{"a": [1}'],
)  # fmt: skip
def test_a_call_that_is_no_json_is_incomplete_and_nothing_of_it_is_lost(arguments: str) -> None:
    calls, content = called(HARMONY, f"<|channel|>commentary to=functions.f<|message|>{arguments}<|call|>", {})
    ((mark, said),) = calls
    assert (mark, said + content) == (CUT, arguments)


@pytest.mark.parametrize("key", ["$filter", "@type", "user id", "a/b", "x:y", "a=1", " k ", "}", ")", "", "a,b"])
def test_arguments_have_the_names_of_the_tool(key: str) -> None:
    properties = {"a": WHOLE_NUMBER, key: WHOLE_NUMBER, "o": {"properties": {"in ner": TEXT}}}
    for format, text in (
        (PYTHONIC, f"[f(a = 1, {key}= 2)]"),
        (GEMMA, f"<|tool_call>call:f{{a:1, {key} :2}}<tool_call|>"),
        (CODER, f"{BEGIN}<parameter=a>\n1\n</parameter>\n<parameter={key}>\n2\n</parameter>{END}"),
    ):
        assert called(format, text, properties) == ([{"a": 1, key: 2}], "")
    nested = '<|tool_call>call:f{o:{in ner:<|"|>x<|"|>}}<tool_call|>'
    assert called(GEMMA, nested, properties) == ([{"o": {"in ner": "x"}}], "")
