"""Written texts on disk, in files that are never changed: what a killed run leaves is whole.

Legend: N texts, T tokens of all of them, K scores kept of a row.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from forerun.distill.writer import WrittenText

PATTERN: Final = "texts_{:05d}.safetensors"


class TextStore:
    """The texts in a folder.

    Attributes:
        seconds: that they took to write.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._files = sorted(folder.glob(PATTERN.format(0).replace("00000", "*")))
        notes = [_notes(path) for path in self._files]
        self.seconds = sum(seconds for seconds, _ in notes)
        self.num_texts = sum(num_texts for _, num_texts in notes)

    @property
    def num_files(self) -> int:
        return len(self._files)

    def add(self, texts: Sequence[WrittenText], seconds: float) -> None:
        """Keep texts, which took so long to write, in a file of their own."""
        tensors = {
            "token_ids": torch.cat([text.token_ids for text in texts]),
            "lengths": torch.tensor([len(text.token_ids) for text in texts], dtype=torch.int32),
            "num_given": torch.tensor([text.num_given for text in texts], dtype=torch.int32),
            "top_ids": torch.cat([text.top_ids for text in texts]),
            "top_log_probs": torch.cat([text.top_log_probs for text in texts]),
        }
        path = self._folder / PATTERN.format(len(self._files))
        save_file(tensors, path.with_suffix(".part"), {"seconds": str(seconds), "num_texts": str(len(texts))})
        path.with_suffix(".part").replace(path)
        self._files.append(path)
        self.seconds += seconds
        self.num_texts += len(texts)

    def read(self, start: int = 0) -> list[WrittenText]:
        """All texts of the files from `start` on."""
        return [text for path in self._files[start:] for text in _texts(path)]


def _notes(path: Path) -> tuple[float, int]:
    """Seconds that the texts of a file took, and how many they are."""
    with safe_open(path, "pt") as file:
        notes = file.metadata() or {}
    return float(notes.get("seconds", 0)), int(notes.get("num_texts", 0))


def _texts(path: Path) -> list[WrittenText]:
    tensors = load_file(path)
    lengths = tensors["lengths"].tolist()
    parts = [torch.split(tensors[name], lengths) for name in ("token_ids", "top_ids", "top_log_probs")]
    return [
        WrittenText(token_ids=ids, num_given=given, top_ids=top_ids, top_log_probs=top)
        for ids, top_ids, top, given in zip(*parts, tensors["num_given"].tolist(), strict=True)
    ]
