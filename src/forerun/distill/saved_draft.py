"""The file of a draft in training, which is replaced atomically."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from forerun.core.errors import CheckpointError
from forerun.core.model_spec import ModelSpec, RopeSpec
from forerun.core.output_file import write_whole
from forerun.distill.network import Network
from forerun.distill.trainer import Trainer
from forerun.model.vocabulary_map import VocabularyMap

WEIGHT: Final = "weight/"
MAP_IDS: Final = ("target_ids", "draft_ids")


class SavedDraft:
    """The file of a draft in training."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def exists(self) -> bool:
        return self._path.exists()

    def create(self, spec: ModelSpec, vocabulary: VocabularyMap, weights: Mapping[str, Tensor]) -> None:
        """Write a draft that is not yet trained."""
        self._write(spec, vocabulary, weights, {}, {"trained_s": 0.0, "num_tokens": 0})

    def keep(self, trainer: Trainer, trained_s: float) -> None:
        """Write the state of a training after `trained_s` seconds."""
        network, notes = trainer.network, {"trained_s": trained_s, "num_tokens": trainer.num_tokens}
        self._write(network.spec, trainer.vocabulary, network.weights, trainer.state(), notes)

    def open(self, device: str) -> tuple[Trainer, float]:
        """The trainer, and the seconds it has trained so far.

        Raises:
            CheckpointError: the file is damaged.
        """
        try:
            with safe_open(self._path, "pt", device=device) as file:
                notes = json.loads((file.metadata() or {})["notes"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            spec = ModelSpec(**{**notes["spec"], "rope": RopeSpec(**notes["spec"]["rope"])})
            vocabulary = VocabularyMap(**{name: tensors.pop(name) for name in MAP_IDS})
            weights = {
                name.removeprefix(WEIGHT): tensors.pop(name) for name in list(tensors) if name.startswith(WEIGHT)
            }
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{self._path} cannot be read ({error}): delete it, and a draft is trained anew on the texts beside it"
            ) from error
        trainer = Trainer(Network(spec, weights), vocabulary, device=device)
        if tensors:
            trainer.restore(tensors, notes["num_tokens"])
        return trainer, notes["trained_s"]

    def _write(
        self, spec: ModelSpec, vocabulary: VocabularyMap, weights: Mapping[str, Tensor], state: Mapping[str, Tensor],
        notes: dict[str, Any],
    ) -> None:  # fmt: skip
        """Replace the file as a whole."""
        ids = {"target_ids": vocabulary.target_ids, "draft_ids": vocabulary.draft_ids}
        tensors = {**ids, **{WEIGHT + name: value for name, value in weights.items()}, **state}
        plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        write_whole(self._path, save(plain, {"notes": json.dumps({"spec": asdict(spec), **notes})}), makes_folder=True)
