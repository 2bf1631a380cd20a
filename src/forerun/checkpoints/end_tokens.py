"""The tokens that end a text: texts that always do, and a check of the ids that a file names."""

from collections.abc import Sequence
from typing import Final

from forerun.core.errors import CheckpointError

# They count besides those that a file names, because many files name only one of several.
# Source: llama.cpp, src/llama-vocab.cpp, special_eog_ids.
END_TEXTS: Final = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>",
    "<EOT>", "_<EOT>", "[EOT]", "<|end_of_text|>", "<end_of_utterance>", "<turn|>", "<|tool_response>", "<eos>",
})  # fmt: skip


def require_known(ids: Sequence[int], num_tokens: int, *, where: str) -> None:
    """Raise CheckpointError for an id of `where`, a file and its key, that the model cannot write."""
    for id_ in ids:
        if id_ >= num_tokens:
            raise CheckpointError(
                f"{where}: the end-of-text id {id_} is beyond the model's {num_tokens} tokens: correct it, or fetch "
                "the model again"
            )
