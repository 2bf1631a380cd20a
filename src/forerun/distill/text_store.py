"""Written texts on disk, in files that are never changed: what a killed run leaves is whole.

Legend: N texts, T tokens of all of them, K scores kept of a row.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file

from forerun.distill.writer import WrittenText

PATTERN: Final = "texts_{:05d}.safetensors"


class TextStore:
    """The texts in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._files = sorted(folder.glob(PATTERN.format(0).replace("00000", "*")))

    @property
    def num_files(self) -> int:
        return len(self._files)

    def add(self, texts: Sequence[WrittenText]) -> None:
        """Keep texts in a file of their own."""
        tensors = {
            "token_ids": torch.cat([text.token_ids for text in texts]),
            "lengths": torch.tensor([len(text.token_ids) for text in texts], dtype=torch.int32),
            "num_given": torch.tensor([text.num_given for text in texts], dtype=torch.int32),
            "top_ids": torch.cat([text.top_ids for text in texts]),
            "top_log_probs": torch.cat([text.top_log_probs for text in texts]),
        }
        path = self._folder / PATTERN.format(len(self._files))
        save_file(tensors, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)
        self._files.append(path)

    def read(self, start: int = 0) -> list[WrittenText]:
        """All texts of the files from `start` on."""
        return [text for path in self._files[start:] for text in _texts(path)]


def _texts(path: Path) -> list[WrittenText]:
    tensors = load_file(path)
    lengths = tensors["lengths"].tolist()
    parts = [tensors[name].split(lengths) for name in ("token_ids", "top_ids", "top_log_probs")]
    return [
        WrittenText(token_ids=ids, num_given=given, top_ids=top_ids, top_log_probs=top)
        for ids, top_ids, top, given in zip(*parts, tensors["num_given"].tolist(), strict=True)
    ]
