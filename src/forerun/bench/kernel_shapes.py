"""Architectures by name, whose shapes the kernels are measured on."""

from collections.abc import Callable
from typing import Final

from forerun.checkpoints.config import read_model_spec
from forerun.checkpoints.locate import locate
from forerun.core.drafter_config import BUILTIN_DRAFT, BUILTIN_TARGET
from forerun.core.errors import ConfigError
from forerun.core.model_spec import ModelSpec, RopeSpec

BUILTIN: Final = (BUILTIN_TARGET, BUILTIN_DRAFT)


def llama_125m() -> ModelSpec:
    """A small Llama with GPT-2's vocabulary, 124 million weights: what a draft of a 7B model often is."""
    return ModelSpec(
        family="llama",
        num_layers=12,
        hidden_size=768,
        num_heads=12,
        num_kv_heads=12,
        head_dim=64,
        intermediate_size=2048,
        vocab_size=50304,
        max_positions=2048,
        norm_eps=1e-5,
        tied_embeddings=True,
    )


def llama_1b() -> ModelSpec:
    """TinyLlama's shape, 1.1 billion weights. Source: arXiv 2401.02385."""
    return ModelSpec(
        family="llama",
        num_layers=22,
        hidden_size=2048,
        num_heads=32,
        num_kv_heads=4,
        head_dim=64,
        intermediate_size=5632,
        vocab_size=32000,
        max_positions=2048,
        norm_eps=1e-5,
    )


def llama_8b() -> ModelSpec:
    """Llama 3.1's smallest shape, 8.0 billion weights. Source: arXiv 2407.21783."""
    return ModelSpec(
        family="llama",
        num_layers=32,
        hidden_size=4096,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        intermediate_size=14336,
        vocab_size=128256,
        max_positions=131072,
        norm_eps=1e-5,
        rope=RopeSpec(theta=500_000.0),
    )


NAMED: Final[dict[str, Callable[[], ModelSpec]]] = {"125m": llama_125m, "1.1b": llama_1b, "8b": llama_8b}
ALL_SHAPES: Final = (*BUILTIN, *NAMED)
USUAL_SHAPES: Final = (*BUILTIN, "125m", "1.1b")


def read_shape(name: str) -> ModelSpec:
    """The architecture of that name.

    Raises:
        ConfigError: there is none.
    """
    if name in BUILTIN:
        return read_model_spec(locate(name))
    if name not in NAMED:
        raise ConfigError(f"there is no shape {name!r}: choose among {', '.join(ALL_SHAPES)}")
    return NAMED[name]()
