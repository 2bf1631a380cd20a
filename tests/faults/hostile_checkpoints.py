"""Checkpoint folders by strangers: the built-in model with one file, or two, that a hostile hand changed.

The model has one layer, so that thousands of engines can be opened.
"""

import json
import random
from pathlib import Path
from shutil import copytree
from typing import Any, Final

from safetensors.torch import load_file, save_file

import forerun

BUILT_IN: Final = Path(forerun.__file__).parent / "assets" / "target"
ASKED: Final = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
KINDS: Final = ("template", "tokenizer", "config")

NUMBERS: Final = ("0", "-1", "10", "99999", "10**9", "2**63", "10**400", "0.1", "1e308*10", "true", "none")
TEXTS: Final = ("''", "'x'", "messages[0].content", "messages", "bos_token", "nothing.at.all", "{}", "[]")
ATOMS: Final = (
    "{{ raise_exception('no') }}", "{{ 1 / 0 }}", "{% endfor %}", "{% if %}", "{{", "{% for x in %}", "{#", "\x00",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "{{ 'x' * 10 ** 10 }}",
    "{{ 10 ** (10 ** 8) }}", "{{ range(10 ** 9) | list }}", "{{ [0] * 10 ** 9 }}", "{{ ('x' * 30000000) | upper }}",
    "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "{% macro n(a) %}{{ n(a + a) }}{% endmacro %}{{ n('x') }}", "{{ ''.__class__.__mro__ }}",
    "{{ messages.append(messages) }}", "{{ messages.__init__.__globals__ }}", "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}", "{% extends 'x' %}", "{{ self.x() }}", "{{ messages | tojson }}",
    "{{ '%s' | format(messages) }}", "{{ '{0.__class__}'.format(messages) }}", "{{ '%10000000000d' % 1 }}",
    "{{ '{:>10000000000}'.format(1) }}", "{{ messages[99] }}", "{{ messages[-1].a.b.c }}",
    "{{ strftime_now('%' * 100000) }}", "{{ strftime_now(7) }}", "{{ 'a'.center(10 ** 10) }}",
    "{{ lipsum(n=10**9) }}", "{{ cycler() }}", "{{ 'a,' * 1000 | list | batch(0) | list }}",
    "{% set ns = namespace(a=1) %}{% set ns.a = ns %}{{ ns }}", "{% generation %}x{% endgeneration %}", "{% break %}",
    "{{ '\\ud800' }}", "<|endoftext|>", "{{ joiner | pprint }}", "{{ messages | groupby('role') | groupby('x') }}",
    "{{ 'x'.join(range(99999) | map('string')) }}", "{{ dict(a=dict) }}",
)  # fmt: skip


def template(rng: random.Random) -> str:
    """A chat template of a few hostile parts, in good ones or deep in each other, or a damaged one."""
    match rng.randrange(6):
        case 0:
            return rng.choice(ATOMS)
        case 1:
            depth = rng.choice([3, 50, 500, 5000])
            opening = rng.choice(["{% if true %}", "{% for a in 'ab' %}"])
            return (
                opening * depth + "x" + ("{% endif %}" if "if" in opening else "{% endfor %}") * rng.choice([depth, 1])
            )
        case 2:
            sign = rng.choice(["(", "[", "-", "not ", "{'a':"])
            depth = rng.choice([5, 90, 1000, 20000])
            return "{{ " + sign * depth + "1" + {"(": ")", "[": "]", "{'a':": "}"}.get(sign, "") * depth + " }}"
        case 3:
            operator = rng.choice(["*", "**", "+", "~", "//", "%", "in", "<"])
            values = (*NUMBERS, *TEXTS)
            return ASKED + "{{ " + f" {operator} ".join(rng.choice(values) for _ in range(rng.randint(2, 5))) + " }}"
        case 4:
            damaged = list(ASKED * rng.choice([1, 3]))
            for _ in range(rng.randint(1, 6)):
                damaged[rng.randrange(len(damaged))] = rng.choice([*"{}%#'\n \x00", "", "\u2028", "\ufdd0"])
            return "".join(damaged)
        case _:
            return ASKED + "".join(rng.choice(ATOMS) for _ in range(rng.randint(1, 3)))


