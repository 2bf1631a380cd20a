"""A kind of draft head that can be trained, as a record: all that differs from other kinds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from forerun.core.errors import require
from forerun.core.model_spec import ModelSpec
from forerun.drafting.heads.kind import HeadSpec
from forerun.model.vocabulary_map import VocabularyMap
from forerun_lab.distill.config import DistillConfig
from forerun_lab.distill.head_trainer import HeadTrainer

Spec = TypeVar("Spec", bound=HeadSpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewHead:
    """What a new head is made from.

    Args:
        body: one plain layer of the target's shape.
        entered: the target's layers whose inputs are the features.
        counts_V: how often the target writes each token.
        num_layers: as the user asks; None: as usual.
    """

    body: ModelSpec
    entered: tuple[int, ...]
    counts_V: Tensor
    num_layers: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainableHead(Generic[Spec]):
    """A kind of head that can be trained.

    Args:
        words: a head of this kind, in a report.
        spec: the type of its sizes.
        choose: the sizes of a new head.
        trainer: trains it.
        start: changes a new head's weights beyond the copied layers; gets the target's rows [W, H] of its output.
        published: its tensors under their published names.
        config: config.json beyond the keys that all heads have.
        has_one_layer: `--layers` cannot be chosen.
        has_all_tokens: it drafts all tokens of its target, so `--vocab-size` cannot be chosen.
    """

    words: str
    spec: type[Spec]
    choose: Callable[[NewHead], Spec]
    trainer: type[HeadTrainer]
    start: Callable[[dict[str, Tensor], Tensor], None]
    published: Callable[[Mapping[str, Tensor], VocabularyMap], dict[str, Tensor]]
    config: Callable[[Spec], dict[str, object]]
    has_one_layer: bool = False
    has_all_tokens: bool = False

    def require_settings(self, config: DistillConfig) -> None:
        """Refuse sizes that a head of this kind cannot have.

        Raises:
            ConfigError: names the size.
        """
        require(not self.has_one_layer or config.layers in (None, 1), f"layers {config.layers} of {self._a} must be 1")
        require(
            not self.has_all_tokens or config.vocab_size is None,
            f"vocab_size {config.vocab_size} must be left out: {self._a} has all of its target's tokens",
        )

    @property
    def _a(self) -> str:
        return self.words[0].lower() + self.words[1:]
