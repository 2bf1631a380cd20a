"""A stored draft head: its spec and its weights.

Legend: W rows of the head's output.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Final

from forerun.checkpoints.gguf.checkpoint import GgufCheckpoint
from forerun.checkpoints.heads.assistant import ORDER, is_assistant
from forerun.checkpoints.heads.config import FC, SPECULATORS_KEY, head_spec_of
from forerun.checkpoints.heads.gguf import ARCHITECTURES, read_gguf_head
from forerun.checkpoints.heads.tensors import (
    HEAD,
    MAP,
    SHIFTS,
    TABLE,
    canonical,
    code_tables,
    match_tensors,
    shapes_of,
)
from forerun.checkpoints.huggingface.config import CONFIG_NAME
from forerun.checkpoints.huggingface.folder import HuggingFaceFolder
from forerun.checkpoints.huggingface.stored_tensors import STORED_BYTES, catalogue
from forerun.checkpoints.identity import identity_of
from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.checkpoints.safetensors.stored_bytes import read_ids
from forerun.checkpoints.source import CheckpointSource
from forerun.core.errors import CheckpointError, VocabularyError
from forerun.core.head_spec import AssistantSpec, DFlashSpec, EagleSpec, HeadSpec
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec

if TYPE_CHECKING:  # a head's spec is read without torch
    import torch
    from torch import Tensor

ALL_BYTES: Final = {**STORED_BYTES, "BOOL": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredHead:
    """A head whose config and tensors' names were checked, but whose weights were not read.

    Args:
        name: the name that the user gave.
        tensors: by the names that all dialects share.
        map: the stored map of its tokens, if it has one.
        is_offset: the map holds differences: the target's id of the head's token j is j + map[j]; else ids.
        is_paired: llama.cpp's order of rotated dimensions.
        order: the tokens of an assistant's centroids, if it has centroids.
        verifier: the target that it was trained for, if the files name it.
    """

    name: str
    spec: HeadSpec
    tensors: Mapping[str, list[StoredTensor]]
    map: StoredTensor | None = None
    is_offset: bool = True
    is_paired: bool = False
    order: StoredTensor | None = None
    verifier: str = ""

    @property
    def num_parameters(self) -> int:
        """Stored weights, without those of the target that it uses."""
        return sum(prod(tensor.shape) for (tensor,) in self.tensors.values())

    def weights(self, *, dtype: "torch.dtype", device: str) -> "dict[str, Tensor]":
        """All weights by their names, as plain values."""
        from forerun.checkpoints.stored_weights import StoredWeights, Traits  # imports torch, as does this
        from forerun.model.rope import head_order

        head_dim = self.spec.body.head_dim
        order = head_order(head_dim, head_dim, is_interleaved=self.is_paired)
        traits = Traits(head_order=order, head_dim=head_dim)
        stored = StoredWeights(self.tensors, traits=traits, dtype=dtype, device=device)
        return {name: stored.tensor(name).view(tensor.shape) for name, (tensor,) in self.tensors.items()}

    def target_ids(self) -> "Tensor | None":
        """int64 [W], the target's tokens that the head's outputs stand for, ascending; None: the same ids."""
        if self.map is None:
            return None
        import torch

        stored = read_ids(self.map)
        ids = stored + torch.arange(len(stored)) if self.is_offset else stored
        if len(ids) != self.spec.body.vocab_size or not bool((ids[1:] > ids[:-1]).all()) or int(ids[0]) < 0:
            raise CheckpointError(
                f"{self.map.path}: {MAP} must give {self.spec.body.vocab_size} tokens of the target in ascending "
                "order: fetch the head again"
            )
        return ids

    def token_order(self) -> "Tensor | None":
        """int64 [V], the tokens of an assistant's centroids, those of the first one first; None if it has none.

        Raises:
            CheckpointError: a token is missing.
        """
        if self.order is None:
            return None
        ids = read_ids(self.order)
        if sorted(ids.tolist()) != list(range(self.spec.body.vocab_size)):
            raise CheckpointError(f"{self.order.path}: {ORDER} must name every token once: fetch the head again")
        return ids

    def require_fit(self, target: ModelSpec, target_name: str) -> None:
        """Refuse a target for which the head was not made.

        Raises:
            VocabularyError, CheckpointError: says what differs.
        """
        spec = self.spec
        rows = self.tensors
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
        if isinstance(spec, AssistantSpec):
            self._require_keys(spec, target, target_name)
            return
        is_same_size = spec.body.hidden_size == target.hidden_size
        if not is_same_size and not {TABLE, HEAD} <= rows.keys():
            raise CheckpointError(
                f"the head {self.name} has rows of {spec.body.hidden_size} and lacks an embedding or an output of its "
                f"own, but those of {target_name} have {target.hidden_size}: choose the head of this model"
            )
        self._require_tokens(target, target_name)

    def _require_tokens(self, target: ModelSpec, target_name: str) -> None:
        """Refuse a target with other tokens than the head's tables, map and outputs are for."""
        spec = self.spec
        rows = self.tensors
        table = rows[TABLE][0].shape[0] if TABLE in rows else target.vocab_size
        if table < target.vocab_size:
            raise VocabularyError(
                f"the head {self.name} has an embedding of {table} tokens, but {target_name} has {target.vocab_size} "
                "tokens: choose the head of this model"
            )
        if isinstance(spec, DFlashSpec) and spec.mask_token_id >= table:
            raise VocabularyError(
                f"the head {self.name} masks with token {spec.mask_token_id}, but the embedding has only {table} "
                f"tokens: choose the head of {target_name}"
            )
        num_outputs = rows[HEAD][0].shape[0] if HEAD in rows else target.vocab_size
        num_coded = max(num_outputs, target.vocab_size)
        fewest = min((rows[name][0].shape[0] for name, _ in code_tables(spec)), default=num_coded)
        if fewest < num_coded:
            raise VocabularyError(
                f"the head {self.name} has codes of {fewest} tokens, but {target_name} has {target.vocab_size} tokens "
                f"and the head {num_outputs} outputs: choose the head of this model"
            )
        by_output = [MAP] if self.map is not None else []
        by_output += [SHIFTS] if SHIFTS in rows else []
        if by_output and spec.body.vocab_size != num_outputs:
            raise VocabularyError(
                f"the head {self.name} has {spec.body.vocab_size} rows of {by_output[0]}, but the output, that of "
                f"{target_name}, has {num_outputs}: choose the head of this model"
            )
        ids = self.target_ids()
        last = spec.body.vocab_size - 1 if ids is None else int(ids[-1])
        if ids is not None and last >= target.vocab_size:
            raise VocabularyError(
                f"the head {self.name} drafts token {last}, but {target_name} has only {target.vocab_size} tokens: "
                "choose the head of this model"
            )

    def _require_keys(self, spec: AssistantSpec, target: ModelSpec, target_name: str) -> None:
        """Refuse a target whose keys and values an assistant cannot read, or whose tokens it lacks."""
        for layer in range(spec.body.num_layers):
            one = spec.body.of_layer(layer)
            owner = spec.layer_of(target, layer)
            found = None if owner < 0 else target.of_layer(owner)
            if found is None or (found.num_kv_heads, found.head_dim) != (one.num_kv_heads, one.head_dim):
                raise CheckpointError(
                    f"layer {layer} of the head {self.name} reads {one.num_kv_heads} heads of size {one.head_dim} of "
                    f"the target's keys, which {target_name} does not have: choose the head of this model"
                )
        if spec.body.vocab_size > target.vocab_size:
            raise VocabularyError(
                f"the head {self.name} drafts {spec.body.vocab_size} tokens, but {target_name} has only "
                f"{target.vocab_size}: choose the head of this model"
            )


