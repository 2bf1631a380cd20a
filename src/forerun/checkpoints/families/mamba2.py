"""Mamba 2 layers in configs and GGUF files: what Granite 4 and Nemotron-H have in common."""

from math import inf
from typing import Final

from forerun.checkpoints.families.qwen3_5 import MOST_HEADS, MOST_TAPS
from forerun.core.json_file import MAX_NUMBER, JsonFile
from forerun.core.mixers import Mamba2

NO_LIMITS: Final = (0.0, inf)
GGUF_KEYS: Final = ("ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size")
GGUF_EPS: Final = "attention.layer_norm_rms_epsilon"


def read_mamba2(
    config: JsonFile,
    *,
    heads: str,
    head_dim: str,
    state: str,
    groups: str,
    taps: str,
    eps: str,
    product_bias: str,
    taps_bias: str,
) -> Mamba2:
    """The layers that a config describes.

    Args:
        heads, head_dim, state, groups, taps, eps, product_bias, taps_bias: the family's keys.
    """  # fmt: skip
    mamba = Mamba2(
        num_key_heads=config.integer(groups, most=MOST_HEADS),
        num_value_heads=config.integer(heads, most=MOST_HEADS),
        key_dim=config.integer(state),
        value_dim=config.integer(head_dim),
        kernel_size=config.integer(taps, most=MOST_TAPS),
        norm_eps=config.number(eps),
        has_bias=config.flag(taps_bias),
        has_product_bias=config.flag(product_bias),
        step_limits=read_limits(config),
    )
    if mamba.num_value_heads % mamba.num_key_heads:
        raise config.wrong(heads, f"a multiple of {groups} ({mamba.num_key_heads})")
    return mamba


def read_limits(config: JsonFile) -> tuple[float, float]:
    """The least and the largest step. transformers 5 writes infinity as {"__float__": "Infinity"}."""
    match config.values.get("time_step_limit"):
        case None:
            return NO_LIMITS
        case [int() | float() as least, {"__float__": "Infinity"}]:
            largest = inf
        case [int() | float() as least, int() | float() as largest]:
            pass
        case _:
            raise config.wrong("time_step_limit", "two numbers, of which the second may be Infinity")
    if not 0 <= least <= largest or least > MAX_NUMBER:
        raise config.wrong("time_step_limit", "two numbers from 0 on, of which the second is not smaller")
    return float(least), float(largest)


def read_gguf_mamba2(keys: JsonFile, *, has_bias: bool = True) -> Mamba2:
    """The layers by the keys of a GGUF file, which has none for limits of steps: llama.cpp has no limits."""
    num_heads = keys.integer("ssm.time_step_rank", most=MOST_HEADS)
    size = keys.integer("ssm.inner_size")
    num_groups = keys.integer("ssm.group_count", most=MOST_HEADS)
    if num_heads % num_groups or size % num_heads:
        raise keys.wrong("ssm.time_step_rank", "a multiple of ssm.group_count, and a divisor of ssm.inner_size")
    return Mamba2(
        num_key_heads=num_groups,
        num_value_heads=num_heads,
        key_dim=keys.integer("ssm.state_size"),
        value_dim=size // num_heads,
        kernel_size=keys.integer("ssm.conv_kernel", most=MOST_TAPS),
        norm_eps=keys.number(GGUF_EPS),
        has_bias=has_bias,
    )
