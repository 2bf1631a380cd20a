"""The tokenizer gives what transformers gives, without transformers."""

import json
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

import pytest

from forerun.checkpoints.huggingface.tokenizer import read_tokenizer
from forerun.checkpoints.open import open_source
from forerun.core.drafter_config import BUILTIN_TARGET
from forerun.core.errors import CheckpointError, ConfigError
from forerun.text.tokenizer import Tokenizer
from tests.text.tiny_tokenizers import write_byte_level, write_llama

TEXTS = (
    "",
    "Hello world",
    "  two  spaces and\ttabs\n\nlines ",
    "naïve café 你好 🦊🏽 \u200d",
    "<s>x</s> <|im_start|>user",
    "x = [1, 2.5e-3]  # code\n    return x",
)
CHATS: tuple[list[dict[str, Any]], ...] = (
    [{"role": "user", "content": "Hi"}],
    [
        {"role": "system", "content": "Be brief.\n"},
        {"role": "user", "content": " What is 2+2? "},
        {"role": "assistant", "content": "4", "tool_calls": None},
        {"role": "user", "content": "<b>Sure?</b>"},
    ],
)


@pytest.fixture(scope="module")
def pair(tokenizer_folder: Path) -> tuple[Tokenizer, Any]:
    """The same folder read by forerun and by transformers."""
    transformers = pytest.importorskip("transformers")
    return read_tokenizer(tokenizer_folder), transformers.AutoTokenizer.from_pretrained(tokenizer_folder)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("special", [True, False])
def test_ids_and_text_equal_those_of_transformers(pair: tuple[Tokenizer, Any], text: str, special: bool) -> None:
    ours, theirs = pair
    ids = theirs.encode(text, add_special_tokens=special)
    assert ours.encode(text, add_special_tokens=special) == ids
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_other_threads_go_on_while_a_long_text_is_encoded() -> None:
    """A server's engine is one of them."""
    tokenizer = open_source(BUILTIN_TARGET).tokenizer()
    num_turns = 0
    thread = Thread(target=lambda: tokenizer.encode("hello world " * 80_000))
    thread.start()
    while thread.is_alive():
        sleep(1e-3)
        num_turns += 1
    assert num_turns > 10


@pytest.mark.parametrize("messages", CHATS)
def test_chats_equal_those_of_transformers(pair: tuple[Tokenizer, Any], messages: list[dict[str, Any]]) -> None:
    ours, theirs = pair
    if theirs.chat_template is None:
        assert not ours.has_chat_template
        with pytest.raises(ConfigError, match="no chat template"):
            ours.apply_chat_template(messages)
        return
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ours.apply_chat_template(messages) == expected


@pytest.mark.parametrize("legacy", [True, False, None])
@pytest.mark.parametrize("add_prefix_space", [True, False, None])
def test_a_llama_tokenizer_class_is_read_as_transformers_reads_it(
    tmp_path: Path, legacy: bool | None, add_prefix_space: bool | None
) -> None:
    transformers = pytest.importorskip("transformers")
    flags = {"legacy": legacy, "add_prefix_space": add_prefix_space}
    config = {name: value for name, value in flags.items() if value is not None}
    folder = write_llama(tmp_path, tokenizer_class="LlamaTokenizerFast", add_bos_token=True, **config)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = read_tokenizer(folder)
    for text in (*TEXTS, "the fox</s>and the fox", " the"):
        ids = theirs.encode(text)
        assert ours.encode(text) == ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


TURN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content@ }}<|im_end|>\n{% endfor %}"


@pytest.mark.parametrize("template", [TURN.replace("@", ""), TURN.replace("@", " | trim")])
@pytest.mark.parametrize("answer", ["4, as", "4, as ", "4 <|im_end|>\n"])
def test_an_answer_that_goes_on_is_left_open_as_in_transformers(tmp_path: Path, template: str, answer: str) -> None:
    transformers = pytest.importorskip("transformers")
    folder = write_byte_level(tmp_path, chat_template=template)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    messages = [*CHATS[1], {"role": "assistant", "content": answer}]
    text = theirs.apply_chat_template(messages, continue_final_message=True, tokenize=False)
    tokenizer = read_tokenizer(folder)
    assert tokenizer.chat_template is not None
    assert tokenizer.chat_template.render(messages, continue_final_message=True) == text
    assert text.endswith(answer if "trim" not in template else answer.rstrip())
    ids = tokenizer.apply_chat_template(messages, continue_final_message=True)
    assert tokenizer.vocabulary()["<|im_end|>"] != ids[-1]
    if "<" not in answer:  # what looks like a control token stays text, as elsewhere
        assert ids == theirs.apply_chat_template(messages, continue_final_message=True, return_dict=False)


