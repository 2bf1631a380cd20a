"""A process forked after an engine with two threads has run: torch's threads do not exist in it."""

import os
import signal
from dataclasses import replace
from time import monotonic, sleep

import pytest
import torch

from forerun import Engine, EngineConfig, NoDrafter, SamplingParams, TokenRecycling
from forerun.core.config import KernelsName
from forerun.core.drafter_config import DrafterConfig
from forerun.core.threads import kernel_threads, on_threads
from tests.marks import in_turn

LIMIT_S = 120  # a child that waits for threads that it does not have waits for ever
PROMPT = list(range(5, 305))
ANSWER = SamplingParams(max_new_tokens=12, seed=1, ignore_eos=True)
ASKED = (
    ANSWER,
    replace(ANSWER, temperature=0.8, top_k=50, top_p=0.9, min_p=0.02, repetition_penalty=1.2, logit_bias={5: 1.0}),
    replace(ANSWER, temperature=0.8, logprobs=5),
)


DRAFTERS: tuple[DrafterConfig, ...] = (NoDrafter(), TokenRecycling(adaptive=False))


@pytest.mark.parametrize(("kernels", "drafter"), in_turn(["torch", "auto"], DRAFTERS, 1))
def test_a_forked_process_writes_the_same_texts(drafter: DrafterConfig, kernels: KernelsName) -> None:
    with Engine(EngineConfig(drafter=drafter, max_length=2048, num_threads=2, kernels=kernels)) as engine:
        expected = [engine.generate(PROMPT, params).token_ids for params in ASKED]
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                texts = [engine.generate(PROMPT, params).token_ids for params in ASKED]
                used = [on_threads(2, count) for count in (kernel_threads, torch.get_num_threads)]
                status = int(texts != expected or used != [2, 1])
            finally:
                os._exit(status)
        until = monotonic() + LIMIT_S
        while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
            if monotonic() > until:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                pytest.fail("the forked process waits for ever")
            sleep(0.05)
        assert ended[1] == 0
