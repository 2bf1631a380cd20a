"""Read the rotary embeddings from a config.json, in any of its three notations."""

from math import log, sqrt
from typing import Annotated, Final

from msgspec import Meta

from forerun.checkpoints.families.family import FULL, SLIDING, Family
from forerun.core.json_file import MAX_NUMBER, MIN_NUMBER, JsonFile
from forerun.core.model_spec import RopeSpec

DEFAULT_THETA: Final = 10_000.0
MIN_THETA: Final = 2.0
THETA = "rope_theta"
LOCAL_THETA = "rope_local_base_freq"
SUPPORTED: Final = "one of default, linear, llama3, yarn, longrope, proportional"


def read_ropes(config: JsonFile, family: Family, head_dim: int, full_head_dim: int) -> tuple[RopeSpec, RopeSpec | None]:
    """Rotary parameters of a checkpoint's layers, and those of its sliding layers if the config has others for them.

    Transformers 5 writes `rope_parameters`, which includes the base; earlier versions wrote the base as top-level
    `rope_theta` and the rest as `rope_scaling`, whose kind was called `type` before 4.43 and `rope_type` after. If a
    config has several, a non-empty `rope_scaling` takes precedence over `rope_parameters`, and a nested base over the
    top-level one, as in transformers. `rope_parameters` may hold an object for each kind of layers.

    Raises:
        CheckpointError: the kind is not supported, or a parameter it needs is missing or out of range.
    """
    parameters = config.nested("rope_parameters")
    by_kind = {key for key, value in parameters.values.items() if isinstance(value, dict)}
    if not by_kind:
        rope = config.nested("rope_scaling") if config.values.get("rope_scaling") else parameters
        return _read_rope(config, rope, family, head_dim), None
    for key in by_kind - {FULL, SLIDING}:
        raise parameters.wrong(key, f"absent: only {FULL} and {SLIDING} may have their own rotation")
    full = config.nested("rope_scaling") if config.values.get("rope_scaling") else parameters.nested(FULL)
    sliding = None
    if SLIDING in by_kind:
        theta_key = LOCAL_THETA if config.has(LOCAL_THETA) else THETA
        sliding = _read_rope(config, parameters.nested(SLIDING), family, head_dim, theta_key)
    return _read_rope(config, full, family, full_head_dim), sliding


def _read_rope(config: JsonFile, rope: JsonFile, family: Family, head_dim: int, theta_key: str = THETA) -> RopeSpec:
    theta = rope.number(THETA, config.number(theta_key, DEFAULT_THETA, least=MIN_THETA), least=MIN_THETA)
    kind_key = "rope_type" if rope.has("rope_type") else "type"
    kind = rope.text(kind_key, "default")
    rotated = _read_rotated(config, rope, family, head_dim)
    if rope.has("long_factor"):  # Phi-3's older names of this kind are su and yarn
        kind = "longrope"
    match kind:
        case "default":
            return RopeSpec(theta=theta, rotated_dims=rotated)
        case "linear":
            return RopeSpec(theta=theta, kind="linear", factor=rope.number("factor"), rotated_dims=rotated)
        case "proportional":
            factor = rope.number("factor", 1.0)
            return RopeSpec(theta=theta, kind="proportional", factor=factor, rotated_dims=rotated)
        case "llama3":
            return _read_llama3(rope, theta, _original_positions(config, rope))
        case "yarn":
            return _read_yarn(rope, theta, _original_positions(config, rope), config.integer("max_position_embeddings"))
        case "longrope":
            return _read_longrope(config, rope, theta, rotated, head_dim)
        case _:
            raise rope.wrong(kind_key, f"{SUPPORTED}: choose a checkpoint without this position scaling")


def _read_rotated(config: JsonFile, rope: JsonFile, family: Family, head_dim: int) -> int | None:
    """How many dimensions of a head are rotated; None: all of them."""
    usual = 1.0 if family.partial_rotary is None else family.partial_rotary
    share = rope.number("partial_rotary_factor", config.number("partial_rotary_factor", usual))
    part = rope if rope.has("partial_rotary_factor") else config
    if family.partial_rotary is None and share != 1.0:
        raise part.wrong("partial_rotary_factor", "1 (every dimension of a head is rotated) or absent")
    is_proportional = rope.values.get("rope_type") == "proportional"
    rotated = 2 * int(share * head_dim // 2) if is_proportional else int(head_dim * share)
    if share > 1.0 or rotated % 2 or not rotated:
        raise part.wrong("partial_rotary_factor", f"such that an even number of {head_dim} dimensions is rotated")
    return None if rotated == head_dim else rotated


def _read_longrope(config: JsonFile, rope: JsonFile, theta: float, rotated: int | None, head_dim: int) -> RopeSpec:
    """Source of the attention factor: arXiv 2402.13753; transformers, modeling_rope_utils.py."""
    original = _original_positions(config, rope)
    longest = config.integer("max_position_embeddings")
    factor = longest / original
    num_pairs = (rotated or head_dim) // 2
    usual = sqrt(1 + log(factor) / log(original)) if factor > 1.0 else 1.0
    return RopeSpec(
        theta=theta,
        kind="longrope",
        original_max_positions=original,
        divisors=_read_divisors(rope, "short_factor", num_pairs),
        long_divisors=_read_divisors(rope, "long_factor", num_pairs),
        attention_factor=rope.number("attention_factor", usual),
        rotated_dims=rotated,
    )


def _read_divisors(rope: JsonFile, key: str, num_pairs: int) -> tuple[float, ...]:
    divisor = Annotated[float, Meta(ge=MIN_NUMBER, le=MAX_NUMBER)]
    kind = Annotated[tuple[divisor, ...], Meta(min_length=num_pairs, max_length=num_pairs)]
    divisors: tuple[float, ...] = rope.typed(key, kind, f"a list of {num_pairs} positive numbers", ())
    return divisors


def _original_positions(config: JsonFile, rope: JsonFile) -> int:
    """The context length before scaling. A top-level key takes precedence; the default is the current length."""
    key = "original_max_position_embeddings"
    return config.integer(key, rope.integer(key, config.integer("max_position_embeddings")))


def _read_llama3(rope: JsonFile, theta: float, original_max_positions: int) -> RopeSpec:
    low = rope.number("low_freq_factor")
    high = rope.number("high_freq_factor")
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
        query_growth=rope.number("llama_4_scaling_beta", 0.0, least=0.0),
    )


def _sharpening(rope: JsonFile, factor: float) -> float:
    """The attention factor from the other parameters. Source: arXiv 2309.00071, equation 22; DeepSeek's `mscale`."""
    growth = 0.1 * log(max(factor, 1.0))
    if rope.has("mscale") and rope.has("mscale_all_dim"):
        return (rope.number("mscale") * growth + 1.0) / (rope.number("mscale_all_dim") * growth + 1.0)
    return growth + 1.0
