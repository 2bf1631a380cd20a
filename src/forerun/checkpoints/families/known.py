"""The families, by their names in files."""

from collections.abc import Mapping
from typing import Final

from forerun.checkpoints.families.family import Family
from forerun.checkpoints.families.gemma3 import GEMMA3
from forerun.checkpoints.families.gemma4 import GEMMA4
from forerun.checkpoints.families.glm4 import GLM4
from forerun.checkpoints.families.gpt_oss import GPT_OSS
from forerun.checkpoints.families.granite import GRANITE, GRANITE_HYBRID
from forerun.checkpoints.families.lfm2 import LFM2, LFM2_MOE
from forerun.checkpoints.families.llama import LLAMA
from forerun.checkpoints.families.ministral3 import MINISTRAL3
from forerun.checkpoints.families.mistral import MISTRAL
from forerun.checkpoints.families.nemotron_h import NEMOTRON_H
from forerun.checkpoints.families.olmo import OLMO2, OLMO3
from forerun.checkpoints.families.phi3 import PHI3
from forerun.checkpoints.families.qwen2 import QWEN2
from forerun.checkpoints.families.qwen3 import QWEN3
from forerun.checkpoints.families.qwen3_5 import QWEN3_5
from forerun.checkpoints.families.qwen3_moe import QWEN3_MOE
from forerun.checkpoints.families.qwen3_next import QWEN3_5_MOE, QWEN3_NEXT
from forerun.checkpoints.families.smollm3 import SMOLLM3

ALL: Final = (
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    SMOLLM3,
    MINISTRAL3,
    GRANITE,
    GRANITE_HYBRID,
    PHI3,
    GEMMA3,
    GEMMA4,
    OLMO2,
    OLMO3,
    GLM4,
    GPT_OSS,
    QWEN3_MOE,
    QWEN3_5,
    QWEN3_NEXT,
    QWEN3_5_MOE,
    LFM2,
    LFM2_MOE,
    NEMOTRON_H,
)
BY_NAME: Final[Mapping[str, Family]] = {family.name: family for family in ALL}
BY_ARCHITECTURE: Final[Mapping[str, Family]] = {
    architecture: family
    for family in ALL
    for architecture in (family.architecture, family.other_architecture)
    if architecture
}
BY_WRAPPER: Final[Mapping[str, Family]] = {wrapper: family for family in ALL for wrapper in family.wrappers}