def test_only_an_answer_that_the_template_shows_can_go_on(tmp_path: Path) -> None:
    tokenizer = read_tokenizer(write_byte_level(tmp_path, chat_template=TURN.replace("m.content@", "'hidden'")))
    with pytest.raises(ConfigError, match="must be the assistant's"):
        tokenizer.apply_chat_template(CHATS[0], continue_final_message=True)
    with pytest.raises(ConfigError, match="leaves out the last message"):
        tokenizer.apply_chat_template([{"role": "assistant", "content": "Ho"}], continue_final_message=True)


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}\n  {% generation %}{{ m.content }}"
        "{% endgeneration %}\n{% endfor %}{{ messages | tojson }}{{ bos_token }}{{ tools is none }}",
        "{%- set ns = namespace(x='<') -%}{{ ns.x }}{{ eos_token }}{{ {'a': '<&\u00e9>'} | tojson(indent=1) }}",
    ],
)
def test_unusual_templates_render_as_in_transformers(tmp_path: Path, template: str) -> None:
    transformers = pytest.importorskip("transformers")
    folder = write_byte_level(tmp_path, chat_template=template)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    for messages in CHATS:
        expected = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert read_tokenizer(folder).apply_chat_template(messages) == expected


def test_variables_of_a_template_render_as_in_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    template = (
        "{{ eos_token }}{{ enable_thinking }}{{ names | join(',') }}{{ missing is defined }}{{ messages | length }}"
    )
    folder = write_byte_level(tmp_path, chat_template=template)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    variables = {"enable_thinking": False, "names": ["a", "b"], "eos_token": "</s>"}
    expected = theirs.apply_chat_template(CHATS[1], add_generation_prompt=True, return_dict=False, **variables)
    assert read_tokenizer(folder).apply_chat_template(CHATS[1], variables) == expected


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{% for %}",
        "{{ ''.__class__.__mro__ }}",
        "{{ 1 + 'a' }}",
        "{{ 1 / 0 }}",
        "{{" + 5000 * "(",
    ],
)
def test_a_template_that_refuses_is_broken_or_hostile_is_a_config_error(tmp_path: Path, template: str) -> None:
    tokenizer = read_tokenizer(write_byte_level(tmp_path, chat_template=template))
    with pytest.raises(ConfigError, match=r"chat template (refused|.* is not a valid Jinja template)"):
        tokenizer.apply_chat_template(CHATS[0])


@pytest.mark.parametrize(
    ("message", "word"),
    [
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "image_url"),
        ({"role": "user", "content": [{"type": "text"}]}, "part"),
        ({"role": "user", "content": ["text"]}, "part"),
        ({"role": "user", "content": {"type": "text", "text": "x"}}, "list of text parts"),
        ({"role": "user", "content": 5}, "content of a chat message is 5"),
        ("user: hello", "mapping with role and content"),
    ],
)
def test_content_that_is_no_text_is_named(tmp_path: Path, message: Any, word: str) -> None:
    tokenizer = read_tokenizer(write_byte_level(tmp_path))
    with pytest.raises(ConfigError, match=word):
        tokenizer.apply_chat_template([{"role": "user", "content": "hello"}, message])


def test_dropout_is_left_out(tmp_path: Path) -> None:
    write_byte_level(tmp_path)
    plain = read_tokenizer(tmp_path).encode("the quick brown fox")
    file = tmp_path / "tokenizer.json"
    values = json.loads(file.read_text())
    file.write_text(json.dumps({**values, "model": {**values["model"], "dropout": 0.9}}))
    tokenizer = read_tokenizer(tmp_path)
    assert [tokenizer.encode("the quick brown fox") for _ in range(5)] == [plain] * 5


def test_a_missing_or_damaged_tokenizer_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json does not exist"):
        read_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="fetch it again"):
        read_tokenizer(tmp_path)


def test_ids_of_control_tokens_are_known_and_ids_without_a_token_decode_to_nothing(tmp_path: Path) -> None:
    tokenizer = read_tokenizer(write_llama(tmp_path))
    assert tokenizer.decode([1, *tokenizer.encode("the fox"), 2, 100_000]) == "the fox"
    assert tokenizer.vocabulary()["</s>"] == 2
