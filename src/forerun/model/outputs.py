"""What a forward pass gives."""

from dataclasses import dataclass

from torch import Tensor

from forerun.sampling.sample import BestTokens


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardOutput:
    """Of T rows, with vocabulary V and hidden size H.

    Args:
        logits: [num_logit_rows, V], of the last rows, in the dtype of the backend's scores.
        features: [T, len(taps), H], the residual stream of every row behind each tapped layer, in the dtype of the
            backend's activations; None where nothing was tapped.
        best: what `ForwardInput.choice` asked for, where it was done; there are no logits then, [0, V].
    """

    logits: Tensor
    features: Tensor | None = None
    best: BestTokens | None = None
