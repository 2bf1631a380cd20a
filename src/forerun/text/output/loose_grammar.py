"""Rules, in llguidance's Lark, for arguments that are written like Python's or as Gemma 4 does."""

import json
from collections.abc import Mapping
from typing import Final

from forerun.text.output.call_schema import Schema

NUMBER: Final = r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/"
INTEGER: Final = r"/-?(0|[1-9][0-9]*)/"
PYTHON_RULES: Final = {
    "py_text": r"/\"([^\"\\\n]|\\[\"\\nt])*\"/ | /'([^'\\\n]|\\['\\nt])*'/",
    "py_value": f'py_text | {NUMBER} | "True" | "False" | "None" | py_list | py_mapping',
    "py_list": '"[" (py_value (", " py_value)*)? "]"',
    "py_mapping": '"{" (py_text ": " py_value (", " py_text ": " py_value)*)? "}"',
}
PYTHON_TYPES: Final = {"string": "py_text", "integer": INTEGER, "number": NUMBER, "boolean": '("True" | "False")'}


def pythonic_arguments(schema: Schema, rules: dict[str, str]) -> str:
    """(a=1, b="x"): any of the arguments, typed where the schema says it plainly."""
    rules.update(PYTHON_RULES)
    return _arguments(schema, "(", ")", "=", ", ", PYTHON_TYPES, "py_value")


def gemma_arguments(schema: Schema, rules: dict[str, str], mark: str) -> str:
    """{a:1,b:<|"|>x<|"|>}: likewise. `mark` stands around texts."""
    is_token = mark.startswith("<[")
    rules |= {
        "gm_text": f"{mark} {'/(?s:.*)/' if is_token else '/[^<]*/'} {mark}",
        "gm_value": f'gm_text | {NUMBER} | "true" | "false" | "null" | gm_list | gm_mapping',
        "gm_list": '"[" (gm_value ("," gm_value)*)? "]"',
        "gm_mapping": '"{" (gm_key ":" gm_value ("," gm_key ":" gm_value)*)? "}"',
        "gm_key": r"/[A-Za-z_][A-Za-z0-9_-]*/",
    }
    types = {"string": "gm_text", "integer": INTEGER, "number": NUMBER, "boolean": '("true" | "false")'}
    return _arguments(schema, "{", "}", ":", ",", types, "gm_value")


def _arguments(
    schema: Schema, begin: str, end: str, joint: str, comma: str, types: Mapping[str, str], any_value: str
) -> str:
    entries = []
    for key, said in schema["properties"].items():
        kind = said.get("type") if isinstance(said, Mapping) else None
        value = types.get(kind, any_value) if isinstance(kind, str) else any_value
        entries.append(f"{json.dumps(key + joint)} {value}")
    if not entries:
        return json.dumps(begin + end)
    one_of = f"({' | '.join(entries)})"
    at_least = "" if schema.get("required") else "?"
    return f"{json.dumps(begin)} ({one_of} ({json.dumps(comma)} {one_of})*){at_least} {json.dumps(end)}"
