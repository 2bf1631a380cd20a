"""A kind of draft head as a record, what all heads have in common, and a head that was found in files.

Nothing here needs torch before weights are read, so that commands describe a head without it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias

from forerun.checkpoints.gguf.header import GgufFile
from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.core.errors import CheckpointError
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec
from forerun.drafting.heads.vocabulary_map import MAP, read_target_ids

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from forerun.checkpoints.source import CheckpointSource

Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = Mapping[str, Shape]  # of all tensors of a head, the first layer being "layers.0."


class HeadSpec(Protocol):
    """The sizes and options of a draft head, a small network that reads the target's features.

    Args of an implementation:
        body: sizes of its layers; `vocab_size` counts the rows of its output.
        target_hidden_size: size of the target's features.
        num_taps: how many features a token has.

    Attributes:
        id_tensors: names of its tensors that hold token ids, not weights.
    """

    id_tensors: ClassVar[tuple[str, ...]] = (MAP,)
    body: ModelSpec
    target_hidden_size: int

    @property
    def num_taps(self) -> int: ...

    @property
    def label(self) -> str:
        """The name that users know it by."""
        ...

    def taps(self, num_layers: int) -> tuple[int, ...]:
        """The layers of a target of `num_layers` whose outputs the head reads, in its own order."""
        ...

    def needed_shapes(self) -> Iterator[tuple[str, Shape]]:
        """Every tensor that the head must have, apart from `code_tables`."""
        ...

    def allowed_shapes(self, shapes: Shapes) -> Iterator[tuple[str, Shape]]:
        """Other tensors that it may have, given the stored ones' shapes."""
        ...

    def code_tables(self) -> Iterator[tuple[str, int]]:
        """Tables that it must have, with a code for every token of the target, and the size of a code."""
        yield from ()

    def require_sound(self, where: str) -> None:
        """Refuse sizes that contradict each other.

        Raises:
            CheckpointError: says what contradicts what.
        """
        return

    def require_fit(self, stored: "StoredHead", target: ModelSpec, target_name: str) -> None:
        """Refuse a target for which the head was not made, beyond the checks of `StoredHead.require_fit`.

        Raises:
            VocabularyError, CheckpointError: says what differs.
        """
        ...

    @property
    def reads(self) -> str:
        """What it reads of the target, for the sheet of `forerun inspect`."""
        return features_text(self.num_taps, str(list(self.taps(0))))

    @property
    def own_rows(self) -> list[tuple[str, str]]:
        """Lines of that sheet that only heads of this kind have."""
        return []


def shape_of(parts: Sequence[StoredTensor]) -> Shape:
    """The shape of a weight whose rows are those of these tensors."""
    first = parts[0].shape
    return first if len(parts) == 1 else (sum(part.shape[0] for part in parts), *first[1:])


def features_text(num_taps: int, layers: str) -> str:
    """The features of a token, in words."""
    return f"{num_taps} features a token, after the target's layers {layers}, counted from 0"


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufForm:
    """How llama.cpp stores heads of a kind.

    Args:
        architecture: `general.architecture`.
        read: the spec, by the file, its keys of that architecture, and its tensors by their names in folders.
        names: its names of tensors that only this kind has, with those in folders.
        rotates_pairs: neighbouring dimensions of queries and keys are rotated together.
    """

    architecture: str
    read: Callable[[GgufFile, JsonFile, Mapping[str, StoredTensor]], HeadSpec]
    names: Mapping[str, str] = field(default_factory=dict)
    rotates_pairs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerHead:
    """A head in the files of its target.

    Args:
        tensors: by our names; those of a weight in the order of their rows.
        norm_offset: the number that is added to the weight of a norm.
    """

    spec: HeadSpec
    tensors: Mapping[str, list[StoredTensor]]
    norm_offset: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadKind:
    """A kind of draft head: all that differs from other kinds.

    Args:
        plural: heads of this kind, in messages.
        is_named: whether a config alone shows that it is a head of this kind.
        recognises: whether a config and the shapes of tensors are those of a head of this kind.
        read: the spec that they describe; it may raise CheckpointError.
        network: the module of `drafting.heads` whose `load(StoredHead, HeadLoading)` gives the drafter. It is imported
            when a head is loaded, because it needs torch.
        gguf: how GGUF files hold such heads; None: they do not.
        find_inside: finds a head of this kind in the files of its target; None: it has files of its own.
    """

    plural: str
    is_named: Callable[[JsonFile], bool]
    recognises: Callable[[JsonFile, Shapes], bool]
    read: Callable[[JsonFile, Shapes], HeadSpec]
    network: str
    gguf: GgufForm | None = None
    find_inside: "Callable[[CheckpointSource], InnerHead | None] | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredHead:
    """A head whose config and tensors' names were checked, but whose weights were not read.

    Args:
        name: the name that the user gave.
        tensors: by the names that all dialects share; those of a weight in the order of their rows.
        ids: its tensors of token ids, likewise.
        is_offset: its map holds differences: the target's id of the head's token j is j + map[j]; else ids.
        is_paired: llama.cpp's order of rotated dimensions.
        norm_offset: the number that is added to the weight of a norm.
        verifier: the target that it was trained for, if the files name it.
    """

    name: str
    kind: HeadKind
    spec: HeadSpec
    tensors: Mapping[str, list[StoredTensor]]
    ids: Mapping[str, StoredTensor]
    is_offset: bool = True
    is_paired: bool = False
    norm_offset: float = 0.0
    verifier: str = ""

    @property
    def num_parameters(self) -> int:
        """Stored weights, without those of the target that it uses."""
        return sum(prod(shape_of(parts)) for parts in self.tensors.values())

    def weights(self, *, dtype: "torch.dtype", device: str) -> "dict[str, Tensor]":
        """All weights by their names, as plain values."""
        from forerun.checkpoints.stored_weights import StoredWeights, Traits  # imports torch, as does this
        from forerun.model.rope import head_order

        head_dim = self.spec.body.head_dim
        rotated = self.spec.body.rope.rotated_dims or head_dim
        order = head_order(rotated, head_dim, is_interleaved=self.is_paired)
        traits = Traits(head_order=order, head_dim=head_dim, norm_offset=self.norm_offset)
        stored = StoredWeights(self.tensors, traits=traits, dtype=dtype, device=device)
        return {name: stored.tensor(name).view(shape_of(parts)) for name, parts in self.tensors.items()}

    def target_ids(self) -> "Tensor | None":
        """int64 [W], the target's tokens that the head's W outputs stand for, ascending; None: the same ids."""
        if MAP not in self.ids:
            return None
        return read_target_ids(self.ids[MAP], self.spec.body.vocab_size, is_offset=self.is_offset)

    def require_fit(self, target: ModelSpec, target_name: str) -> None:
        """Refuse a target for which the head was not made.

        Raises:
            VocabularyError, CheckpointError: says what differs.
        """
        spec = self.spec
        if spec.target_hidden_size != target.hidden_size:
            raise CheckpointError(
                f"the head {self.name} reads features of size {spec.target_hidden_size}, but {target_name} has "
                f"{target.hidden_size}: choose the head of this model"
            )
        taps = spec.taps(target.num_layers)
        if len(taps) != spec.num_taps or not all(0 <= layer < target.num_layers for layer in taps):
            raise CheckpointError(
                f"the head {self.name} reads {spec.num_taps} features, after layers {list(taps)}, counted from 0, but "
                f"{target_name} has {target.num_layers} layers: choose the head of this model"
            )
        spec.require_fit(self, target, target_name)
