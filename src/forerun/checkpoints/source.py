"""The interface of stored models, whatever the format of their files."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Required, TypedDict, Unpack

from forerun.core.config import SamplingParams
from forerun.core.model_spec import ModelSpec, WeightFormat

if TYPE_CHECKING:  # the other methods need neither torch nor tokenizers
    import torch

    from forerun.model.vocabulary_map import VocabularyMap
    from forerun.model.weights import WeightSource
    from forerun.text.tokenizer import Tokenizer

BytesRead = Callable[[int, int], None]  # bytes read so far, bytes to read in all


class Reading(TypedDict, total=False):
    """How weights are read.

    Args:
        dtype: of plain tensors, and the compute dtype of kernels without products of a file's codes.
        weight_format: of linear layers: "plain", the default, keeps the stored format; others are rounded from the
            stored values.
        device: that of the weights; "cpu" by default.
        on_progress: called with bytes read so far and bytes to read in all, after each chunk.
    """

    dtype: Required["torch.dtype"]
    weight_format: WeightFormat
    device: str
    on_progress: BytesRead | None


class CheckpointSource(Protocol):
    """A stored model. Every method reads the files again, and may raise a CheckpointError.

    Args of an implementation:
        name: the name that the user gave.
        path: the folder, or the file, that opens it again.
        folder: the folder of its files; related files may be written there.
    """

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> Path: ...

    @property
    def folder(self) -> Path: ...

    def spec(self) -> ModelSpec:
        """The architecture; unsupported ones are refused."""

    def stored_dtype(self) -> str:
        """The dtype with the most stored bytes: float32, bfloat16, float16 or float64; for codes bfloat16."""

    def stored_formats(self) -> Mapping[str, int]:
        """Bytes of all tensors by stored format: F32, BF16, or a ggml type."""

    def files(self) -> tuple[Path, ...]:
        """The files of the model, and other files in their folder."""

    def identity(self) -> str:
        """A short text that identifies the model, so that its files are not used with another model."""

    def tokenizer(self) -> "Tokenizer":
        """The tokenizer, with its chat template if there is one."""

    def vocabulary_map(self) -> "VocabularyMap | None":
        """The map from a draft's ids to its target's; None if they are the same."""

    def stop_ids(self) -> tuple[int, ...]:
        """Token ids that end a text."""

    def default_sampling(self) -> SamplingParams:
        """The sampling parameters that the model's authors recommend; greedy by default."""

    def weights(self, **reading: Unpack[Reading]) -> "WeightSource":
        """Every weight of the model."""
