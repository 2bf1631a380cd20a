"""The rotary embedding of a config.json, in each of the three ways it has been written."""

from typing import Final

from forerun.checkpoints.json_file import JsonFile
from forerun.core.model_spec import RopeSpec

DEFAULT_THETA: Final = 10_000.0
SUPPORTED: Final = "one of default, linear, llama3"


def read_rope(config: JsonFile) -> RopeSpec:
    """Rotary parameters of a checkpoint.

    Transformers 5 writes `rope_parameters` with the base inside; before, the base was the top-level `rope_theta` and
    the rest `rope_scaling`, whose kind was called `type` before 4.43 and `rope_type` after. Where both forms are
    there, the nested one wins, as in transformers.

    Raises:
        CheckpointError: the kind is not supported, or a parameter it needs is missing or out of range.
    """
    rope = config.nested("rope_scaling" if config.has("rope_scaling") else "rope_parameters")
    _refuse_partial(config)
    _refuse_partial(rope)
    for key, value in rope.values.items():
        if isinstance(value, dict):
            raise rope.wrong(key, "absent: a rotation of its own for each kind of layer is not supported")
    theta = rope.number("rope_theta", config.number("rope_theta", DEFAULT_THETA, least=1.0), least=1.0)
    kind_key = "rope_type" if rope.has("rope_type") else "type"
    match rope.text(kind_key, "default"):
        case "default":
            return RopeSpec(theta=theta)
        case "linear":
            return RopeSpec(theta=theta, kind="linear", factor=rope.number("factor"))
        case "llama3":
            return _read_llama3(rope, theta)
        case _:
            raise rope.wrong(kind_key, f"{SUPPORTED}: choose a checkpoint without this position scaling")


def _read_llama3(rope: JsonFile, theta: float) -> RopeSpec:
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if high <= low:
        raise rope.wrong("high_freq_factor", f"greater than low_freq_factor ({low})")
    return RopeSpec(
        theta=theta,
        kind="llama3",
        factor=rope.number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_positions=rope.integer("original_max_position_embeddings"),
    )


def _refuse_partial(part: JsonFile) -> None:
    if part.number("partial_rotary_factor", 1.0) != 1.0:
        raise part.wrong("partial_rotary_factor", "1 (every dimension of a head is rotated) or absent")
