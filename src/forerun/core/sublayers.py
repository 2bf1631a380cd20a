"""The sublayers of a model that a draft pass may skip: attention and MLP of every layer, separately.

"attention" of a layer with a mixer (`core.mixers`) is this mixer. A layer may lack one of the two sublayers; to skip
that changes nothing. A mixer can be skipped as attention can: the rows of a draft leave nothing in its
slots and read nothing from them, and its state sums up committed rows, which no pass skips.
"""

from functools import lru_cache
from typing import Final, TypeAlias

from forerun.core.errors import ConfigError, require
from forerun.core.model_spec import ModelSpec

Sublayer: TypeAlias = tuple[int, str]  # (layer, "attention" or "mlp")
SkipSet: TypeAlias = frozenset[Sublayer]

ATTENTION: Final = "attention"
MLP: Final = "mlp"
NOTHING: Final[SkipSet] = frozenset()


def all_sublayers(num_layers: int) -> tuple[Sublayer, ...]:
    """Every sublayer in the order of a pass."""
    return tuple((layer, kind) for layer in range(num_layers) for kind in (ATTENTION, MLP))


def skippable(num_layers: int) -> tuple[Sublayer, ...]:
    """The sublayers of all layers except the first and the last, which every draft needs.

    Source: SWIFT, arXiv 2410.06916, section 4.1.
    """
    return tuple((layer, kind) for layer in range(1, num_layers - 1) for kind in (ATTENTION, MLP))


def every_other_layer(num_layers: int) -> SkipSet:
    """SWIFT's initial set: the skippable odd layers."""
    return frozenset(sublayer for sublayer in skippable(num_layers) if sublayer[0] % 2)


def require_skippable(skipped: SkipSet, num_layers: int) -> None:
    """Raise ConfigError for sublayers that every draft needs, or that a model of this many layers lacks."""
    foreign = skipped - set(skippable(num_layers))
    require(
        not foreign,
        f"{write_skips(frozenset(foreign))} cannot be left out of a model of {num_layers} layers: only attention and "
        f"mlp of the layers 1 to {num_layers - 2} can, since the first and the last one are always kept",
    )


@lru_cache(16)
def layers_of(skipped: SkipSet, kind: str) -> tuple[int, ...]:
    """The layers whose sublayer of this kind is in the set, ascending."""
    return tuple(sorted(layer for layer, other in skipped if other == kind))


def write_skips(skipped: SkipSet) -> str:
    """The set as text, such as attention:3,5;mlp:4."""
    kinds = ((kind, layers_of(skipped, kind)) for kind in (ATTENTION, MLP))
    return ";".join(f"{kind}:{','.join(map(str, layers))}" for kind, layers in kinds if layers)


def read_skips(text: str) -> SkipSet:
    """Parse the text of `write_skips`.

    Raises:
        ConfigError: the text is not a set.
    """
    try:
        parts = [part.partition(":") for part in text.split(";") if part]
        require(all(kind in (ATTENTION, MLP) for kind, _, _ in parts), f"unknown kind in {text!r}")
        read = frozenset((int(layer), kind) for kind, _, layers in parts for layer in layers.split(","))
        require(all(layer >= 0 for layer, _ in read), "layers count from 0")
        return read
    except (ValueError, ConfigError) as error:
        raise ConfigError(f"skipped sublayers {text!r} must look like attention:3,5;mlp:4 ({error})") from error


def kept_share(spec: ModelSpec, skipped: SkipSet) -> float:
    """The share of a model's weights that a pass without these sublayers reads; its head is always read."""
    if not skipped:
        return 1.0

    def size(sublayer: Sublayer) -> int:
        layer, kind = sublayer
        if kind == ATTENTION:
            return spec.num_in_mixer(layer)
        if layer in spec.mixer_only:
            return 0
        one = spec.of_layer(layer)
        num_features = one.intermediate_size * (one.num_chosen_experts or 1) + one.shared_size
        return (spec.num_first_products + 1) * spec.hidden_size * num_features

    whole = sum(map(size, all_sublayers(spec.num_layers))) + spec.vocab_size * spec.hidden_size
    return 1.0 - sum(map(size, skipped)) / whole
