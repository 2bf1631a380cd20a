"""A Hugging Face folder as a CheckpointSource."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from forerun.checkpoints.end_tokens import require_known
from forerun.checkpoints.families.known import BY_NAME
from forerun.checkpoints.huggingface.config import CONFIG_NAME, MAP_NAME, read_model_spec
from forerun.checkpoints.huggingface.generation import STOP_IDS, read_default_sampling, read_stop_ids
from forerun.checkpoints.huggingface.output_projection import has_other_output
from forerun.checkpoints.huggingface.packing import MXFP4, Fp8Scaling, Packing, Quantisation, read_packing
from forerun.checkpoints.huggingface.stored_tensors import bytes_by_dtype, catalogue, read_dtype
from forerun.checkpoints.identity import identity_of
from forerun.checkpoints.safetensors.header import WHOLE_BYTES
from forerun.checkpoints.source import Reading
from forerun.core.config import SamplingParams
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from forerun.model.vocabulary_map import VocabularyMap
    from forerun.model.weights import WeightSource
    from forerun.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """config.json, tokenizer.json and the other files of a folder besides weights; see CheckpointSource."""

    name: str
    folder: Path

    @property
    def path(self) -> Path:
        return self.folder

    def spec(self) -> ModelSpec:
        return read_model_spec(self.folder)

    def files(self) -> tuple[Path, ...]:
        return tuple(path for path in sorted(self.folder.iterdir()) if path.is_file())

    def tokenizer(self) -> "Tokenizer":
        from forerun.checkpoints.huggingface.tokenizer import read_tokenizer  # imports tokenizers and jinja2

        return read_tokenizer(self.folder)

    def vocabulary_map(self) -> "VocabularyMap | None":
        if not (self.folder / MAP_NAME).exists():  # most drafts have none
            return None
        from forerun.checkpoints.huggingface.vocabulary_map import read_vocabulary_map  # imports torch

        return read_vocabulary_map(self.folder, self.spec())

    def stop_ids(self) -> tuple[int, ...]:
        from forerun.checkpoints.huggingface.end_tokens import read_end_tokens  # imports tokenizers and jinja2

        ids = read_stop_ids(self.folder)
        require_known(ids, read_model_spec(self.folder).vocab_size, where=f"{self.folder}, {STOP_IDS}")
        return tuple(dict.fromkeys((*ids, *read_end_tokens(self.folder))))

    def default_sampling(self) -> SamplingParams:
        return read_default_sampling(self.folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFaceFolder(ModelFolder):
    """Such a folder with weights in safetensors files."""

    def spec(self) -> ModelSpec:
        spec = read_model_spec(self.folder)
        if spec.tied_embeddings and has_other_output(self.folder, spec):
            logger.warning(
                "%s holds a head that differs from the embedding, so the head is used, although config.json says that "
                "tie_word_embeddings is true",
                self.folder,
            )
            return replace(spec, tied_embeddings=False)
        return spec

    def stored_dtype(self) -> str:
        return read_dtype(self.folder)

    def stored_formats(self) -> Mapping[str, int]:
        num_bytes = bytes_by_dtype(catalogue(self.folder).values())
        packing = self._packing()
        if "U8" in num_bytes:
            return {**num_bytes, MXFP4: num_bytes.pop("U8")}
        if not isinstance(packing, Packing):
            return num_bytes
        codes = sum(num_bytes.pop(dtype, 0) for dtype in WHOLE_BYTES)
        return {**num_bytes, packing.stored_format: codes}

    def identity(self) -> str:
        return identity_of(self.spec(), catalogue(self.folder))

    def weights(self, **reading: Unpack[Reading]) -> "WeightSource":
        from forerun.checkpoints.huggingface.experts import ExpertWeights  # imports torch, as do these
        from forerun.checkpoints.huggingface.fp8 import open_fp8
        from forerun.checkpoints.huggingface.load import open_weights
        from forerun.checkpoints.huggingface.packed_weights import PackedWeights

        packing = self._packing()
        spec = self.spec()
        if isinstance(packing, Packing):
            return PackedWeights(self.folder, spec, packing, **reading)
        if isinstance(packing, Fp8Scaling):
            return open_fp8(self.folder, spec, packing, **reading)
        return (ExpertWeights if BY_NAME[spec.family].stacks_experts else open_weights)(self.folder, spec, **reading)

    def _packing(self) -> Quantisation | None:
        return read_packing(JsonFile.read(self.folder / CONFIG_NAME))
