"""Find the layers of a folder that are packed in 4 bits, and every tensor that the folder must hold."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from forerun.checkpoints.huggingface.config import CONFIG_NAME
from forerun.checkpoints.huggingface.names import EMBEDDING_NAME, HEAD_NAME, LAYER_TABLE_NAME, TensorPlace
from forerun.checkpoints.huggingface.packed_tensors import packed_places
from forerun.checkpoints.huggingface.packing import PATTERN, Packing
from forerun.core.errors import CheckpointError

WEIGHT: Final = ".weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLayer:
    """A linear layer: its name in the folder, the shape of its weight, and its tensors by suffix.

    A GPTQ layer may hold two redundant tensors, which are checked on reading: the group indices `g_idx`, and a `bias`
    of zeros if the model has none.
    """

    name: str
    shape: tuple[int, int]
    tensors: Mapping[str, TensorPlace]


def packed_layers(
    folder: Path, plan: Mapping[str, TensorPlace], present: Mapping[str, object], packing: Packing
) -> dict[str, PackedLayer]:
    """The packed layers, by the name that the plain weight would have.

    A layer is plain if the folder holds a plain weight for it; the config must agree. Routers of experts are always
    plain.

    Raises:
        CheckpointError: config and tensors disagree, or a layer's sizes cannot be packed this way.
    """
    layers = {}
    for name, place in plan.items():
        is_plain = name in (EMBEDDING_NAME, LAYER_TABLE_NAME, HEAD_NAME) or place.name.endswith(".router.weight")
        if len(place.shape) != 2 or is_plain:
            continue
        module = name.removesuffix(WEIGHT)
        if name in present:
            _check_excepted(folder, module, packing)
        else:
            layers[name] = _layer(folder, module, plan, present, packing)
    if not layers:
        raise CheckpointError(
            f"{folder / CONFIG_NAME} has a quantization_config, but every layer in the folder is plain: check that "
            "config.json and weights belong together"
        )
    return layers


def stored_plan(plan: Mapping[str, TensorPlace], layers: Mapping[str, PackedLayer]) -> dict[str, TensorPlace]:
    """Every tensor that the folder must hold, by its name in the folder."""
    needed: dict[str, TensorPlace] = {}
    for name, place in plan.items():
        layer = layers.get(name)
        needed |= {name: place} if layer is None else {f"{layer.name}.{key}": own for key, own in layer.tensors.items()}
    return needed


def _layer(
    folder: Path, module: str, plan: Mapping[str, TensorPlace], present: Mapping[str, object], packing: Packing
) -> PackedLayer:
    if module in packing.exceptions:
        raise CheckpointError(
            f"{folder / CONFIG_NAME} says that {module} is plain, but the folder holds no tensor '{module}{WEIGHT}': "
            "check that config.json and weights belong together"
        )
    place = plan[f"{module}{WEIGHT}"]
    num_out, num_in = place.shape
    try:
        tensors = packed_places(packing, place)
    except CheckpointError as error:
        raise CheckpointError(
            f"{folder / CONFIG_NAME}: {module} cannot be packed as quantization_config says: {error}: check that "
            "config.json and weights belong together"
        ) from None
    if packing.method == "gptq":
        if f"{module}.g_idx" in present:
            tensors["g_idx"] = replace(tensors["qweight"], shape=(num_in,))
        if f"{module}.bias" in present and f"{module}.bias" not in plan:
            tensors["bias"] = replace(place, shape=(num_out,))
    return PackedLayer(name=module, shape=(num_out, num_in), tensors=tensors)


def _check_excepted(folder: Path, module: str, packing: Packing) -> None:
    """Refuse a plain layer that the config does not except. A name in its list matches all names that contain it; a
    pattern is assumed to match."""
    if not any(name.startswith(PATTERN) or name in module for name in packing.exceptions):
        raise CheckpointError(
            f"{folder} holds a plain '{module}{WEIGHT}', but the quantization_config in {folder / CONFIG_NAME} says "
            "that the layer is packed: check that config.json and weights belong together"
        )
