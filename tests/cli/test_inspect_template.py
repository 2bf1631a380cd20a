"""forerun inspect: what a chat template takes, and how its model writes thoughts and calls."""

import json
import shutil
from pathlib import Path

import pytest

from forerun.cli.template_sheet import template_rows
from forerun.text.output.traits import TemplateTraits
from tests.cli.conftest import Run
from tests.text.output.families import FAMILIES
from tests.text.output.loose_families import LOOSE_FAMILIES
from tests.text.tiny_tokenizers import write_byte_level

ALL = FAMILIES | LOOSE_FAMILIES
SHOWN = {
    "qwen3": ("JSON objects, marks <tool_call> </tool_call>", "as a mapping", "<think> ... </think>"),
    "deepseek": ("a name and JSON, marks <\uff5ctool▁calls▁begin\uff5c>", "as JSON text", "<think> ... </think>"),
    "qwen3_coder": ("arguments between marks, marks <tool_call>", "as a mapping", "<think> ... </think>"),
    "gpt_oss": ("gpt-oss's messages", "as a mapping", "no marks of their own"),
    "kimi": ("functions.NAME:NUMBER",),
    "mistral_list": ("ids of calls have 9 letters and digits", "; not system later, developer"),
    "llama3": ("one call per message",),
    "plain_chat": ("no variable: the system message describes them", "JSON objects, marks <tool_call> </tool_call>"),
    "smollm3": ("in the variable xml_tools", "earlier calls are left out"),
}


def with_template(target: str, folder: Path, source: str) -> str:
    """The model with another chat template."""
    shutil.copytree(target, folder, dirs_exist_ok=True)
    return str(write_byte_level(folder, chat_template=source))


@pytest.mark.parametrize("name", SHOWN)
def test_inspect_shows_what_the_template_takes_and_its_model_writes(
    run: Run, target: str, tmp_path: Path, name: str
) -> None:
    shown = run("inspect", with_template(target, tmp_path, ALL[name].template))
    assert shown.exit_code == 0
    for words in SHOWN[name]:
        assert words in shown.stdout


def test_inspect_gives_all_of_it_as_json(run: Run, target: str, tmp_path: Path) -> None:
    folder = with_template(target, tmp_path, ALL["qwen3"].template)
    traits = json.loads(run("inspect", folder, "--json").stdout)["traits"]
    assert traits["calls"]["call_begin"] == "<tool_call>\n"
    assert traits["thought"] == ["<think>", "</think>"]
    assert traits["tools_variable"] == "tools"
    assert "enable_thinking" in traits["variables"]


def test_without_a_template_nothing_is_said_of_calls(run: Run, plain: str) -> None:
    assert json.loads(run("inspect", plain, "--json").stdout)["traits"] is None
    assert "arguments" not in run("inspect", plain).stdout


def test_a_broken_template_is_shown_and_the_model_still_runs(run: Run, target: str, tmp_path: Path) -> None:
    shown = run("inspect", with_template(target, tmp_path, "{% for %}"))
    assert shown.exit_code == 0
    assert "yes, but the chat template '{% for %}' is not a valid Jinja template" in shown.stdout


def test_control_characters_in_a_mark_do_not_reach_the_terminal() -> None:
    rows = dict(template_rows(TemplateTraits(thought=("<\x1b[2J>", "</t>"))))
    assert rows["  thoughts"] == "<·[2J> ... </t>"
