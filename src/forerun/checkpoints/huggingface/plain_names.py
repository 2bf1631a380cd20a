"""The tensors of a folder under the names of a plain Llama: without a wrapper's prefix, and fused ones in parts."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from forerun.checkpoints.families.family import Family
from forerun.checkpoints.families.known import BY_NAME
from forerun.checkpoints.huggingface.names import HEAD_NAME, TensorPlace, fused_of
from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.core.model_spec import ModelSpec

# The prefix of a text model's tensors inside a model with other modalities, by transformers before 5 and since.
INSIDE: Final = re.compile(r"(language_model\.model\.|model\.language_model\.)(?P<rest>.+)")
INSIDE_HEAD: Final = f"language_model.{HEAD_NAME}"
# The parts of such a model that a text does not need.
OTHERS: Final = re.compile(
    r"((model\.)?(vision_tower|vision_model|visual|multi_modal_projector|audio_tower|embed_vision|embed_audio))\..+"
)
STACKED: Final = re.compile(
    r"(?P<experts>model\.layers\.\d+\.mlp\.experts\.)(?P<weight>gate_up_proj|down_proj)(\.weight)?"
)
STACKED_PARTS: Final = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
UNUSED_OF_BORROWERS: Final = ("k_proj", "v_proj", "k_norm")
MODULE: Final = re.compile(
    r"(?P<layer>model\.layers\.\d+\.|blk\.\d+\.|model\.)(?P<module>.+?)(?P<kind>\.weight|\.bias|)"
)
EXPERT: Final = re.compile(r"(?<=\.experts\.)\d+")


def plain_names(
    stored: Mapping[str, StoredTensor], spec: ModelSpec, plan: Mapping[str, TensorPlace]
) -> dict[str, StoredTensor]:
    """A folder's tensors by the names of `names.tensor_plan`, as far as it has names for them.

    A part of a fused tensor is a tensor in the same file, since rows lie one after another.
    """
    family = BY_NAME[spec.family]
    fused = fused_of(spec)
    named = dict[str, StoredTensor]()
    for name, tensor in stored.items():
        if family.wrappers and name not in plan:
            if OTHERS.fullmatch(name):
                continue
            inside = INSIDE.fullmatch(name)
            name = f"model.{inside['rest']}" if inside else HEAD_NAME if name == INSIDE_HEAD else name
        name = renamed(name, family)
        for one, part in experts_of(name, tensor, spec.num_experts if not family.stacks_experts else 0):
            named |= split(one, part, fused, plan)
    for layer in filter(spec.borrows, range(spec.num_layers)):
        for module in UNUSED_OF_BORROWERS:  # some files hold them
            named.pop(f"model.layers.{layer}.self_attn.{module}.weight", None)
    if family.keys_are_values:
        named |= values_from_keys(named, plan)
    return named


def renamed(name: str, family: Family) -> str:
    """The name of a tensor with Llama's name of its module."""
    if name.startswith(family.prefix):
        name = f"model.{name.removeprefix(family.prefix)}"
    match = MODULE.fullmatch(name)
    if match is None:
        return name
    module = match["module"]
    expert = EXPERT.search(module)
    plain = family.renamed.get(EXPERT.sub("*", module), module)
    if expert is not None:
        plain = plain.replace("*", expert[0])
    return f"{match['layer']}{plain}{match['kind']}"


def experts_of(name: str, tensor: StoredTensor, num_experts: int) -> Iterator[tuple[str, StoredTensor]]:
    """Divide a tensor with a weight of all experts of a layer into those of each; other tensors stay as they are."""
    found = STACKED.fullmatch(name)
    if found is None or not num_experts or tensor.shape[:1] != (num_experts,):
        yield name, tensor
        return
    num_bytes = tensor.num_bytes // num_experts
    for expert in range(num_experts):
        names = [f"{found['experts']}{expert}.{weight}.weight" for weight in STACKED_PARTS[found["weight"]]]
        own = replace(tensor, shape=tensor.shape[1:], offset=tensor.offset + expert * num_bytes, num_bytes=num_bytes)
        for part in rows_of(own, names, [own.shape[0] // len(names)] * len(names)):
            yield part.name, part


def values_from_keys(
    named: Mapping[str, StoredTensor], plan: Mapping[str, TensorPlace], values: str = "v_proj", keys: str = "k_proj"
) -> dict[str, StoredTensor]:
    """The keys' projections under the names of missing ones of values: Gemma 4 has one for both in some layers."""
    missing = {name: name.replace(values, keys) for name in plan if values in name and name not in named}
    return {name: replace(named[keys], name=name) for name, keys in missing.items() if keys in named}


def split(
    name: str,
    tensor: StoredTensor,
    fused: Mapping[str, Sequence[str]],
    plan: Mapping[str, TensorPlace],
) -> dict[str, StoredTensor]:
    """The parts of a tensor by their names; the tensor itself if it is not fused, or not of the parts' size."""
    match = MODULE.fullmatch(name)
    if match is None:
        return {name: replace(tensor, name=name)}
    module = match["module"]
    layer = match["layer"]
    kind = match["kind"]
    names = [f"{layer}{part}{kind}" for part in fused.get(module, ())]
    sizes = [plan[part].shape[0] if part in plan else 0 for part in names]
    if names and tensor.shape and tensor.shape[0] == sum(sizes):
        return dict(zip(names, rows_of(tensor, names, sizes), strict=True))
    return {name: replace(tensor, name=name)}


def rows_of(tensor: StoredTensor, names: Sequence[str], sizes: Sequence[int]) -> Iterator[StoredTensor]:
    """Consecutive rows of a tensor as separate tensors."""
    row_bytes = tensor.num_bytes // tensor.shape[0]
    first = 0
    for name, size in zip(names, sizes, strict=True):
        yield replace(
            tensor,
            name=name,
            shape=(size, *tensor.shape[1:]),
            offset=tensor.offset + first * row_bytes,
            num_bytes=size * row_bytes,
        )
        first += size
