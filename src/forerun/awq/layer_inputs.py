"""What the linear layers of a model read while it reads a text.

Legend: T tokens of a window, N rows that are kept, I input features, V vocabulary.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from forerun.model.executor import Observer
from forerun.model.inputs import ForwardInput
from forerun.model.program import Op
from forerun.model.runner import Runner

MAX_ROWS: Final = 256  # of each layer that are kept, to weigh errors by


class LayerInputs:
    """The mean size of every input of a layer, and a sample of whole rows, by the name of the layer.

    Args:
        num_tokens: that will be read, over which the kept rows are spread evenly.
    """

    def __init__(self, num_tokens: int) -> None:
        self._stride = -(-num_tokens // MAX_ROWS)
        self._sums: dict[str, Tensor] = {}
        self._rows: dict[str, list[Tensor]] = {}
        self._num_rows: dict[str, int] = {}

    def observe(self, op: Op, written: Tensor) -> None:
        """Take what was written, where a linear layer is the next to read it."""
        name = reader_of(op)
        if name is None:
            return
        rows_TI = written.reshape(len(written), -1).float()
        sums_I = rows_TI.abs().sum(0)
        self._sums[name] = sums_I if name not in self._sums else self._sums[name] + sums_I
        self._rows.setdefault(name, []).append(rows_TI[:: self._stride].cpu())
        self._num_rows[name] = self._num_rows.get(name, 0) + len(rows_TI)

    def means(self, name: str) -> Tensor:
        """float32 [I]"""
        return self._sums[name].cpu() / self._num_rows[name]

    def rows(self, name: str) -> Tensor:
        """float32 [N, I]"""
        return torch.cat(self._rows[name])


def reader_of(op: Op) -> str | None:
    """The layer that reads what an op writes; None where it is none of those that are packed."""
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


def perplexity(runner: Runner, windows: Sequence[Sequence[int]]) -> float:
    """Of every token but the first of each window, the first being read alone."""
    loss, num_tokens = 0.0, 0
    for token_ids in windows:
        scores_TV = read_window(runner, token_ids)[:-1].float().log_softmax(-1)
        next_T = torch.tensor(token_ids[1:], device=scores_TV.device)
        loss -= scores_TV.gather(1, next_T[:, None]).double().sum().item()
        num_tokens += len(next_T)
    return float(torch.tensor(loss / num_tokens, dtype=torch.float64).exp())
