"""Qwen3: heads of 128 unless the config says otherwise, whose queries and keys are normalised."""

from typing import Final

from forerun.checkpoints.families.family import Family
from forerun.checkpoints.families.qwen2 import some_slide

QWEN3: Final = Family(
    name="qwen3", architecture="qwen3", attention_bias=True, qk_norm=True, head_dim=128, sliding=some_slide
)
