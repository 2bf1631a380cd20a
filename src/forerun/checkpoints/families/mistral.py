"""Mistral: all layers have a sliding window, unless `sliding_window` is null. Its GGUF files are llama's."""

from typing import Final

from forerun.checkpoints.families.family import Family, all_slide

MISTRAL: Final = Family(name="mistral", architecture=None, sliding=all_slide)
