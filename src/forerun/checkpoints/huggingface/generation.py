"""Read generation_config.json: the authors' recommended sampling, and the ids that end a text."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta

from forerun.checkpoints.huggingface.config import CONFIG_NAME, text_part
from forerun.core.config import SamplingParams
from forerun.core.errors import CheckpointError, ConfigError
from forerun.core.json_file import JsonFile

GENERATION_CONFIG_NAME: Final = "generation_config.json"
STOP_IDS: Final = "eos_token_id"
TokenId = Annotated[int, Meta(ge=0)]
FILTERS: Final = ("temperature", "top_k", "top_p", "min_p")
NAMES: Final = (*FILTERS, "repetition_penalty")

GREEDY: Final = SamplingParams()

logger = logging.getLogger(__name__)


def read_stop_ids(folder: Path) -> tuple[int, ...]:
    """Ids that end a text: those of generation_config.json, else those of config.json, else none.

    generation_config.json comes first, because chat models declare the end of a turn only there.

    Raises:
        CheckpointError: `eos_token_id` is neither a token id nor a list of them.
    """
    generation_path = folder / GENERATION_CONFIG_NAME
    if generation_path.exists():
        generation = JsonFile.read(generation_path)
        if generation.has(STOP_IDS):
            return _read_ids(generation)
    config = JsonFile.read(folder / CONFIG_NAME)
    return _read_ids(config if config.has(STOP_IDS) else text_part(config)[0])


def _read_ids(file: JsonFile) -> tuple[int, ...]:
    ids = file.typed(STOP_IDS, TokenId | tuple[TokenId, ...], "a token id >= 0, or a list of them", ())
    return (ids,) if isinstance(ids, int) else tuple(ids)


def read_default_sampling(folder: Path) -> SamplingParams:
    """The sampling that the folder recommends; greedy if it recommends none.

    Raises:
        CheckpointError: the file exists and is not a JSON object.
    """
    path = folder / GENERATION_CONFIG_NAME
    return recommended_sampling(JsonFile.read(path)) if path.exists() else GREEDY


def recommended_sampling(file: JsonFile) -> SamplingParams:
    """The sampling recommended by a file with generation_config.json's keys.

    As in vLLM, parameters in the file are used and absent ones are off; transformers uses its own defaults (top_k 50)
    for absent ones. As in transformers, `do_sample` false means greedy whatever else the file has; vLLM ignores it.
    Without `do_sample`, a file with a temperature or a filter means sampling, as in vLLM. The default temperature then
    is 1. An invalid value is ignored with a warning.
    """
    stated = {name: file.values[name] for name in NAMES if file.has(name) and _is_usable(file, name)}
    if _does_sample(file, stated):
        stated.setdefault("temperature", 1.0)
    else:
        stated = {name: value for name, value in stated.items() if name not in FILTERS}
    return SamplingParams(**stated)  # type: ignore[arg-type]  # every value was tried


def _does_sample(file: JsonFile, stated: Mapping[str, object]) -> bool:
    says_so = any(name in stated for name in FILTERS)
    try:
        return file.flag("do_sample", says_so)
    except CheckpointError as error:
        logger.warning("%s; it is ignored", error)
        return says_so


def _is_usable(file: JsonFile, name: str) -> bool:
    try:
        SamplingParams(**{name: file.values[name]})  # type: ignore[arg-type]  # the constructor checks the type
    except ConfigError as error:
        logger.warning("%s: %s; it is ignored", file.path, error)
        return False
    return True
