"""The families, by the names that files have for them."""

from collections.abc import Mapping
from typing import Final

from forerun.checkpoints.families.family import Family
from forerun.checkpoints.families.llama import LLAMA
from forerun.checkpoints.families.mistral import MISTRAL
from forerun.checkpoints.families.qwen2 import QWEN2
from forerun.checkpoints.families.qwen3 import QWEN3

ALL: Final = (LLAMA, MISTRAL, QWEN2, QWEN3)
BY_NAME: Final[Mapping[str, Family]] = {family.name: family for family in ALL}
BY_ARCHITECTURE: Final[Mapping[str, Family]] = {family.architecture: family for family in ALL if family.architecture}
