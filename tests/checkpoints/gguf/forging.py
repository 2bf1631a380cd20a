"""GGUF files with something forged, drawn at random: what a stranger may have put into a download."""

import random
from collections.abc import Iterator
from pathlib import Path
from struct import calcsize, pack, unpack_from
from typing import Any, Final

from tests.checkpoints.gguf.models import VOCABULARY, write_model

DIGITS: Final = [str(digit) for digit in range(10)]
PAIRS: Final = [f"t{digit}" for digit in DIGITS]
FILLERS: Final = [f"x{idx}" for idx in range(VOCABULARY - 24)]
BYTE_LEVEL: Final[dict[str, Any]] = {
    "tokenizer__ggml__model": "gpt2",
    "tokenizer__ggml__pre": "llama-bpe",
    "tokenizer__ggml__tokens": ["<s>", "<|im_end|>", "<pad>", "t", *DIGITS, *PAIRS, *FILLERS],
    "tokenizer__ggml__token_type": [3, 3, 3, *[1] * (VOCABULARY - 3)],
    "tokenizer__ggml__merges": [f"t {digit}" for digit in DIGITS],
    "tokenizer__ggml__bos_token_id": 0,
    "tokenizer__chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
    "general__sampling__temp": 0.5,
}
PIECES: Final[dict[str, Any]] = {
    "tokenizer__ggml__model": "llama",
    "tokenizer__ggml__tokens": ["<unk>", "<s>", "</s>", "<0x41>", *DIGITS, *PAIRS, *FILLERS],
    "tokenizer__ggml__scores": [-float(idx) for idx in range(VOCABULARY)],
    "tokenizer__ggml__token_type": [2, 3, 3, 6, *[1] * (VOCABULARY - 4)],
    "tokenizer__ggml__bos_token_id": 1,
    "tokenizer__ggml__add_bos_token": True,
}
NUMBERS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
COUNTS: Final = (
    *(0, 1, 2, 3, 5, 31, 32, 63, 64, 255, 257, 2**15, 2**16, 10**6, 10**7, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40),
    *(2**62, 2**63 - 1, 2**63, 2**64 - 33, 2**64 - 1),
)
NAMES: Final = (b"blk.1.attn_q.weight", b"output.weight", b"", b"\xff\xfe", b"x" * 70_000, "🙂".encode() * 50)


