"""Formats of calls that no comparison shows, recognised by marks in a chat template's source."""

from typing import Final

from forerun.text.output.traits import CallFormat

THOUGHTS: Final = (
    ("</think>", ("<think>", "</think>")),
    ("[/THINK]", ("[THINK]", "[/THINK]")),
    ("<|channel>", ("<|channel>thought", "<channel|>")),
)  # each after what its template's source holds
FORMATS: Final = (
    (("<|channel|>", "<|message|>"), CallFormat(kind="harmony")),
    (("<|tool_call>",), CallFormat(
        kind="gemma", call_begin="<|tool_call>", call_end="<tool_call|>", name_begin="call:", string_mark='<|"|>',
    )),
    (("<start_function_call>",), CallFormat(
        kind="gemma", call_begin="<start_function_call>", call_end="<end_function_call>", name_begin="call:",
        string_mark="<escape>",
    )),
    (("[TOOL_CALLS]", "[ARGS]"), CallFormat(kind="named", call_begin="[TOOL_CALLS]", name_end="[ARGS]")),
    (("[TOOL_CALLS]",), CallFormat(kind="json", section_begin="[TOOL_CALLS] ", is_list=True, separator=", ")),
    (("<｜tool▁calls▁begin｜>", "```json"), CallFormat(
        kind="named", section_begin="<｜tool▁calls▁begin｜>", section_end="<｜tool▁calls▁end｜>",
        call_begin="<｜tool▁call▁begin｜>function<｜tool▁sep｜>", name_end="\n```json\n",
        call_end="\n```<｜tool▁call▁end｜>", separator="\n",
    )),
    (("<|tool_calls_section_begin|>",), CallFormat(
        kind="named", section_begin="<|tool_calls_section_begin|>", section_end="<|tool_calls_section_end|>",
        call_begin="<|tool_call_begin|>functions.", name_end=":0<|tool_call_argument_begin|>",
        call_end="<|tool_call_end|>",
    )),
    (("<|tool_call_start|>",), CallFormat(
        kind="pythonic", section_begin="<|tool_call_start|>", section_end="<|tool_call_end|>", is_list=True,
        separator=", ",
    )),
    (("<function_calls>",), CallFormat(
        kind="pythonic", section_begin="<function_calls>", section_end="</function_calls>", separator="\n",
    )),
    (("func_name1(",), CallFormat(kind="pythonic", is_list=True, separator=", ")),
)  # fmt: skip


def known_format(source: str) -> CallFormat | None:
    """The format whose marks this template's source has."""
    return next((format for marks, format in FORMATS if all(mark in source for mark in marks)), None)


def known_thought(source: str) -> tuple[str, str] | None:
    """The marks of thoughts that this template's source has."""
    if "<|channel|>" in source:
        return None  # gpt-oss's thoughts are messages of their own
    return next((marks for mark, marks in THOUGHTS if mark in source), None)
