"""What an engine runs before the first request."""

from math import inf

import pytest
import torch

from forerun.decoding.drafters import Drafters
from forerun.decoding.host_loop import HostDecoder
from forerun.engine.opening import WIDE_PROMPT, warm_up
from forerun.engine.threads_and_cores import CorePlacement
from forerun.model.executor import ForwardInput, ForwardOutput, Observer
from tests.tiny import plain_spec, random_weights, tiny_runner


def test_the_passes_of_a_long_prompt_run_once_where_kernels_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = plain_spec()
    runner = tiny_runner(spec, random_weights(spec, torch.Generator().manual_seed(0)))
    run = runner.executor.run
    widths = []

    def note(inputs: ForwardInput, observe: Observer | None) -> ForwardOutput:
        widths.append(len(inputs.token_ids))
        return run(inputs, observe)

    monkeypatch.setattr(runner.executor, "run", note)
    warm_up(runner, (HostDecoder(runner, Drafters()),), CorePlacement(), runner.cache.capacity, WIDE_PROMPT, inf)
    assert max(widths) > 32, "more rows than a tree has"
    assert min(widths) == 1
    assert not runner.cached_ids
