"""Further devices: a process of its own writes texts on each while the first one trains."""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import torch

from forerun.distill.config import DistillConfig

END_S: Final = 10.0  # to end in, before a process is killed


@contextmanager
def writing_elsewhere(config: DistillConfig, write: Callable[[DistillConfig, str], None]) -> Iterator[None]:
    """Texts come from the other devices meanwhile; the training takes them up at its next pass over the texts.

    Args:
        write: a module's function that writes texts under a name of their own while `is_wanted`.
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
    """The devices beside the one that trains: those asked for, else every other GPU where the device is "cuda"."""
    if config.other_devices is not None:
        return config.other_devices
    count = torch.cuda.device_count() if config.engine.device == "cuda" else 1
    return tuple(f"cuda:{number}" for number in range(1, count))


def on_device(config: DistillConfig, device: str) -> DistillConfig:
    """The same without the given texts, which the first process reads."""
    return replace(config, engine=replace(config.engine, device=device), text=())


def is_wanted() -> bool:
    """In a process that writes: the one that trains is still there."""
    parent = multiprocessing.parent_process()
    return parent is not None and parent.is_alive()
