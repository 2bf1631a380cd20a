"""The token ids that end a text, as the checkpoint declares them."""

from pathlib import Path
from typing import Final

from forerun.checkpoints.config import CONFIG_NAME
from forerun.core.json_file import JsonFile

GENERATION_CONFIG_NAME: Final = "generation_config.json"
KEY: Final = "eos_token_id"


def read_stop_ids(folder: Path) -> tuple[int, ...]:
    """Ids that end a text: those of generation_config.json, else those of config.json, else none.

    The order matters: chat models declare the end of a turn in the former only.

    Raises:
        CheckpointError: `eos_token_id` is neither a token id nor a list of them.
    """
    generation_path = folder / GENERATION_CONFIG_NAME
    if generation_path.exists():
        generation = JsonFile.read(generation_path)
        if generation.has(KEY):
            return _read_ids(generation)
    return _read_ids(JsonFile.read(folder / CONFIG_NAME))


def _read_ids(file: JsonFile) -> tuple[int, ...]:
    value = file.values.get(KEY)
    if value is None:
        return ()
    ids = tuple(value) if isinstance(value, list) else (value,)
    if any(isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0 for token_id in ids):
        raise file.wrong(KEY, "a token id >= 0, or a list of them")
    return ids
