"""The tokenizer in a GGUF file's metadata."""

from forerun.checkpoints.gguf.header import GgufFile
from forerun.core.errors import CheckpointError
from forerun.text.tokenizer import Tokenizer


def read_tokenizer(file: GgufFile) -> Tokenizer:
    """The tokenizer, with its chat template.

    Raises:
        CheckpointError: always, in this version.
    """
    raise CheckpointError(f"{file.path}: the tokenizer of GGUF files is not read yet: take the folder of safetensors")
