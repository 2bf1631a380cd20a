"""The parts of a model that a draft pass may leave out: attention and MLP of every layer, each for itself."""

from typing import Final, TypeAlias

Sublayer: TypeAlias = tuple[int, str]  # (layer, "attention" or "mlp")
SkipSet: TypeAlias = frozenset[Sublayer]

ATTENTION: Final = "attention"
MLP: Final = "mlp"
NOTHING: Final[SkipSet] = frozenset()


def all_sublayers(num_layers: int) -> tuple[Sublayer, ...]:
    """Every sublayer in the order of a pass."""
    return tuple((layer, kind) for layer in range(num_layers) for kind in (ATTENTION, MLP))


def skippable(num_layers: int) -> tuple[Sublayer, ...]:
    """Those of all layers but the first and the last, which no draft can do without.

    Source: SWIFT, arXiv 2410.06916, section 4.1.
    """
    return tuple((layer, kind) for layer in range(1, num_layers - 1) for kind in (ATTENTION, MLP))


def every_other_layer(num_layers: int) -> SkipSet:
    """SWIFT's start set: the odd layers, as far as they are skippable."""
    return frozenset(sublayer for sublayer in skippable(num_layers) if sublayer[0] % 2)