def find_head(source: CheckpointSource) -> StoredHead | None:
    """The head in these files; None if they hold a whole model.

    Raises:
        CheckpointError: it is a head that forerun cannot run.
    """
    match source:
        case HuggingFaceFolder():
            return _folder_head(source)
        case GgufCheckpoint() if source.file.metadata.get("general.architecture") in ARCHITECTURES:
            spec, tensors = read_gguf_head(source.file)
            return StoredHead(
                name=source.name,
                spec=spec,
                tensors=match_tensors(spec, tensors, str(source.path)),
                map=tensors.get(MAP),
                is_offset=False,
                is_paired=isinstance(spec, EagleSpec),
            )
        case _:
            return None


def require_model(source: CheckpointSource) -> CheckpointSource:
    """The same model; a draft head is refused.

    Raises:
        CheckpointError: it is a head.
    """
    if find_head(source) is not None:
        raise CheckpointError(
            f"{source.name} is a draft head, not a model: give it to --draft, with its target as the model"
        )
    return source


def draft_identity(source: CheckpointSource) -> str:
    """A short text that identifies a draft model or head."""
    head = find_head(source)
    if head is None:
        return source.identity()
    return identity_of(head.spec.body, {name: tensor for name, (tensor,) in head.tensors.items()})


def _folder_head(source: HuggingFaceFolder) -> StoredHead | None:
    is_named = False
    try:
        config = JsonFile.read(source.folder / CONFIG_NAME)
        is_named = any(map(config.has, (SPECULATORS_KEY, "dflash_config", "draft_vocab_size"))) or is_assistant(config)
        stored = {canonical(name): tensor for name, tensor in catalogue(source.folder, ALL_BYTES).items()}
    except CheckpointError:
        if is_named:
            raise
        return None  # opening it as a whole model then reports the fault
    if not is_named and FC not in stored:
        return None
    spec = head_spec_of(config, shapes_of(stored))
    verifier = config.nested("speculators_config").nested("verifier")
    return StoredHead(
        name=source.name,
        spec=spec,
        tensors=match_tensors(spec, stored, str(source.folder)),
        map=stored.get(MAP),
        order=stored.get(ORDER),
        verifier=verifier.text("name_or_path", ""),
    )
