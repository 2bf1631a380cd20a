"""Self-test of the exact mode on this machine, by a few passes of the model."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from forerun.model.inputs import ForwardInput
from forerun.model.outputs import ForwardOutput
from forerun.model.runner import Runner

TEXT_LENGTH = 24
SIBLINGS = 3  # wrong tokens between each two of the text, in the tree pass
NUM_TAPS = 4  # layers whose output is compared, to name the first that differs


@torch.inference_mode()
def find_bit_fault(runner: Runner) -> str | None:
    """What differs and after which layer first, or None: single rows, in a prefill, and in a tree with siblings.

    The tree is run on another number of threads where the kernels promise that this changes nothing either.

    The cache must be empty, and is so afterwards.
    """
    length = min(TEXT_LENGTH, runner.cache.capacity // (SIBLINGS + 1))
    text = [(7 * place + 1) % runner.spec.vocab_size for place in range(length)]
    taps, num_threads = some_layers(runner.spec.num_layers), torch.get_num_threads()
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
    places = [*(f"behind layer {layer}" for layer in taps), "in the logits alone"]
    for what, rows in (("a prefill", prefilled), ("a tree with siblings", among_siblings)):
        for place, one, other in zip(places, alone, rows, strict=True):
            num_different = int((one != other).any(-1).sum())
            if num_different:
                return f"{num_different} of {length} rows have other bits in {what} than alone, first seen {place}"
    return None


def some_layers(num_layers: int) -> tuple[int, ...]:
    """NUM_TAPS layers or all there are, the last one among them."""
    return tuple(sorted({(place + 1) * num_layers // NUM_TAPS - 1 for place in range(NUM_TAPS)} - {-1}))


def stages_of(outputs: Sequence[ForwardOutput], rows: Sequence[int] | None = None) -> list[Tensor]:
    """What rows of these passes, or all, were behind each tapped layer, and their logits."""
    features = [output.features for output in outputs if output.features is not None]
    stages = [*torch.cat(features).unbind(1), torch.cat([output.logits for output in outputs])]
    return stages if rows is None else [stage[rows] for stage in stages]


def run_among_siblings(runner: Runner, text: list[int], taps: tuple[int, ...]) -> list[Tensor]:
    """The stages of the text's rows, each token with siblings before it in the cache, which is empty afterwards."""
    token_ids, depths, on_path = [], [], []
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
