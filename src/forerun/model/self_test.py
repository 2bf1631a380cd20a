"""Does this machine keep the promise of the exact mode? A few passes of the model itself say so."""

import numpy as np
import torch
from torch import Tensor

from forerun.model.inputs import ForwardInput
from forerun.model.runner import Runner

TEXT_LENGTH = 24
SIBLINGS = 3  # wrong tokens between each two of the text, in the tree pass


@torch.inference_mode()
def find_bit_fault(runner: Runner) -> str | None:
    """What differs, or None: rows alone, in a prefill, and in a tree with siblings.

    The tree is run on another number of threads where the kernels promise that this changes nothing either.

    The cache must be empty, and is so afterwards.
    """
    length = min(TEXT_LENGTH, runner.cache.capacity // (SIBLINGS + 1))
    text = [(7 * place + 1) % runner.spec.vocab_size for place in range(length)]
    num_threads = torch.get_num_threads()
    alone = torch.cat([runner.extend([token], num_logit_rows=1) for token in text])
    runner.forget()
    prefilled = runner.extend(text, num_logit_rows=length)
    runner.forget()
    try:
        if runner.backend.thread_exact:
            torch.set_num_threads(1 if num_threads > 1 else 2)
        among_siblings = run_among_siblings(runner, text)
    finally:
        torch.set_num_threads(num_threads)
    for what, rows in (("a prefill", prefilled), ("a tree with siblings", among_siblings)):
        different = (rows != alone).any(-1)
        if bool(different.any()):
            return f"{int(different.sum())} of {length} rows have other bits in {what} than alone"
    return None


def run_among_siblings(runner: Runner, text: list[int]) -> Tensor:
    """Logits of the text's rows, each token with siblings before it in the cache; the cache is empty afterwards."""
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
    logits = runner.forward(
        ForwardInput(
            token_ids=token_ids,
            positions=depths,
            first_slot=runner.cache.end,
            prefix_len=0,
            ancestry=ancestry,
            num_logit_rows=len(token_ids),
        )
    )
    runner.forget()
    return logits[on_path]