class GgufForger:
    """Writes forged copies of good files: every architecture, both kinds of tokenizer, codes, rope_freqs."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._rng = random.Random(seed)
        mixed = {"attn_v": "Q6_K", "ffn_down": "Q5_0", "token_embd": "F16"}
        divisors: dict[str, tuple[int, ...] | None] = {"rope_freqs.weight": (32,)}
        self.good = [
            write_model(folder / "1.gguf", types=mixed, default_type="Q4_K", shapes=divisors, **BYTE_LEVEL),
            write_model(folder / "2.gguf", architecture="qwen2", default_type="Q8_0", **BYTE_LEVEL),
            write_model(folder / "3.gguf", architecture="qwen3", default_type="Q4_1", **PIECES),
        ]
        self._contents = [(path.read_bytes(), list(fields_of(path.read_bytes()))) for path in self.good]

    def forge(self, path: Path) -> str:
        """Write one forged file; what was forged."""
        raw, fields = self._rng.choice(self._contents)
        num_changes = self._rng.choice((1, 1, 1, 2, 4))
        told = []
        for _ in range(num_changes):
            how, raw = self._change(raw, fields)
            told.append(how)
            if len(raw) != path_size(fields):
                break  # what follows lies elsewhere now
        path.write_bytes(raw)
        return "; ".join(told)

    def _change(self, raw: bytes, fields: list[tuple[str, int, int]]) -> tuple[str, bytes]:
        rng = self._rng
        head_end = fields[-2][2]
        match rng.randrange(10):
            case 0:
                place = rng.randrange(len(raw))
                return f"cut at {place}", raw[:place]
            case 1:
                place = rng.randrange(head_end)
                changed = bytes([raw[place] ^ 1 << rng.randrange(8)])
                return f"bit of byte {place}", splice(raw, place, place + 1, changed)
            case 2:
                place = rng.randrange(len(raw) - 64)
                num_bytes = rng.randrange(1, 64)
                return f"{num_bytes} bytes at {place}", splice(raw, place, place + num_bytes, rng.randbytes(num_bytes))
            case 3:
                return self._crowd(raw, fields)
            case 4:
                start, stop = sorted(rng.sample(range(head_end), 2))
                return f"{start} to {stop} left out", splice(raw, start, stop, b"")
            case 5:
                start, stop = sorted(rng.sample(range(head_end), 2))
                return f"{start} to {stop} twice", splice(raw, start, start, raw[start:stop])
            case _:
                return self._change_field(raw, fields)

    def _change_field(self, raw: bytes, fields: list[tuple[str, int, int]]) -> tuple[str, bytes]:
        """Another number or text in one place, with or without the length before it being right."""
        kind, start, stop = self._rng.choice(fields[:-1])
        if kind == "text":
            new = self._rng.choice(NAMES) if self._rng.random() < 0.5 else self._rng.randbytes(stop - start)
            return f"text at {start}", splice(splice(raw, start, stop, new), start - 8, start, pack("<Q", len(new)))
        size = stop - start
        number = self._rng.choice(COUNTS) if self._rng.random() < 0.7 else self._rng.getrandbits(8 * size)
        if kind == "type":
            number = self._rng.randrange(45)
        return f"{kind} at {start} = {number}", splice(raw, start, stop, (number % 256**size).to_bytes(size, "little"))

    def _crowd(self, raw: bytes, fields: list[tuple[str, int, int]]) -> tuple[str, bytes]:
        """Very many small things, or one very large, where the keys begin."""
        number = self._rng.choice((10_000, 200_000, 1_500_000))
        many = {
            "empty texts": array(8, number, bytes(8 * number)),
            "short texts": array(8, number, pack("<Q4s", 4, b"abcd") * number),
            "wide texts": array(8, number // 4, (pack("<Q", 7) + "🙂abc".encode()) * (number // 4)),
            "floats": array(6, 4 * number, bytes(16 * number)),
            "bytes": array(0, 8 * number, bytes(8 * number)),
            "long text": pack("<IQ", 8, 8 * number) + b"a" * (8 * number),
            "wide text": pack("<IQ", 8, 8 * number + 4) + "🙂".encode() + b"a" * (8 * number),
            "arrays": array(9, number, pack("<IQ", 0, 0) * number),
        }
        how = self._rng.choice([*many, "keys"])
        name = self._rng.choice((b"x", b"y", b"tokenizer.ggml.merges"))
        keys = [(name, many[how])] if how in many else numbered(number // 4)
        entries = b"".join(pack("<Q", len(name)) + name + value for name, value in keys)
        place = fields[3][1]
        num_keys = unpack_from("<Q", raw, 16)[0]
        return f"{number} {how}", splice(splice(raw, place, place, entries), 16, 24, pack("<Q", num_keys + len(keys)))


def array(code: int, count: int, items: bytes) -> bytes:
    """The value of a key that holds an array."""
    return pack("<IIQ", 9, code, count) + items


def numbered(count: int) -> list[tuple[bytes, bytes]]:
    """So many keys, each with one flag."""
    return [(b"%07d" % idx, pack("<IB", 7, 1)) for idx in range(count)]


def splice(raw: bytes, start: int, stop: int, new: bytes) -> bytes:
    return raw[:start] + new + raw[stop:]


def path_size(fields: list[tuple[str, int, int]]) -> int:
    return fields[-1][2]


def fields_of(raw: bytes) -> Iterator[tuple[str, int, int]]:
    """Every field of a good file's beginning: what it is, where it begins and ends; at last the data."""
    place = 4

    def number(kind: str, size: int) -> tuple[str, int, int]:
        nonlocal place
        place += size
        return kind, place - size, place

    def value_of(field: tuple[str, int, int]) -> int:
        return int.from_bytes(raw[field[1] : field[2]], "little")

    def text() -> Iterator[tuple[str, int, int]]:
        length = number("length", 8)
        yield length
        yield number("text", value_of(length))

    def values(code: int, count: int) -> Iterator[tuple[str, int, int]]:
        for _ in range(count):
            if code == 8:
                yield from text()
            else:
                yield number("value", calcsize(NUMBERS[code]))

    head = [number("version", 4), number("number of tensors", 8), number("number of keys", 8)]
    yield from head
    for _ in range(value_of(head[2])):
        *named, length = text()
        yield from (*named, length)
        code = number("type", 4)
        yield code
        if value_of(code) != 9:
            yield from values(value_of(code), 1)
            continue
        inner = number("type", 4)
        count = number("count", 8)
        yield from (inner, count)
        yield from values(value_of(inner), value_of(count))
    for _ in range(value_of(head[1])):
        yield from text()
        dimensions = number("dimensions", 4)
        yield dimensions
        yield from [number("dimension", 8) for _ in range(value_of(dimensions))]
        yield number("type", 4)
        yield number("offset", 8)
    yield "data", place, len(raw)
