"""Read the rotary embedding from a config.json, in any of its three notations."""

from math import log
from typing import Final

from forerun.core.json_file import JsonFile
from forerun.core.model_spec import RopeSpec

DEFAULT_THETA: Final = 10_000.0
MIN_THETA: Final = 2.0
SUPPORTED: Final = "one of default, linear, llama3, yarn"


def read_rope(config: JsonFile) -> RopeSpec:
    """Rotary parameters of a checkpoint.

    Transformers 5 writes `rope_parameters`, which includes the base; earlier versions wrote the base as top-level
    `rope_theta` and the rest as `rope_scaling`, whose kind was called `type` before 4.43 and `rope_type` after. If a
    config has several, a non-empty `rope_scaling` takes precedence over `rope_parameters`, and a nested base over the
    top-level one, as in transformers.

    Raises:
        CheckpointError: the kind is not supported, or a parameter it needs is missing or out of range.
    """
    rope = config.nested("rope_scaling" if config.values.get("rope_scaling") else "rope_parameters")
    _refuse_partial(config)
    _refuse_partial(rope)
    for key, value in rope.values.items():
        if isinstance(value, dict):
            raise rope.wrong(key, "absent: separate rotations for different kinds of layers are not supported")
    theta = rope.number("rope_theta", config.number("rope_theta", DEFAULT_THETA, least=MIN_THETA), least=MIN_THETA)
    kind_key = "rope_type" if rope.has("rope_type") else "type"
    match rope.text(kind_key, "default"):
        case "default":
            return RopeSpec(theta=theta)
        case "linear":
            return RopeSpec(theta=theta, kind="linear", factor=rope.number("factor"))
        case "llama3":
            return _read_llama3(rope, theta, _original_positions(config, rope))
        case "yarn":
            return _read_yarn(rope, theta, _original_positions(config, rope), config.integer("max_position_embeddings"))
        case _:
            raise rope.wrong(kind_key, f"{SUPPORTED}: choose a checkpoint without this position scaling")


def _original_positions(config: JsonFile, rope: JsonFile) -> int:
    """The context length before scaling. A top-level key takes precedence; the default is the current length."""
    key = "original_max_position_embeddings"
    return config.integer(key, rope.integer(key, config.integer("max_position_embeddings")))


def _read_llama3(rope: JsonFile, theta: float, original_max_positions: int) -> RopeSpec:
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if high <= low:
        raise rope.wrong("high_freq_factor", f"greater than low_freq_factor ({low})")
    return RopeSpec(
        theta=theta,
        kind="llama3",
        factor=rope.number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_positions=original_max_positions,
    )


def _read_yarn(rope: JsonFile, theta: float, original_max_positions: int, max_positions: int) -> RopeSpec:
    factor = rope.number("factor", max_positions / original_max_positions)
    return RopeSpec(
        theta=theta,
        kind="yarn",
        factor=factor,
        original_max_positions=original_max_positions,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
        attention_factor=rope.number("attention_factor", _sharpening(rope, factor)),
    )


def _sharpening(rope: JsonFile, factor: float) -> float:
    """The attention factor from the other parameters. Source: arXiv 2309.00071, equation 22; DeepSeek's `mscale`."""
    growth = 0.1 * log(max(factor, 1.0))
    if rope.has("mscale") and rope.has("mscale_all_dim"):
        return (rope.number("mscale") * growth + 1.0) / (rope.number("mscale_all_dim") * growth + 1.0)
    return growth + 1.0


def _refuse_partial(part: JsonFile) -> None:
    if part.number("partial_rotary_factor", 1.0) != 1.0:
        raise part.wrong("partial_rotary_factor", "1 (every dimension of a head is rotated) or absent")
