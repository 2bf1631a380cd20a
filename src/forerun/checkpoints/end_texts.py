"""The texts of tokens that always end a text or a turn."""

from typing import Final

# They count besides those that a file names, because many files name only one of several.
# Source: llama.cpp, src/llama-vocab.cpp, special_eog_ids.
END_TEXTS: Final = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>",
    "<EOT>", "_<EOT>", "[EOT]", "<|end_of_text|>", "<end_of_utterance>", "<turn|>", "<|tool_response>", "<eos>",
})  # fmt: skip