def odd(rng: random.Random, before: object) -> object:
    """What stands in the place of a value."""
    near: list[object] = [before, [before], {"a": before}, str(before)]
    if isinstance(before, (int, float)):
        near += [before + 1, before * 2, -before, before - 1, before / 3, before * 1000]
    fixed = [
        None, True, False, 0, -1, 1, 2**31, 2**63, 10**300, 0.5, 1e-300, 1e308, float("nan"), float("inf"), "", "x",
        "\ud800", "\x00", "../../etc/passwd", [], {}, [[]], {"": None}, "x" * 100_000, [1] * 10_000,
    ]  # fmt: skip
    return rng.choice([*near, *fixed])


def mutate(rng: random.Random, form: Any, keys: tuple[str, ...] = ()) -> None:
    """Change, drop or add a value anywhere in a JSON object or list."""
    place = form
    while True:
        options = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not options:
            break
        key = rng.choice(options)
        if isinstance(place[key], (dict, list)) and len(place[key]) and rng.random() < 0.8:
            place = place[key]
            continue
        if rng.random() < 0.2:
            del place[key]
        else:
            place[key] = odd(rng, place[key])
        break
    if isinstance(place, dict) and rng.random() < 0.2:
        place[rng.choice(("auto_map", "unknown", "", *keys))] = odd(rng, 1)


CONFIG_KEYS: Final = (
    "rope_scaling", "sliding_window", "quantization_config", "layer_types", "text_config", "num_experts",
    "attention_bias", "architectures", "tie_word_embeddings", "head_dim", "temperature", "top_k", "top_p",
    "repetition_penalty", "eos_token_id", "bos_token_id", "suppress_tokens", "max_length", "num_hidden_layers",
    "vocab_size",
)  # fmt: skip
PARTS: Final[dict[str, tuple[Any, ...]]] = {
    "normalizer": (
        {"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="},
        {"type": "Precompiled", "precompiled_charsmap": "////"},
        {"type": "Replace", "pattern": {"String": ""}, "content": "x"},
        {"type": "Replace", "pattern": {"Regex": "("}, "content": ""},
        {"type": "Replace", "pattern": {"Regex": ""}, "content": "xx"},
        {"type": "Replace", "pattern": {"String": "h"}, "content": "i" * 10_000},
        {"type": "Prepend", "prepend": ""},
        {"type": "Replace", "pattern": {"Regex": "(.+)+$"}, "content": "xx"},
        {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": "i"}, "content": "iii"}] * 40},
        {"type": ["Replace"]},
        {"type": "NFKC"},
        {"type": "Nonsense"},
        {"type": "Strip"},
        {"type": "StripAccents"},
        {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": " "}, "content": ""}] * 50},
        {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
    ),
    "pre_tokenizer": (
        {"type": "Split", "pattern": {"Regex": "[\\d"}, "behavior": "Isolated", "invert": False},
        {"type": "Split", "pattern": {"Regex": ""}, "behavior": "Removed", "invert": True},
        {"type": "Split", "pattern": {"String": ""}, "behavior": "MergedWithNext", "invert": False},
        {"type": "Split", "pattern": {"Regex": "(?<=a*)b"}, "behavior": "Isolated", "invert": False},
        {"type": "FixedLength", "length": 0},
        {"type": "Metaspace", "replacement": "ab", "prepend_scheme": "always"},
        {"type": "Split", "pattern": {"Regex": "(?:(.|h|i)+)+$"}, "behavior": "Isolated", "invert": False},
        {"type": "CharDelimiterSplit", "delimiter": ""},
        {"type": "Sequence", "pretokenizers": []},
        {"type": "UnicodeScripts"},
    ),
    "post_processor": (
        {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "B", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {},
        },
        {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}},
        {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "x", "type_id": 0}}],
            "pair": [],
            "special_tokens": {},
        },
        {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "x", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [],
            "special_tokens": {"x": {"id": "x", "ids": [2**31], "tokens": ["x"]}},
        },
        {"type": "BertProcessing", "sep": ["x", 2**32 - 1], "cls": ["y", 4096]},
    ),
    "decoder": (
        {"type": "Replace", "pattern": {"Regex": "*"}, "content": ""},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": "\u0120", "start": 10**9, "stop": 10**9},
        {"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True},
        {"type": "WordPiece", "prefix": "", "cleanup": True},
        {"type": "BPEDecoder", "suffix": ""},
    ),
    "model": (
        {"type": "Unigram", "unk_id": 9, "vocab": [["a", 0.0]], "byte_fallback": True},
        {"type": "Unigram", "unk_id": None, "vocab": []},
        {"type": "WordLevel", "vocab": {}, "unk_token": "x"},
        {
            "type": "WordPiece",
            "vocab": {"a": 0},
            "unk_token": "x",
            "continuing_subword_prefix": "",
            "max_input_chars_per_word": 0,
        },
        {"type": "BPE", "vocab": {}, "merges": []},
        {"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": [["a", "b"]]},
        {"type": "BPE", "vocab": {"a": 2**32 - 1}, "merges": []},
    ),
    "truncation": ({"max_length": 0, "strategy": "LongestFirst", "stride": 5, "direction": "Right"},),
    "padding": (
        {
            "strategy": {"Fixed": 10**4},
            "direction": "Left",
            "pad_to_multiple_of": 0,
            "pad_id": 2**31,
            "pad_type_id": 0,
            "pad_token": "x",
        },
    ),
    "added_tokens": tuple(
        [
            {
                "id": id_,
                "content": content,
                "single_word": False,
                "lstrip": True,
                "rstrip": True,
                "normalized": False,
                "special": special,
            }
        ]
        for id_ in (0, 4096, 2**32 - 1)
        for content in ("", "a", "<|endoftext|>", "\ufdd0")
        for special in (True, False)
    ),
}


