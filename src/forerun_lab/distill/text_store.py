"""Written texts on disk. Files are never changed after they are written, so a killed run leaves no partial file.

Legend: T tokens of all texts of a file, K scores kept for each row.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from forerun.core.errors import CheckpointError
from forerun.core.output_file import remove, write_whole
from forerun_lab.distill.writer import Opening, UnfinishedText, WrittenText

TEXTS = "texts_"
UNFINISHED = "unfinished_"
MAIN: Final = "main"  # the training process's name in file names


class TextStore:
    """The texts in a folder, to which several processes may add, each under its own name.

    Texts that were unfinished when a process wrote its newest file are saved next to it, so that a resumed run
    continues them.

    Attributes:
        seconds: the time that files under this name took to write.
        num_files: files under this name, deleted ones included, because their numbers are not used again.
    """

    def __init__(self, folder: Path, name: str = MAIN) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._name = name
        self._files: list[Path] = []
        self.seconds = 0.0
        self.num_texts = 0
        self.num_files = 0
        self.find_new()

    def find_new(self) -> Sequence[Path]:
        """Add the files that any process has written since the last call, and return them."""
        found = [path for path in sorted(self._folder.glob(f"{TEXTS}*.safetensors")) if path not in set(self._files)]
        for path in found:
            seconds, num_texts = _notes(path)
            number, name = _number_and_name(path)
            self.num_texts += num_texts
            if name == self._name:
                self.seconds += seconds
                self.num_files = max(self.num_files, number + 1)
        self._files += found
        return found

    def add(self, texts: Sequence[WrittenText], seconds: float, unfinished: Sequence[UnfinishedText] = ()) -> None:
        """Save texts in a new file, except texts without a row to learn from. `seconds` is how long they took to write.
        If the process is killed during the call, the previous state remains valid."""
        kept = [text for text in texts if text.num_rows]
        notes = {"seconds": str(seconds), "num_texts": str(len(kept))}
        place = self._unfinished(self.num_files)
        before = self._unfinished(self.num_files - 1)
        if unfinished:
            slots = [
                {"opening": asdict(left.opening), "ids": left.ids, "is_users": left.is_users} for left in unfinished
            ]
            write_whole(place, save(_tensors([left.read for left in unfinished]), {"slots": json.dumps(slots)}))
        else:
            remove(place)  # left by a run that was killed before it wrote the texts of this number
        path = self._folder / f"{TEXTS}{self.num_files:05d}_{self._name}.safetensors"
        write_whole(path, save(_tensors(kept), notes))
        remove(before)
        self.find_new()

    def unfinished(self) -> list[UnfinishedText]:
        """The texts that were unfinished when the newest file was written."""
        path = self._unfinished(self.num_files - 1)
        if not path.exists():
            return []
        with _opened(path) as file:
            slots = json.loads((file.metadata() or {})["slots"])
            return [
                UnfinishedText(
                    read=text,
                    opening=msgspec.convert(slot["opening"], Opening),
                    ids=tuple(slot["ids"]),
                    is_users=slot["is_users"],
                )
                for text, slot in zip(_texts(path), slots, strict=True)
            ]

    def read(self, files: Sequence[Path] | None = None) -> list[WrittenText]:
        """The texts of these files, or of all files."""
        return [text for path in (self._files if files is None else files) for text in _texts(path)]

    def known_ids(self) -> Iterator[tuple[int, ...]]:
        """The token ids of every text."""
        for path in self._files:
            with _opened(path) as file:
                for ids in torch.split(file.get_tensor("token_ids"), file.get_tensor("lengths").tolist()):
                    yield tuple(ids.tolist())

    def _unfinished(self, number: int) -> Path:
        return self._folder / f"{UNFINISHED}{number:05d}_{self._name}.safetensors"


def _tensors(texts: Sequence[WrittenText]) -> dict[str, Tensor]:
    """The tensors of all texts, concatenated."""
    nothing = torch.zeros(0, dtype=torch.int32)  # so that no text gives empty tensors
    return {
        "token_ids": torch.cat([nothing, *[text.token_ids for text in texts]]),
        "lengths": torch.tensor([len(text.token_ids) for text in texts], dtype=torch.int32),
        "num_given": torch.tensor([text.num_given for text in texts], dtype=torch.int32),
        "top_ids": torch.cat([nothing, *[text.top_ids for text in texts]]),
        "top_log_probs": torch.cat([nothing.half(), *[text.top_log_probs for text in texts]]),
    }


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, "pt") as file:
            yield file
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, msgspec.ValidationError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}): delete it, the run continues without it") from error


def _number_and_name(path: Path) -> tuple[int, str]:
    """The number of a file, and the name of the process that wrote it."""
    match path.stem.split("_"):
        case [_, number, name] if number.isdecimal():
            return int(number), name
    raise CheckpointError(f"{path} is not a file of this run, which have names like texts_00000_main: move it away")


def _notes(path: Path) -> tuple[float, int]:
    """Seconds that the texts of a file took, and their number."""
    with _opened(path) as file:
        notes = file.metadata() or {}
    return float(notes.get("seconds", 0)), int(notes.get("num_texts", 0))


def _texts(path: Path) -> list[WrittenText]:
    with _opened(path) as file:
        lengths, given = (file.get_tensor(name).tolist() for name in ("lengths", "num_given"))
        tensors = (file.get_tensor(name) for name in ("token_ids", "top_ids", "top_log_probs"))
        parts = [torch.split(tensor, lengths) for tensor in tensors]
    return [
        WrittenText(token_ids=ids, num_given=given, top_ids=top_ids, top_log_probs=top)
        for ids, top_ids, top, given in zip(*parts, given, strict=False)
        if lengths
    ]
