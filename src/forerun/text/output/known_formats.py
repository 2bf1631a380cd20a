"""Formats of calls that a comparison does not find, recognised by marks in a chat template's source."""

from typing import Final

from forerun.text.output.traits import CallFormat

THOUGHTS: Final = (
    ("</think>", ("<think>", "</think>")),
    ("[/THINK]", ("[THINK]", "[/THINK]")),
    ("<|channel>", ("<|channel>thought", "<channel|>")),
)  # each after a text in its template's source
FORMATS: Final = (
    (("<|channel|>", "<|message|>"), CallFormat(kind="harmony")),
    (
        ("<|tool_call>",),
        CallFormat(
            kind="gemma",
            call_begin="<|tool_call>",
            call_end="<tool_call|>",
            name_begin="call:",
            string_mark='<|"|>',
        ),
    ),
    (
        ("<start_function_call>",),
        CallFormat(
            kind="gemma",
            call_begin="<start_function_call>",
            call_end="<end_function_call>",
            name_begin="call:",
            string_mark="<escape>",
        ),
    ),
    (("[TOOL_CALLS]", "[ARGS]"), CallFormat(kind="named", call_begin="[TOOL_CALLS]", name_end="[ARGS]")),
    (("[TOOL_CALLS]",), CallFormat(kind="json", section_begin="[TOOL_CALLS] ", is_list=True, separator=", ")),
    (
        ("<\uff5ctool▁calls▁begin\uff5c>", "```json"),
        CallFormat(
            kind="named",
            section_begin="<\uff5ctool▁calls▁begin\uff5c>",
            section_end="<\uff5ctool▁calls▁end\uff5c>",
            call_begin="<\uff5ctool▁call▁begin\uff5c>function<\uff5ctool▁sep\uff5c>",
            name_end="\n```json\n",
            call_end="\n```<\uff5ctool▁call▁end\uff5c>",
            separator="\n",
        ),
    ),
    (
        ("<|tool_calls_section_begin|>",),
        CallFormat(
            kind="named",
            section_begin="<|tool_calls_section_begin|>",
            section_end="<|tool_calls_section_end|>",
            call_begin="<|tool_call_begin|>",
            name_begin="functions.",
            name_end="<|tool_call_argument_begin|>",
            is_numbered=True,
            call_end="<|tool_call_end|>",
        ),
    ),
    (
        ("<|tool_call_start|>",),
        CallFormat(
            kind="pythonic",
            section_begin="<|tool_call_start|>",
            section_end="<|tool_call_end|>",
            is_list=True,
            separator=", ",
        ),
    ),
    (
        ("<function_calls>",),
        CallFormat(
            kind="pythonic",
            section_begin="<function_calls>",
            section_end="</function_calls>",
            separator="\n",
        ),
    ),
    (
        ("<|tool_call|>", "<|/tool_call|>"),
        CallFormat(
            kind="json",
            section_begin="<|tool_call|>",
            section_end="<|/tool_call|>",
            is_list=True,
            separator=", ",
        ),
    ),
    (("<|tool_call|>",), CallFormat(kind="json", section_begin="<|tool_call|>", is_list=True, separator=", ")),
    (("func_name1(",), CallFormat(kind="pythonic", is_list=True, separator=", ")),
)


def known_format(source: str) -> CallFormat | None:
    """The format whose marks this template's source has."""
    return next((format for marks, format in FORMATS if all(mark in source for mark in marks)), None)


def known_thought(source: str) -> tuple[str, str] | None:
    """The marks of thoughts that this template's source has."""
    if "<|channel|>" in source:
        return None  # gpt-oss's thoughts are separate messages
    return next((marks for mark, marks in THOUGHTS if mark in source), None)
