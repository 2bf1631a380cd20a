"""The token ids that end a text of a GGUF file's model."""

from typing import Final

from forerun.checkpoints.end_texts import END_TEXTS, require_known
from forerun.checkpoints.gguf.config import TOKENS_KEY
from forerun.checkpoints.gguf.header import GgufFile

KEYS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")


def read_stop_ids(file: GgufFile) -> tuple[int, ...]:
    """The ids in the keys, then those of tokens that are known to end a text.

    Raises:
        CheckpointError: a key's value is not a token id of the model.
    """
    keys = file.section("tokenizer.ggml.")
    named = [keys.integer(key, least=0) for key in KEYS if keys.has(key)]
    tokens = file.metadata.get(TOKENS_KEY)
    if isinstance(tokens, tuple):
        require_known(named, len(tokens), where=f"{file.path}, {', '.join(KEYS)}")
    known = [place for place, text in enumerate(tokens) if text in END_TEXTS] if isinstance(tokens, tuple) else []
    return tuple(dict.fromkeys(named + known))
