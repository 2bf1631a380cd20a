"""A draft in training on disk, replaced as a whole."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forerun.core.errors import CheckpointError
from forerun.core.model_spec import ModelSpec, RopeSpec
from forerun.distill.network import Network
from forerun.distill.trainer import Trainer
from forerun.model.vocabulary_map import VocabularyMap


class SavedDraft:
    """The file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def exists(self) -> bool:
        return self._path.exists()

    def create(self, spec: ModelSpec, vocabulary: VocabularyMap, weights: Mapping[str, Tensor]) -> None:
        """A draft before its training."""
        self._write(spec, vocabulary, weights, {"trained_s": 0.0, "training": None})

    def keep(self, trainer: Trainer, trained_s: float) -> None:
        """The state of a training after so many seconds."""
        network = trainer.network
        self._write(
            network.spec, trainer.vocabulary, network.weights, {"trained_s": trained_s, "training": trainer.state()}
        )

    def open(self, device: str) -> tuple[Trainer, float]:
        """The training, and how long it took so far.

        Raises:
            CheckpointError: the file is damaged.
        """
        try:
            values = torch.load(self._path, map_location=device, weights_only=True)
        except (OSError, RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"{self._path} cannot be read ({error}): delete it, and a draft is trained anew on the texts beside it"
            ) from error
        spec = ModelSpec(**{**values["spec"], "rope": RopeSpec(**values["spec"]["rope"])})
        vocabulary = VocabularyMap(target_ids=values["target_ids"], draft_ids=values["draft_ids"])
        trainer = Trainer(Network(spec, values["weights"]), vocabulary, device=device)
        if values["training"] is not None:
            trainer.restore(values["training"])
        return trainer, values["trained_s"]

    def _write(
        self, spec: ModelSpec, vocabulary: VocabularyMap, weights: Mapping[str, Tensor], rest: dict[str, Any]
    ) -> None:
        """Replace the file as a whole."""
        ids = {"target_ids": vocabulary.target_ids, "draft_ids": vocabulary.draft_ids}
        beside = self._path.with_suffix(".part")
        torch.save({"spec": asdict(spec), **ids, "weights": dict(weights), **rest}, beside)
        beside.replace(self._path)
