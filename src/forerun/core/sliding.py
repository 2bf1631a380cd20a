"""How many tokens layers with a sliding window keep on a CPU, and the memory of a text's keys and values there."""

from typing import Final

from forerun.core.model_spec import ModelSpec

MARGIN: Final = 1024  # a text can be cut back by this many tokens and resumed, as for another answer
STEP: Final = 256  # slots whose memory is returned at once, in about 10 us a layer; a prefill pass fills as many


def kv_bytes_on_cpu(spec: ModelSpec, num_tokens: int, bytes_per_element: int) -> int:
    """Most bytes of the keys and values of a text of this length, if memory is taken only when it is written to."""
    owners = [layer for layer in range(spec.num_layers) if not spec.borrows(layer)]
    kept = [
        num_tokens if window is None else min(num_tokens, window + MARGIN + 2 * STEP)
        for window in map(spec.window_of, owners)
    ]
    return sum(kept) * spec.kv_bytes_per_token(bytes_per_element) // spec.num_layers
