"""A GGUF file as a CheckpointSource."""

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Unpack
from weakref import WeakValueDictionary

from forerun.checkpoints.end_tokens import END_TEXTS, require_known
from forerun.checkpoints.gguf.config import TOKENS_KEY, read_model_spec
from forerun.checkpoints.gguf.header import GgufFile
from forerun.checkpoints.gguf.parts import read_model
from forerun.checkpoints.huggingface.generation import recommended_sampling
from forerun.checkpoints.huggingface.stored_tensors import DTYPE_NAMES, bytes_by_dtype
from forerun.checkpoints.identity import identity_of
from forerun.checkpoints.source import Reading
from forerun.core.config import SamplingParams
from forerun.core.errors import CheckpointError
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec

if TYPE_CHECKING:
    from forerun.model.vocabulary_map import VocabularyMap
    from forerun.model.weights import WeightSource
    from forerun.text.tokenizer import Tokenizer

HELD: Final = WeakValueDictionary[tuple[Path, int, int, int], GgufFile]()  # parsed, as long as somebody holds them
# The keys of the authors' recommended sampling, and their names in generation_config.json.
SAMPLING_KEYS: Final = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
# The sampling for a file that has none of the first four keys. Source: llama.cpp, common/common.h.
USUAL_SAMPLING: Final = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
STOP_KEYS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")


class GgufCheckpoint:
    """One file with the whole model, or the first of several parts; see CheckpointSource.

    Its metadata is parsed once and kept, because parsing a vocabulary takes a tenth of a second or more; by all who
    open the same file at one time, too, as a command reads the header before it imports torch.

    Args:
        name: the name that the user gave.
        path: the file.
    """

    def __init__(self, *, name: str, path: Path) -> None:
        self.name = name
        self.path = path

    @property
    def folder(self) -> Path:
        return self.path.parent

    @cached_property
    def file(self) -> GgufFile:
        """The file's metadata.

        Raises:
            CheckpointError: the file is damaged, of another format, or no longer there.
        """
        try:
            stat = self.path.stat()
        except OSError as error:
            raise CheckpointError(
                f"{self.path} cannot be read ({error}): check the file and its permissions"
            ) from error
        key = self.path, stat.st_ino, stat.st_size, stat.st_mtime_ns
        found = HELD.get(key)
        if found is None:
            found = HELD[key] = read_model(self.path)
        return found

    def spec(self) -> ModelSpec:
        return read_model_spec(self.file)

    def stored_dtype(self) -> str:
        """The dtype with the most bytes. Codes count as bfloat16, whose range includes that of any scale, and in which
        these models are trained."""
        num_bytes = Counter[str]()
        for name, more in self.stored_formats().items():
            num_bytes[DTYPE_NAMES.get(name, "bfloat16")] += more
        return max(num_bytes, key=num_bytes.__getitem__, default="float32")

    def stored_formats(self) -> Mapping[str, int]:
        return bytes_by_dtype(self.file.tensors.values())

    def files(self) -> tuple[Path, ...]:
        return tuple(sorted({self.path, *(tensor.path for tensor in self.file.tensors.values())}))

    def identity(self) -> str:
        return identity_of(self.spec(), self.file.tensors)

    def tokenizer(self) -> "Tokenizer":
        from forerun.checkpoints.gguf.tokenizer import read_tokenizer  # imports tokenizers and jinja2

        return read_tokenizer(self.file)

    def vocabulary_map(self) -> "VocabularyMap | None":
        return None

    def stop_ids(self) -> tuple[int, ...]:
        return read_stop_ids(self.file)

    def default_sampling(self) -> SamplingParams:
        metadata = self.file.metadata
        values = {name: metadata[key] for key, name in SAMPLING_KEYS.items() if key in metadata}
        if not set(values) & set(USUAL_SAMPLING):
            values |= USUAL_SAMPLING
        return recommended_sampling(JsonFile(path=self.path, values=values))

    def weights(self, **reading: Unpack[Reading]) -> "WeightSource":
        from forerun.checkpoints.gguf.names import traits_of
        from forerun.checkpoints.gguf.weights import match_tensors  # imports torch
        from forerun.checkpoints.stored_weights import StoredWeights

        spec = self.spec()
        return StoredWeights(match_tensors(self.file, spec), traits=traits_of(spec), **reading)


def read_stop_ids(file: GgufFile) -> tuple[int, ...]:
    """The ids in the keys, then those of tokens that are known to end a text.

    Raises:
        CheckpointError: a key's value is not a token id of the model.
    """
    keys = file.section("tokenizer.ggml.")
    named = [keys.integer(key, least=0) for key in STOP_KEYS if keys.has(key)]
    tokens = file.metadata.get(TOKENS_KEY)
    if isinstance(tokens, tuple):
        require_known(named, len(tokens), where=f"{file.path}, {', '.join(STOP_KEYS)}")
    known = [place for place, text in enumerate(tokens) if text in END_TEXTS] if isinstance(tokens, tuple) else []
    return tuple(dict.fromkeys(named + known))
