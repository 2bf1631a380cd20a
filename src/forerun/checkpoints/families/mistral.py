"""Mistral: all layers have a sliding window, unless `sliding_window` is null. Its GGUF files say llama."""

from typing import Final

from forerun.checkpoints.families.family import Family
from forerun.core.json_file import JsonFile


def all_slide(config: JsonFile) -> bool:
    """Whether the layers have a window."""
    return not config.is_null("sliding_window")


MISTRAL: Final = Family(name="mistral", architecture=None, slides=all_slide)
