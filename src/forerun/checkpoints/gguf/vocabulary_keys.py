"""The vocabulary's keys in the metadata of a GGUF file, each checked before it is used."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from forerun.checkpoints.gguf.header import GgufFile
from forerun.core.errors import CheckpointError
from forerun.core.json_file import short

PREFIX: Final = "tokenizer.ggml."
NORMAL = 1  # types of tokens, as ggml numbers them; 6 is a byte
UNKNOWN = 2
CONTROL = 3
USER_DEFINED = 4
UNUSED = 5
# Names used in templates, and the keys that hold these tokens' ids; "seperator" is ggml's spelling.
SPECIAL_KEYS: Final = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",
    "pad_token": "padding_token_id",
    "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyKeys:
    """Typed access to the keys `tokenizer.ggml.*`; every fault is a CheckpointError that names the key."""

    file: GgufFile

    def has(self, key: str) -> bool:
        return PREFIX + key in self.file.metadata

    def text(self, key: str) -> str:
        value = self.file.metadata.get(PREFIX + key)
        if not isinstance(value, str):
            raise self.wrong(key, f"is {short(value)}, but must be a text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.file.metadata.get(PREFIX + key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, f"is {short(value)}, but must be true or false")
        return value

    def texts(self, key: str) -> Sequence[str]:
        value = self.file.metadata.get(PREFIX + key)
        if not isinstance(value, tuple) or not set(map(type, value)) <= {str}:
            raise self.wrong(key, f"is {short(value)}, but must be a list of texts")
        return value  # type: ignore[return-value]

    def numbers(self, key: str, count: int) -> Sequence[float]:
        """A list of `count` numbers, one for each token."""
        value = self.file.metadata.get(PREFIX + key)
        if not isinstance(value, tuple) or not set(map(type, value)) <= {int, float}:
            raise self.wrong(key, f"is {short(value)}, but must be a list of numbers")
        if len(value) != count:
            raise self.wrong(key, f"has {len(value)} numbers, but must have {count}, one for each token")
        return value  # type: ignore[return-value]

    def token_id(self, key: str, num_tokens: int) -> int | None:
        """The id of a special token; None if the file has none."""
        value = self.file.metadata.get(PREFIX + key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < num_tokens:
            raise self.wrong(key, f"is {short(value)}, but must be the id of one of {num_tokens} tokens")
        return value

    def wrong(self, key: str, fault: str) -> CheckpointError:
        return CheckpointError(f"{self.file.path}: {PREFIX}{key} {fault}: fetch the file again, or another one")
