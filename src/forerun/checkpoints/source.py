"""What a stored model answers, whatever the format of its files."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from forerun.core.config import SamplingParams
from forerun.core.model_spec import ModelSpec, WeightFormat

if TYPE_CHECKING:  # the other methods need neither torch nor tokenizers
    import torch

    from forerun.model.vocabulary_map import VocabularyMap
    from forerun.model.weights import WeightSource
    from forerun.text.tokenizer import Tokenizer

BytesRead = Callable[[int, int], None]  # bytes read so far, bytes to read in all


class CheckpointSource(Protocol):
    """A model that was found. Every method reads the files again, and each may raise a CheckpointError.

    Args of an implementation:
        name: what the user called it.
        path: the folder, or the file, that opens it again.
        folder: where it lies; what belongs to it may be put there.
    """

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> Path: ...

    @property
    def folder(self) -> Path: ...

    def spec(self) -> ModelSpec:
        """The architecture, where forerun computes it exactly."""

    def stored_dtype(self) -> str:
        """The dtype of most of the stored bytes: float32, bfloat16, float16 or float64; for codes bfloat16."""

    def stored_formats(self) -> Mapping[str, int]:
        """Bytes of all tensors by what they are stored in: F32, BF16, or a type of ggml's."""

    def files(self) -> tuple[Path, ...]:
        """The files that hold it, and what lies beside them."""

    def identity(self) -> str:
        """A short text that stands for this very model: what belongs to it is not used with another."""

    def tokenizer(self) -> "Tokenizer":
        """The tokenizer, with its chat template where there is one."""

    def vocabulary_map(self) -> "VocabularyMap | None":
        """Which of its target's tokens the ids of a draft stand for; None: every id stands for itself."""

    def stop_ids(self) -> tuple[int, ...]:
        """Token ids that end a text."""

    def default_sampling(self) -> SamplingParams:
        """The sampling parameters that the model's authors recommend; greedy by default."""

    def weights(
        self,
        *,
        dtype: "torch.dtype",
        weight_format: WeightFormat = "plain",
        device: str = "cpu",
        on_progress: BytesRead | None = None,
    ) -> "WeightSource":
        """Every weight of the model, in `dtype`; those of linear layers in a format, or the one they are stored in."""
