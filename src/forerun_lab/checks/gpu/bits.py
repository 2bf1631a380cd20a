"""Do rows keep their bits on this device? Random texts and trees through models of real widths."""

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from forerun.model.runner import Runner
from forerun_lab.checks.gpu.cases import Case, Row, Setting
from forerun_lab.checks.gpu.layers import FEW_TOKENS
from forerun_lab.checks.gpu.models import Model, models
from forerun_lab.checks.gpu.passes import runner_of
from forerun_lab.checks.row_bits import Tally, play

MODELS = ("1b bf16", "8b bf16", "8b int4", "70b int4", "qwen2-7b bf16")
CHECKS = 5000  # in all
CAPACITY = 1536
BORDERS = (0, 1, 127, 128, 129, 255, 256, 257, 383, 512, 700, 1023)  # lengths of texts, about those of splits
MOST_ROWS = 32
MOST_PREFILL = 256
REHEARSED_PREFILL = 40


def cases(setting: Setting) -> Iterator[Case]:
    chosen = models(setting, *MODELS[: 1 if setting.is_rehearsal else 2 if setting.is_quick else None])
    for model in chosen:
        for num_layers in (1, 2):
            number = CHECKS // (2 * len(chosen)) + 1
            yield Case(
                name=f"{model}, layers: {num_layers}",
                run=partial(check, model, num_layers, 4 if setting.is_rehearsal else number, setting),
                warm=partial(warm_up, model, setting) if num_layers == 1 else None,
            )


def small(model: Model, num_layers: int) -> Model:
    """As wide as the model, with few layers and tokens."""
    spec = replace(model.spec, num_layers=num_layers, vocab_size=min(model.spec.vocab_size, 8 * FEW_TOKENS))
    return replace(model, spec=spec)


def warm_up(model: Model, setting: Setting) -> None:
    runner = runner_of(small(model, 2), setting, capacity=CAPACITY)
    tally = Tally()
    for number in range(1 if setting.is_rehearsal else 6):
        trial(runner, random.Random(number), tally, setting)


@torch.inference_mode()
def check(model: Model, num_layers: int, num_checks: int, setting: Setting) -> Iterator[Row]:
    runner = runner_of(small(model, num_layers), setting, capacity=CAPACITY)
    tally = Tally()
    rng = random.Random(f"{model} {num_layers}")
    trials = 0
    while tally.checks < num_checks and setting.left_s > 0:
        trial(runner, rng, tally, setting)
        trials += 1
    yield {
        "model": str(model), "layers": num_layers, "trials": trials, "checks": tally.checks,
        "different_rows": tally.rows, "different_bits": tally.bits, "largest_difference": tally.largest,
        "first_difference": tally.first, "by_place": tally.by_place,
    }  # fmt: skip


def trial(runner: Runner, rng: random.Random, tally: Tally, setting: Setting) -> None:
    length = rng.choice((4, 36)) if setting.is_rehearsal else max(1, rng.choice(BORDERS) + rng.randrange(-2, 12))
    num_rows = rng.randint(2, 4 if setting.is_rehearsal else MOST_ROWS)
    most = REHEARSED_PREFILL if setting.is_rehearsal else MOST_PREFILL
    play(runner, rng, tally, length=length, num_rows=num_rows, most_prefill=most)
