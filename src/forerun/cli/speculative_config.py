"""Reads vLLM's --speculative-config."""

from collections.abc import Mapping
from typing import Final

from forerun.cli.flag_values import read_object
from forerun.cli.logs import note
from forerun.core.drafter_config import DraftConfig, DrafterConfig, DraftHead, DraftModel, PromptLookup
from forerun.core.errors import ConfigError

KEYS: Final = ("method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min")
DRAFTS: Final[Mapping[str, type[DraftConfig]]] = {
    "draft_model": DraftModel, "eagle3": DraftHead, "dflash": DraftHead,
}  # fmt: skip
FIELDS: Final[Mapping[str, Mapping[str, str]]] = {
    "ngram": {
        "num_speculative_tokens": "verify_width", "prompt_lookup_max": "", "prompt_lookup_min": "",
    },
    **{name: {"model": "model", "num_speculative_tokens": "depth"} for name in DRAFTS},
}  # fmt: skip


def read_speculative_config(text: str) -> DrafterConfig:
    """The drafter.

    Raises:
        ConfigError: it is not a JSON object, or has a key or value without a counterpart here.
    """
    flag = "--speculative-config"
    values = read_object(text, flag=flag, example='{"method": "ngram"}')
    unknown = [key for key in values if key not in KEYS]
    if unknown:
        raise ConfigError(f"{flag} has the unknown key {unknown[0]!r}: the known ones are {', '.join(KEYS)}")
    method = values.pop("method", "draft_model" if "model" in values else None)
    if not isinstance(method, str) or method not in FIELDS:
        raise ConfigError(f"{flag} asks for the unknown method {method!r}: the known ones are {', '.join(FIELDS)}")
    foreign = [key for key in values if key not in FIELDS[method]]
    if foreign:
        raise ConfigError(f"{flag} has {foreign[0]!r}, which has no effect on the method {method}: leave it out")
    for key in [key for key in values if not FIELDS[method][key]]:
        note(f"{flag}: {key} changes nothing here, where the longest match of 2 to 4 tokens is looked up")
        del values[key]
    settings = {FIELDS[method][key]: value for key, value in values.items()}
    if method in DRAFTS:
        if "model" not in settings:
            raise ConfigError(f'{flag} asks for the method {method} and names no model: add "model"')
        return DRAFTS[method](**settings)
    if type(settings.get("verify_width")) is int:  # not a bool, which is refused below
        settings["verify_width"] += 1  # the root is verified too
    return PromptLookup(**settings)
