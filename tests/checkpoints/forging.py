"""Checkpoint folders with one thing forged, drawn at random: what a stranger may have put into a download."""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.checkpoints.folders import FIRST_SHARD, INDEX, SINGLE, random_tensors, write_shards, write_single
from tests.text.tiny_tokenizers import write_llama

ROPE: Final = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
GENERATION: Final = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "eos_token_id": [1, 2]}
DEEP: Final = 100_000  # levels of nesting, far beyond what any parser's stack holds
NUMBERS: Final[tuple[object, ...]] = (
    -1, 0, 1, 3, 10**6, 10**9, 2**31, 2**63, 2**64, 10**4000, -(10**4000), 0.5, -0.0, 1e-300, 1e300, -1e30,
    float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
OTHERS: Final[tuple[object, ...]] = (
    True, False, None, "", "4", "x" * 500_000, "\x00\n\ud800", [], [1, 2], [[]] * 1000, {}, {"a": {"b": {}}},
    {str(number): number for number in range(20_000)},
)  # fmt: skip


class Forger:
    """Writes forged copies of two good checkpoints, one file and one sharded, with llama3's rope and a tokenizer."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._rng = random.Random(seed)
        tensors = random_tensors()
        single = folder / "single"
        shards = folder / "shards"
        for good in (single, shards):
            write_llama(good)
            (good / "generation_config.json").write_text(json.dumps(GENERATION))
        write_single(single, tensors, rope_scaling=ROPE)
        write_shards(shards, tensors)
        self._single = _contents(single)
        self._shards = _contents(shards)

    def forge(self, folder: Path) -> str:
        """Write one forged checkpoint; what was forged."""
        kinds: list[Callable[[], tuple[str, Mapping[str, bytes]]]] = [
            lambda: self._forge_json("config.json", self._single),
            lambda: self._forge_json("config.json", self._single),
            lambda: self._forge_header(SINGLE, self._single),
            lambda: self._forge_header(FIRST_SHARD, self._shards),
            lambda: self._forge_json(INDEX, self._shards),
            lambda: self._forge_json("generation_config.json", self._single),
            lambda: self._forge_json("tokenizer.json", self._single),
            lambda: self._forge_json("tokenizer_config.json", self._single),
        ]
        what, contents = self._rng.choice(kinds)()
        folder.mkdir()
        for name, content in contents.items():
            (folder / name).write_bytes(content)
        return what

    def _forge_json(self, name: str, good: Mapping[str, bytes]) -> tuple[str, Mapping[str, bytes]]:
        if self._rng.random() < 0.3:
            how, forged = self._break_text(good[name])
        else:
            how, forged = self._change_value(good[name])
        return f"{name}: {how}", {**good, name: forged}

    def _forge_header(self, name: str, good: Mapping[str, bytes]) -> tuple[str, Mapping[str, bytes]]:
        file = good[name]
        length = int.from_bytes(file[:8], "little")
        header = file[8 : 8 + length]
        data = file[8 + length :]
        match self._rng.randrange(6):
            case 0:
                claimed = self._rng.choice((0, 1, length - 1, length + 1, 2**20, 10**8, 2**31, 2**63, 2**64 - 1))
                return f"{name}: length {claimed}", {**good, name: claimed.to_bytes(8, "little") + header + data}
            case 1:
                how, header = self._break_text(header)
            case 2:
                how, header = self._crowd()
            case 3:
                how = "data cut"
                data = data[: self._rng.randrange(len(data))]
            case _:
                how, header = self._change_value(header)
        return f"{name}: {how}", {**good, name: len(header).to_bytes(8, "little") + header + data}

    def _crowd(self) -> tuple[str, bytes]:
        """As many tensors without a byte as a large header holds."""
        num = self._rng.choice((1000, 10_000, 200_000))
        entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
        return f"{num} empty tensors", json.dumps({f"model.layers.{idx}.x": entry for idx in range(num)}).encode()

    def _break_text(self, text: bytes) -> tuple[str, bytes]:
        place = self._rng.randrange(len(text))
        broken = {
            "cut": text[:place],
            "byte": text[:place] + bytes([self._rng.randrange(256)]) + text[place + 1 :],
            "list": b"[" * DEEP,
            "objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
            "deep value": text[:-1] + b',"deep":' + b"[" * 900 + b"]" * 900 + b"}",
            "empty lists": b"[" + b"[]," * 3_000_000 + b"1]",
            "repeated": text[:-1] + b"," + text[1:],
            "late repeat": b"{" + b"".join(b'"%d":1,' % idx for idx in range(60_000)) + b'"59999":1}',
            "digits": b'{"num_hidden_layers":' + b"9" * 1_000_000 + b"}",
            "utf-16": text.decode().encode("utf-16"),
            "nothing": b"",
        }
        how = self._rng.choice(list(broken))
        return how, broken[how]

    def _change_value(self, text: bytes) -> tuple[str, bytes]:
        """One value anywhere in it replaced or left out."""
        values = json.loads(text)
        holder, key = self._rng.choice(list(_places(values)))
        if self._rng.random() < 0.15 and isinstance(holder, dict):
            del holder[key]
            return f"{str(key)[:60]} left out", json.dumps(values).encode()
        holder[key] = self._rng.choice(NUMBERS if self._rng.random() < 0.6 else OTHERS)
        return f"{str(key)[:60]} = {type(holder[key])!s}", _to_json(values)


def _to_json(values: object) -> bytes:
    return json.dumps(values).encode()


def _places(values: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a JSON value, as its holder and the key or index there."""
    for key, value in list(values.items() if isinstance(values, dict) else enumerate(values)):
        yield values, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _contents(folder: Path) -> Mapping[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
