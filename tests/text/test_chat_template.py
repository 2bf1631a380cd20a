"""A chat template chosen by the user, and the variables that templates ask for."""

from pathlib import Path
from typing import Final

import pytest

from forerun.checkpoints.huggingface.tokenizer import read_tokenizer
from forerun.core.errors import ConfigError
from forerun.text.chat_template import NAMED_TEMPLATES, ChatTemplate, read_template
from tests.text.tiny_tokenizers import SHARED_DATA, write_byte_level

CHAT = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Ho"},
    {"role": "user", "content": "Why?"},
)
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
THINKING = "{% if enable_thinking | default(true) %}think{% else %}answer{% endif %}"


def render(source: str, **variables: object) -> str:
    return ChatTemplate(source=source, special_tokens=SPECIAL).render(CHAT, variables)


def test_a_variable_reaches_the_template_and_goes_before_the_usual_ones() -> None:
    assert render(THINKING) == "think"
    assert render(THINKING, enable_thinking=False) == "answer"
    assert render("{{ bos_token }}{{ tools | length }}", bos_token="<b>", tools=[{}]) == "<b>1"
    assert render("{{ add_generation_prompt }}", add_generation_prompt=False) == "False"


def test_a_template_is_given_by_name_text_or_file(tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("{{ 'é' }}", encoding="utf-8")
    assert read_template("chatml") == NAMED_TEMPLATES["chatml"]
    assert read_template(THINKING) == THINKING
    assert read_template(str(file)) == "{{ 'é' }}"


@pytest.mark.parametrize("given", ["chat", "no/such.jinja", "x" * 300, "a\0b", ""])
def test_what_is_no_template_is_named_with_what_there_is(given: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read as a file .*chatml, llama3, zephyr"):
        read_template(given)


def test_a_template_in_place_of_the_models_own_has_its_special_tokens(tmp_path: Path) -> None:
    own = read_tokenizer(write_byte_level(tmp_path, chat_template=None))
    other = own.with_chat_template("{{ messages[0]['content'] }}{{ eos_token }}")
    expected = own.encode("Be brief.<|im_end|>", add_special_tokens=False)
    assert other.apply_chat_template(CHAT) == expected
    assert not own.has_chat_template
    with pytest.raises(ConfigError, match=r"not a valid Jinja template.*correct it"):
        own.with_chat_template("{% for %}")


def test_the_named_zephyr_is_the_published_one() -> None:
    file = SHARED_DATA / "tokenizers/chat_templates/zephyr.jinja"
    if not file.exists():
        pytest.skip("the published template is not on this machine")
    assert render(NAMED_TEMPLATES["zephyr"]) == render(file.read_text(encoding="utf-8"))


def test_the_named_llama3_wraps_every_turn() -> None:
    assert (
        render(NAMED_TEMPLATES["llama3"])
        == "<s>"
        + "".join(f"<|start_header_id|>{turn['role']}<|end_header_id|>\n\n{turn['content']}<|eot_id|>" for turn in CHAT)
        + "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


NEVER_RUN: Final = (
    "{{ 7**(9**9) }}",
    "{% set x = 7**(9**9) %}{% if 7**(9**9) == 2 %}{% endif %}",
    "{{ ('a'*2000000000)|length }}{{ 'x'|center(10**13) }}",
    "{% for a in range(7**(9**9)) %}{% endfor %}",
    "{{ {'a': 7**(9**9)} }}{{ [7**(9**9)][0] }}{{ (7**(9**9))|string }}",
    "{% macro f(a=7**(9**9)) %}{% endmacro %}{% call f(7**(9**9)) %}{% endcall %}",
)


@pytest.mark.timeout(20)  # seconds; each would take minutes and all memory
@pytest.mark.parametrize("source", NEVER_RUN)
def test_what_is_never_run_is_never_computed(source: str) -> None:
    template = ChatTemplate(source=f"{{% if false %}}{source}{{% endif %}}hi", special_tokens={})
    assert template.variables() <= {"x", "f", "y"}
    assert template.render([{"role": "user", "content": "x"}]) == "hi"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ 'x' | xmlattr }}", "AttributeError"),
        ("".join(f"{{% for a{i} in messages %}}" for i in range(25)) + "x" + "{% endfor %}" * 25, "nested blocks"),
        ("{{ messages[0].content | center(10**13) }}", "more memory"),
        ("{{ raise_exception('no system message') }}", "no system message"),
    ],
)
def test_whatever_a_template_raises_is_one_clear_error(source: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        ChatTemplate(source=source, special_tokens={}).render([{"role": "user", "content": "x"}])
