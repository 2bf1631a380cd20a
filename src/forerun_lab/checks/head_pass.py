"""How long a pass of a draft head takes on the CPU, beside the time in which its weights can be read from memory.

The first pass of a round comes after the target's, which reads its weights, the others follow at once: so passes are
timed in turn with reads of more memory than the caches hold, and in a row. The floor is reading the head's weights.
python -m forerun_lab.checks.head_pass --target smollm2 --draft HEAD
"""

import gc
import time
from collections.abc import Callable
from statistics import median
from typing import Final

import numpy as np
import torch

from forerun import Engine
from forerun.backends.cpu.draft_linear import DraftLinear
from forerun.backends.cpu.executor import NativeLayers
from forerun.core.drafter_config import DraftHead
from forerun.drafting.heads.drafter import HeadDrafter
from forerun.drafting.heads.eagle_network import ProgramEagleExecutor
from forerun.drafting.heads.executor import HeadExecutor
from forerun.model.executor import ForwardInput
from forerun_lab.checks.common import config_of, standard_arguments, write_results

WIDTHS: Final = (1, 2, 4, 8)
CONTEXT: Final = 200
REPEATS: Final = 100
PROMPT: Final = 256
READ_BYTES: Final = 256 << 20
SLEEP_S: Final = 0.5  # until torch's threads sleep


def pass_of(executor: HeadExecutor, num_rows: int) -> Callable[[], object]:
    """A pass of so many children of the last token of a text of `CONTEXT` tokens."""
    states_TH = torch.randn(num_rows, executor.body.hidden_size)
    inputs = ForwardInput(
        token_ids=list(range(1, num_rows + 1)), positions=[CONTEXT] * num_rows, first_slot=CONTEXT, prefix_len=CONTEXT,
        ancestry=np.eye(num_rows, dtype=np.bool_), num_logit_rows=num_rows,
    )  # fmt: skip
    return lambda: executor.starting_from(states_TH).run(inputs)


def reading_of(executor: HeadExecutor) -> Callable[[], object]:
    """A pass that reads `PROMPT` tokens behind twice as many."""
    first = 2 * PROMPT
    states_TH = torch.randn(PROMPT, executor.body.hidden_size)
    inputs = ForwardInput(
        token_ids=list(range(PROMPT)), positions=list(range(first, first + PROMPT)), first_slot=first, prefix_len=first,
        num_logit_rows=0,
    )  # fmt: skip
    return lambda: executor.starting_from(states_TH).run(inputs)


def milliseconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - began)


def main() -> None:
    arguments = standard_arguments(__doc__, "head_pass", num_prompts=1, num_new=1).parse_args()
    torch.set_num_threads(arguments.threads)
    with Engine(config_of(arguments, drafter=DraftHead(model=arguments.draft, adaptive=False))) as engine:
        (drafter,) = engine.drafting.held.values()
        assert isinstance(drafter, HeadDrafter), "a head of fixed widths"
        executor = drafter._runner.executor
        assert isinstance(executor, HeadExecutor), type(executor)
        linears = [each for each in gc.get_objects() if isinstance(each, DraftLinear)]
        sizes = [linear.num_bytes for linear in linears]
        if isinstance(executor, ProgramEagleExecutor) and isinstance(executor.layers, NativeLayers):
            sizes += [part.num_bytes for linear in executor.layers.lowering.linears.values() for part in linear.parts()]
        num_bytes = sum(sizes)
        executor.clear([0])  # as in a text, whose first token has no row
        memory = torch.ones(READ_BYTES // 4)
        rows = list[dict[str, object]]()
        floor_ms = median(milliseconds(memory.sum) for _ in range(REPEATS)) * num_bytes / READ_BYTES
        time.sleep(SLEEP_S)
        reading = reading_of(executor)
        reading_ms = median(milliseconds(reading) for _ in range(REPEATS // 5))
        for width in WIDTHS:
            one = pass_of(executor, width)
            warm_ms = median(milliseconds(one) for _ in range(REPEATS))
            cold_ms = median(milliseconds(one) for _ in range(REPEATS) if memory.numpy().sum())
            rows.append({
                "rows": width, "ms, in turn with reads": f"{cold_ms:.3f}", "over floor": f"{cold_ms / floor_ms:.2f}",
                "ms, in a row": f"{warm_ms:.3f}", "over": f"{warm_ms / floor_ms:.2f}",
            })  # fmt: skip
    notes = [
        f"{num_bytes / 1e6:.1f} MB of packed weights, read in {floor_ms:.3f} ms at the speed of summing 256 MiB.",
        f"Reading {PROMPT} tokens of a prompt behind {2 * PROMPT}: {reading_ms:.2f} ms.",
        f"{len(sizes)} products; medians of {REPEATS} passes.",
    ]
    write_results(arguments, "A pass of a draft head, beside reading its weights", rows, notes)


if __name__ == "__main__":
    main()
