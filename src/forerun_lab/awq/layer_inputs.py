"""The inputs of a model's linear layers, recorded while it reads a text.

Legend: T tokens of a window, N rows that are kept, I input features, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from forerun.model.executor import ForwardInput, Observer
from forerun.model.program import Op
from forerun.model.runner import Runner
from forerun_lab.perplexity import Losses

MAX_ROWS: Final = 256  # input rows kept per layer, which rounding errors are measured on


class LayerInputs:
    """For each layer, by name, the mean magnitude of every input and a sample of whole rows.

    Args:
        num_tokens: how many tokens will be read; the kept rows are spread evenly over them.
    """

    def __init__(self, num_tokens: int) -> None:
        self._stride = -(-num_tokens // MAX_ROWS)
        self._sums: dict[str, Tensor] = {}
        self._rows: dict[str, list[Tensor]] = {}
        self._num_rows: dict[str, int] = {}

    def observe(self, op: Op, written: Tensor) -> None:
        """Record an op's output if a linear layer reads it next."""
        name = reader_of(op)
        if name is None:
            return
        rows_TI = written.reshape(len(written), -1).float()
        self._sums[name] = self._sums.get(name, 0.0) + rows_TI.abs().sum(0)
        self._rows.setdefault(name, []).append(rows_TI[:: self._stride].cpu())
        self._num_rows[name] = self._num_rows.get(name, 0) + len(rows_TI)

    def means(self, name: str) -> Tensor:
        """float32 [I]"""
        return self._sums[name].cpu() / self._num_rows[name]

    def rows(self, name: str) -> Tensor:
        """float32 [N, I]"""
        return torch.cat(self._rows[name])


def reader_of(op: Op) -> str | None:
    """The packed layer that reads an op's output; None if no packed layer reads it."""
    match op.kind:
        case "norm" if op.sublayer is not None:
            return op.weights.replace("attention_norm", "qkv").replace("mlp_norm", "gate_up")
        case "tree_attention":
            return f"layers.{op.layer}.attention_out"
        case "silu_mul":
            return f"layers.{op.layer}.mlp_out"
        case _:
            return None


def read_window(runner: Runner, token_ids: Sequence[int], observe: Observer | None = None) -> Tensor:
    """Logits [T, V] of a text read from an empty cache."""
    runner.forget()
    inputs = ForwardInput(
        token_ids=list(token_ids),
        positions=list(range(len(token_ids))),
        first_slot=runner.cache.end,
        prefix_len=0,
        num_logit_rows=len(token_ids),
    )
    return runner.forward(inputs, observe).logits


def perplexity(runner: Runner, windows: Sequence[Sequence[int]], step: Callable[[], None]) -> float:
    """Perplexity over all tokens except the first of each window, which has no context.

    Args:
        step: called after each window.
    """
    losses = Losses()
    for token_ids in windows:
        scores_TV = read_window(runner, token_ids)[:-1].float().log_softmax(-1)
        next_T = torch.tensor(token_ids[1:], device=scores_TV.device)
        losses.add((-scores_TV.gather(1, next_T[:, None])[:, 0]).tolist())
        step()
    return losses.perplexity
