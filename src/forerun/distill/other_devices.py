"""On each further device a process writes texts while the first process trains."""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import torch

from forerun.distill.config import DistillConfig

END_S: Final = 10.0  # time to end before a process is killed


@contextmanager
def writing_elsewhere(config: DistillConfig, write: Callable[[DistillConfig, str], None]) -> Iterator[None]:
    """Write texts on the other devices inside the `with` block; training adds them at its next pass over the texts.

    Args:
        write: a module-level function that writes texts while `is_wanted`; gets the config and a name for its files.
    """
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=write, args=(on_device(config, device), device.replace(":", "")), daemon=True)
        for device in others(config)
    ]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join(END_S)
            process.kill()


def others(config: DistillConfig) -> tuple[str, ...]:
    """The devices that do not train: those in the config, else every other GPU if the device is "cuda"."""
    if config.other_devices is not None:
        return config.other_devices
    count = torch.cuda.device_count() if config.engine.device == "cuda" else 1
    return tuple(f"cuda:{number}" for number in range(1, count))


def on_device(config: DistillConfig, device: str) -> DistillConfig:
    """The config for another device, without the given texts, which the first process reads."""
    return replace(config, engine=replace(config.engine, device=device), text=())


def is_wanted() -> bool:
    """Called in a writing process: whether the training process is still alive."""
    parent = multiprocessing.parent_process()
    return parent is not None and parent.is_alive()