def garbled(rng: random.Random, text: str) -> bytes:
    """A file that is cut off, or in which bytes were changed, or that is something else."""
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    match rng.randrange(4):
        case 0:
            return bytes(data[: rng.randrange(len(data))])
        case 1:
            for _ in range(rng.randint(1, 5)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            return bytes(data)
        case 2:
            return rng.choice(
                [b"", b"null", b"[]", b"7", b'"x"', b"{}", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 50_000]
            )
        case _:
            return bytes(data) + rng.choice([b"}", b"\x00", b"{}", b" " * 1000])


class HostileFolders:
    """Writes one hostile folder after another over the same place, from seeds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        copytree(BUILT_IN, folder, dirs_exist_ok=True)
        weights = load_file(folder / "model.safetensors")
        kept = {name: tensor for name, tensor in weights.items() if ".layers." not in name or ".layers.0." in name}
        (folder / "model.safetensors").unlink()
        save_file(kept, folder / "model.safetensors")
        names = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
        self._good = {name: (folder / name).read_text() for name in names}
        config = json.loads(self._good["config.json"])
        self._good["config.json"] = json.dumps(config | {"num_hidden_layers": 1})
        self._good["chat_template.jinja"] = ASKED

    def write(self, number: int) -> str:
        """The folder of this seed; what kind of file is hostile in it."""
        rng = random.Random(number)
        kind = KINDS[number % len(KINDS)]
        files: dict[str, str | bytes] = dict(self._good)
        if kind == "template":
            files["chat_template.jinja"] = template(rng)
        else:
            name = (
                "tokenizer.json"
                if kind == "tokenizer"
                else rng.choice(["config.json", "config.json", "generation_config.json", "tokenizer_config.json"])
            )
            files[name] = self._changed(rng, name)
        for name, text in files.items():
            path = self.folder / name
            path.unlink(missing_ok=True)
            path.write_bytes(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
        return kind

    def _changed(self, rng: random.Random, name: str) -> str | bytes:
        text = self._good[name]
        if rng.random() < 0.15:
            return garbled(rng, text)
        form = json.loads(text)
        if name == "tokenizer.json" and rng.random() < 0.6:
            for part in rng.sample(sorted(PARTS), rng.choice([1, 1, 2])):
                form[part] = rng.choice(PARTS[part])
        else:
            for _ in range(rng.choice([1, 1, 2, 3])):
                mutate(rng, form, CONFIG_KEYS)
        return json.dumps(form)
