"""The output of a forward pass."""

from dataclasses import dataclass

from torch import Tensor

from forerun.sampling.sample import BestTokens


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardOutput:
    """The output of a pass of T rows, with vocabulary size V and hidden size H.

    Args:
        logits: [num_logit_rows, V], of the last rows, in the dtype of the backend's scores.
        features: [T, len(taps), H], the residual stream of every row after each tapped layer, in the dtype of the
            backend's activations; None without taps.
        best: the tokens chosen by `ForwardInput.choice`, if the pass chose them; `logits` is then empty, [0, V].
    """

    logits: Tensor
    features: Tensor | None = None
    best: BestTokens | None = None
