"""Weights that were read as dense tensors, given their format as they are taken."""

from collections.abc import Mapping

from torch import Tensor

from forerun.core.model_spec import WeightFormat
from forerun.model.quantise import head_format, quantise
from forerun.model.weights import DenseWeight, Weight

HEAD = "head"
TABLE = "embedding.weight"


class LoadedWeights:
    """A WeightSource of dense tensors. A linear layer is quantised when it is taken: of no two there is a plain copy
    more than was read.

    Args:
        tensors: by name, with ".weight" or ".bias" behind it; without a head, the embedding is the head too.
        weight_format: of linear layers; see `head_format` for the head's.
    """

    def __init__(self, tensors: Mapping[str, Tensor], weight_format: WeightFormat = "plain") -> None:
        self._tensors, self._format = dict(tensors), weight_format
        self._table = DenseWeight(values_OI=self._tensors.pop(TABLE))

    def table(self) -> DenseWeight:
        return self._table

    def linear(self, name: str) -> tuple[Weight, Tensor | None]:
        weight_format = head_format(self._format) if name == HEAD else self._format
        is_shared = name == HEAD and f"{HEAD}.weight" not in self._tensors
        if is_shared and weight_format == "plain":
            return self._table, None
        weight_OI = self._table.values_OI if is_shared else self.vector(name)
        return quantise(weight_OI, weight_format), self._tensors.pop(f"{name}.bias", None)

    def vector(self, name: str) -> Tensor:
        return self._tensors.pop(f"{name}.weight")
