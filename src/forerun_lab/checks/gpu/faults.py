"""What goes wrong on other people's machines, played: a kernel that does not fit, no memory left, a second device.

A fault that this machine does not have is put in the place of the part that would have it.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from itertools import zip_longest
from unittest.mock import patch

import torch
from triton.runtime.errors import OutOfResources

from forerun.core.config import EngineConfig, KernelsName, SamplingParams
from forerun.core.drafter_config import DrafterConfig, NoDrafter, Parallel
from forerun.core.errors import ConfigError
from forerun.engine.engine import Engine
from forerun_lab.checks.gpu.cases import Case, NotThere, Row, Setting

PROMPTS = ("def quicksort(items):", "import os")
NUM_TOKENS = 24
PLAIN = NoDrafter()
MEMORY_SHARE = 1e-3  # Of the device: less than the built-in model takes.


def cases(setting: Setting) -> Iterator[Case]:
    yield Case(name="a kernel that does not fit", run=partial(kernel_does_not_fit, setting))
    yield Case(name="no memory left", run=partial(no_memory, setting))
    yield Case(name="a second device", run=partial(second_device, setting))
    yield Case(name="a drafter on the second device", run=partial(drafter_on_second_device, setting))


def kernel_does_not_fit(setting: Setting) -> Iterator[Row]:
    """Triton refuses a kernel of a pass: opening ends with an error that names what it takes."""
    refusal = OutOfResources(294912, 232448, "shared memory")
    executor = "forerun.backends.gpu.executor.DeviceExecutor.run"
    if setting.is_rehearsal:
        executor = "forerun.backends.cpu.executor.NativeExecutor.run"
    yield refused_opening(setting, patch(executor, side_effect=refusal), "shared memory")


def no_memory(setting: Setting) -> Iterator[Row]:
    """Opening ends with an error that says so, and the device is usable again afterwards."""
    if setting.is_rehearsal:
        refusal = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        yield refused_opening(setting, patch("forerun.model.runner.TreeCache", side_effect=refusal), "memory")
        return
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(MEMORY_SHARE)
    try:
        yield refused_opening(setting, ExitStack(), "memory")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    with Engine(config_of(setting, number=0)) as engine:
        yield {"then": "opens", "num_tokens": len(engine.generate(PROMPTS[0], params_of(0.0)).token_ids)}


def refused_opening(setting: Setting, fault: AbstractContextManager[object], named: str) -> Row:
    try:
        with fault, Engine(config_of(setting, number=0)):
            pass
    except ConfigError as error:
        refusal = str(error)
    else:
        raise AssertionError("the engine opened")
    assert named in refusal, f"{refusal} does not name {named}"
    return {"refused": refusal}


def second_device(setting: Setting) -> Iterator[Row]:
    """Two engines in one process, each on a device of its own, write in turn what each writes alone."""
    for temperature in (0.0, 1.0):
        params = params_of(temperature)
        with ExitStack() as opened:
            engines = [opened.enter_context(Engine(config_of(setting, number=number))) for number in (0, 1)]
            alone = [engine.generate(prompt, params).token_ids for engine, prompt in zip(engines, PROMPTS, strict=True)]
            streams = [engine.stream(prompt, params) for engine, prompt in zip(engines, PROMPTS, strict=True)]
            for _ in zip_longest(*streams):
                pass
            in_turn = [stream.result().token_ids for stream in streams]
        assert in_turn == alone, f"{in_turn} is not {alone}"
        yield {"temperature": temperature, "devices": 2, "texts": "equal"}


def drafter_on_second_device(setting: Setting) -> Iterator[Row]:
    """A parallel drafter in a process of its own, on the second device: the text is the plain one."""
    drafter = Parallel(device=device_of(setting, number=1))
    for temperature in (0.0, 1.0):
        texts = []
        for each in (PLAIN, drafter):
            with Engine(config_of(setting, number=0, drafter=each)) as engine:
                texts.append(engine.generate(PROMPTS[0], params_of(temperature)).token_ids)
        assert texts[0] == texts[1], f"{texts[1]} is not {texts[0]}"
        yield {"temperature": temperature, "devices": 2, "texts": "equal"}


def params_of(temperature: float) -> SamplingParams:
    return SamplingParams(temperature=temperature, seed=1, max_new_tokens=NUM_TOKENS, ignore_eos=True)


def config_of(setting: Setting, *, number: int, drafter: DrafterConfig = PLAIN) -> EngineConfig:
    kernels: KernelsName = "auto" if setting.is_rehearsal else "triton"
    return EngineConfig(drafter=drafter, device=device_of(setting, number=number), kernels=kernels, max_length=512)


def device_of(setting: Setting, *, number: int) -> str:
    """In a rehearsal the one CPU is every device."""
    if setting.is_rehearsal:
        return "cpu"
    if number >= torch.cuda.device_count():
        raise NotThere("this machine has one GPU")
    return f"cuda:{number}"
