"""Finds a draft head in files and checks its tensors."""

from collections.abc import Mapping
from math import prod
from typing import Final

from forerun.checkpoints.gguf.checkpoint import GgufCheckpoint
from forerun.checkpoints.gguf.config import DIVISORS_NAMES
from forerun.checkpoints.huggingface.config import CONFIG_NAME
from forerun.checkpoints.huggingface.folder import HuggingFaceFolder
from forerun.checkpoints.huggingface.names import listed
from forerun.checkpoints.huggingface.stored_tensors import STORED_BYTES, catalogue
from forerun.checkpoints.identity import identity_of
from forerun.checkpoints.safetensors.header import ITEM_BYTES, WHOLE_BYTES, StoredTensor
from forerun.checkpoints.source import CheckpointSource
from forerun.core.errors import CheckpointError
from forerun.core.json_file import JsonFile, short
from forerun.drafting.heads.config import FC, SPECULATORS_KEY, has_fc
from forerun.drafting.heads.gguf import folder_name
from forerun.drafting.heads.kind import HeadKind, HeadSpec, Shapes, StoredHead, shape_of
from forerun.drafting.heads.known import ALL
from forerun.model.gguf_block_types import BLOCKS

ALL_BYTES: Final = {**STORED_BYTES, "BOOL": 1}
WEIGHTS: Final = (*ITEM_BYTES, *BLOCKS)  # dtypes of weights
# t2d marks the target's tokens in the map; a confidence head decides how far to draft, which our cost model does.
UNUSED: Final = ("t2d", "confidence_head.proj.weight", "confidence_head.proj.bias")
PLURALS: Final = ", ".join(kind.plural for kind in ALL)


def find_head(source: CheckpointSource) -> StoredHead | None:
    """The head in these files; None if they hold a whole model.

    Raises:
        CheckpointError: it is a head that forerun cannot run.
    """
    match source:
        case HuggingFaceFolder():
            return _folder_head(source)
        case GgufCheckpoint():
            return _gguf_head(source)
        case _:
            return None


def find_inner_head(source: CheckpointSource) -> StoredHead | None:
    """The draft head in a whole model's own files; None without one whose tensors are as forerun knows them."""
    for kind in ALL:
        found = None if kind.find_inside is None else kind.find_inside(source)
        if found is None:
            continue
        shapes = {name: shape_of(parts) for name, parts in found.tensors.items()}
        needed = dict(found.spec.needed_shapes())
        is_whole = needed.items() <= shapes.items() <= (needed | dict(found.spec.allowed_shapes(shapes))).items()
        if is_whole and all(part.dtype in WEIGHTS for parts in found.tensors.values() for part in parts):
            return StoredHead(
                name=source.name,
                kind=kind,
                spec=found.spec,
                tensors=found.tensors,
                ids={},
                norm_offset=found.norm_offset,
                verifier=source.name,
            )
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


def canonical(name: str) -> str:
    """The name that all dialects share: EAGLE calls the first layer "midlayer", some exports begin with "model."."""
    name = name.removeprefix("model.")
    return f"layers.0.{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else name


def read_head(config: JsonFile, shapes: Shapes) -> tuple[HeadKind, HeadSpec]:
    """The head that a config and its tensors describe.

    Options that the tensors show are read from the tensors, because not every trainer writes them into the config.

    Raises:
        CheckpointError: a key is missing or out of range, or the head is of a kind that forerun does not run.
    """
    for kind in ALL:
        if kind.recognises(config, shapes):
            return kind, kind.read(config, shapes)
    if has_fc(shapes):
        raise config.wrong(SPECULATORS_KEY, f"a name of another kind: forerun runs only {PLURALS}")
    raise CheckpointError(
        f"{config.path.parent} holds no matrix {FC}, which joins the target's features: forerun runs only {PLURALS}"
    )


def match_tensors(spec: HeadSpec, stored: Mapping[str, StoredTensor], where: str) -> dict[str, list[StoredTensor]]:
    """The tensors of weights of a head by their names, after checking that it has all of them and no others.

    Trainers' own loaders ignore unknown names silently, and such a head would draft nonsense.

    Raises:
        CheckpointError: names the tensor.
    """
    spec.require_sound(where)
    needed = dict(spec.needed_shapes())
    allowed = dict(spec.allowed_shapes(shapes_of(stored)))
    for name, tensor in stored.items():
        shape = needed.get(name, allowed.get(name))
        if name in UNUSED:
            continue
        if shape is None:
            raise CheckpointError(
                f"{where} holds tensor {short(tensor.name)}, whose effect forerun does not know in this kind of head: "
                f"choose one of {PLURALS}"
            )
        if tensor.shape != shape:
            raise CheckpointError(
                f"{where}: tensor {short(tensor.name)} has shape {list(tensor.shape)}, but must have {list(shape)} by "
                "the head's config: fetch both again"
            )
        dtypes = tuple(WHOLE_BYTES) if name in spec.id_tensors else WEIGHTS
        if tensor.dtype not in dtypes or not prod(shape):
            raise CheckpointError(
                f"{where}: tensor {short(tensor.name)} holds {prod(shape)} values of type {tensor.dtype}, but must "
                f"hold some of {', '.join(dtypes)}: fetch the head again"
            )
    missing = [name for name in (*needed, *dict(spec.code_tables())) if name not in stored]
    if missing:
        raise CheckpointError(f"{where} lacks tensor {listed(missing)}: fetch the head again")
    return {name: [tensor] for name, tensor in stored.items() if name not in (*spec.id_tensors, *UNUSED)}


def shapes_of(stored: Mapping[str, StoredTensor]) -> Shapes:
    """The shape of every tensor."""
    return {name: tensor.shape for name, tensor in stored.items()}


def _folder_head(source: HuggingFaceFolder) -> StoredHead | None:
    is_named = False
    try:
        config = JsonFile.read(source.folder / CONFIG_NAME)
        is_named = config.has(SPECULATORS_KEY) or any(kind.is_named(config) for kind in ALL)
        stored = {canonical(name): tensor for name, tensor in catalogue(source.folder, ALL_BYTES).items()}
    except CheckpointError:
        if is_named:
            raise
        return None  # opening it as a whole model then reports the fault
    if not is_named and FC not in stored:
        return None
    kind, spec = read_head(config, shapes_of(stored))
    verifier = config.nested("speculators_config").nested("verifier")
    return StoredHead(
        name=source.name,
        kind=kind,
        spec=spec,
        tensors=match_tensors(spec, stored, str(source.folder)),
        ids={name: stored[name] for name in spec.id_tensors if name in stored},
        verifier=verifier.text("name_or_path", ""),
    )


def _gguf_head(source: GgufCheckpoint) -> StoredHead | None:
    file = source.file
    architecture = file.metadata.get("general.architecture")
    for kind in ALL:
        form = kind.gguf
        if form is None or form.architecture != architecture:
            continue
        stored = {
            folder_name(name, form.names): tensor for name, tensor in file.tensors.items() if name not in DIVISORS_NAMES
        }
        spec = form.read(file, file.section(f"{form.architecture}."), stored)
        return StoredHead(
            name=source.name,
            kind=kind,
            spec=spec,
            tensors=match_tensors(spec, stored, str(source.path)),
            ids={name: stored[name] for name in spec.id_tensors if name in stored},
            is_offset=False,
            is_paired=form.rotates_pairs,
        )
    return None
