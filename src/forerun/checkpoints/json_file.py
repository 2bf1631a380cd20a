"""A JSON file of a checkpoint, read with typed accessors whose errors name file, key and value."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from forerun.core.errors import CheckpointError

REQUIRED = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFile:
    """The object in `path`, or one nested in it. A key whose value is null counts as absent."""

    path: Path
    values: Mapping[str, object]
    prefix: str = ""

    @classmethod
    def read(cls, path: Path) -> "JsonFile":
        """The file's top-level object.

        Raises:
            CheckpointError: the file is absent, unreadable, or holds anything but one JSON object.
        """
        try:
            values = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise CheckpointError(f"{path} does not exist: a checkpoint folder must hold it") from None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read ({error}): check the file and its permissions") from error
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path} is not valid JSON ({error}): fetch the file again") from error
        if not isinstance(values, dict):
            raise CheckpointError(f"{path} holds a JSON {type(values).__name__}, an object is needed: fetch it again")
        return cls(path=path, values=values)

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def integer(self, key: str, default: object = REQUIRED) -> int:
        """A whole number >= 1: every size in a checkpoint is one."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.wrong(key, "a whole number >= 1")
        return value

    def number(self, key: str, default: object = REQUIRED) -> float:
        """A finite number > 0."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self.wrong(key, "a finite number > 0")
        return float(value)

    def flag(self, key: str, default: object = REQUIRED) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: object = REQUIRED) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def nested(self, key: str) -> "JsonFile":
        """The object under `key`; an empty one if it is absent."""
        value = self._get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return JsonFile(path=self.path, values=cast(dict[str, object], value), prefix=f"{self.prefix}{key}.")

    def wrong(self, key: str, needed: str) -> CheckpointError:
        """The error to raise for a key whose value cannot be used."""
        return CheckpointError(f"{self.path}: {self.prefix}{key} is {self.values.get(key)!r}, but must be {needed}")

    def _get(self, key: str, default: object) -> object:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is REQUIRED:
            raise CheckpointError(f"{self.path}: {self.prefix}{key} is missing: add it, or fetch the file again")
        return default
