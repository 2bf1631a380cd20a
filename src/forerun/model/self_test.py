"""Tests with a few passes of the model whether its results are exact on this machine."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from forerun.model.executor import ForwardInput, ForwardOutput
from forerun.model.runner import Runner

TEXT_LENGTH = 24
SIBLINGS = 3  # wrong tokens before each token of the text, in the tree pass
NUM_TAPS = 4  # number of layers whose outputs are compared, to name the first that differs


@torch.inference_mode()
def find_bit_fault(runner: Runner) -> str | None:
    """Compare the bits of a text run token by token, as a prefill, and in a tree with siblings.

    If the backend is exact for any number of threads, the tree is run on another number of them.

    The cache must be empty, and is empty afterwards.

    Returns:
        what differs and after which layer, or None if all bits are equal.
    """
    length = min(TEXT_LENGTH, runner.cache.capacity // (SIBLINGS + 1))
    text = [(7 * place + 1) % runner.spec.vocab_size for place in range(length)]
    taps = some_layers(runner.spec.num_layers)
    num_threads = torch.get_num_threads()
    alone = stages_of([runner.append([token], num_logit_rows=1, taps=taps) for token in text])
    runner.forget()
    prefilled = stages_of([runner.append(text, num_logit_rows=length, taps=taps)])
    runner.forget()
    try:
        if runner.backend.thread_exact:
            torch.set_num_threads(1 if num_threads > 1 else 2)
        among_siblings = run_among_siblings(runner, text, taps)
    finally:
        torch.set_num_threads(num_threads)
    places = [*(f"after layer {layer}" for layer in taps), "in the logits"]
    for what, rows in (("a prefill", prefilled), ("a tree with siblings", among_siblings)):
        for place, one, other in zip(places, alone, rows, strict=True):
            num_different = int((one != other).any(-1).sum())
            if num_different:
                return f"{num_different} of {length} rows differ in {what} from the row run alone, first seen {place}"
    return None


def some_layers(num_layers: int) -> tuple[int, ...]:
    """NUM_TAPS layers, or all if there are fewer; the last layer is always one of them."""
    return tuple(sorted({(place + 1) * num_layers // NUM_TAPS - 1 for place in range(NUM_TAPS)} - {-1}))


def stages_of(outputs: Sequence[ForwardOutput], rows: Sequence[int] | None = None) -> list[Tensor]:
    """The features of these rows, or of all, after each tapped layer, and then their logits."""
    features = [output.features for output in outputs if output.features is not None]
    stages = [*torch.cat(features).unbind(1), torch.cat([output.logits for output in outputs])]
    return stages if rows is None else [stage[rows] for stage in stages]


def run_among_siblings(runner: Runner, text: list[int], taps: tuple[int, ...]) -> list[Tensor]:
    """The stages of the text's rows, where each token has siblings before it in the cache. Empties the cache."""
    token_ids = []
    depths = []
    on_path = []
    for depth, token in enumerate(text):
        for sibling in range(SIBLINGS):
            token_ids.append((token + sibling + 1) % runner.spec.vocab_size)
            depths.append(depth)
        on_path.append(len(token_ids))
        token_ids.append(token)
        depths.append(depth)
    ancestry = np.eye(len(token_ids), dtype=np.bool_)
    for row, depth in enumerate(depths):
        ancestry[row, on_path[:depth]] = True
    output = runner.forward(
        ForwardInput(
            token_ids=token_ids,
            positions=depths,
            first_slot=runner.cache.end,
            prefix_len=0,
            ancestry=ancestry,
            num_logit_rows=len(token_ids),
            taps=taps,
        )
    )
    runner.forget()
    return stages_of([output], on_path)
