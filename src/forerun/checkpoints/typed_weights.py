"""A WeightSource of dense tensors, which are quantised on request."""

from collections.abc import Mapping

from torch import Tensor

from forerun.core.model_spec import WeightFormat
from forerun.model.quantise import as_plain, output_format, quantise
from forerun.model.slicing import take_bias, take_part
from forerun.model.weights import WHOLE, DenseWeight, Int4Weight, Part, Weight

HEAD = "head"
LAYER_TABLE = "layer_table"  # a linear by name, but its rows are looked up
TABLE = "embedding.weight"


class LoadedWeights:
    """A WeightSource of dense tensors. A linear layer is quantised on request, so that only one plain copy exists at a
    time besides the given tensors.

    Args:
        tensors: by name, with the suffix ".weight" or ".bias"; without a head, the embedding is the head too.
        weight_format: of linear layers; see `output_format` for the output projection's.
    """

    def __init__(self, tensors: Mapping[str, Tensor], weight_format: WeightFormat = "plain") -> None:
        self._tensors = dict(tensors)
        self._format = weight_format
        self._table = DenseWeight(values_OI=self._tensors.pop(TABLE))

    def table(self) -> DenseWeight:
        return self._table

    def linear(self, name: str, part: Part = WHOLE) -> tuple[Weight, Tensor | None]:
        weight_format = own_format(name, self._format)
        is_shared = name == HEAD and f"{HEAD}.weight" not in self._tensors
        weight = in_format(self._table if is_shared else DenseWeight(values_OI=self.vector(name)), weight_format)
        return take_part(weight, part), take_bias(self._tensors.pop(f"{name}.bias", None), part)

    def vector(self, name: str) -> Tensor:
        return self._tensors.pop(f"{name}.weight")


def own_format(name: str, weight_format: WeightFormat) -> WeightFormat:
    """The format of one linear in a model whose linears have this one."""
    if name == LAYER_TABLE:
        return "plain"
    return output_format(weight_format) if name == HEAD else weight_format


def in_format(weight: Weight, weight_format: WeightFormat) -> Weight:
    """Round a weight to a format; "plain" leaves it unchanged, and int4 leaves an int4 weight unchanged."""
    if weight_format == "plain" or (weight_format == "int4" and isinstance(weight, Int4Weight)):
        return weight
    return quantise(as_plain(weight), weight_format)
