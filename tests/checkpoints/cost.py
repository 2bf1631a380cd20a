"""What a foreign checkpoint costs a process of its own, and what becomes of it."""

import os
import resource
import traceback
from collections.abc import Callable
from time import process_time

from forerun.checkpoints.source import CheckpointSource
from forerun.cli.model_sheet import read_sheet
from forerun.core.config import EngineConfig
from forerun.core.errors import ForerunError
from forerun.engine.model_loading import Checkpoint, resolve_max_length

KIBIBYTE = 1024  # what ru_maxrss counts in
Read = Callable[[CheckpointSource, Checkpoint], None]


def outcome(source: CheckpointSource, read_weights: Read) -> str:
    """ "loaded", or the line that refuses it; all that an engine reads is read, in its order."""
    read_sheet(source)
    try:
        config = EngineConfig(target=source.name)
        checkpoint = Checkpoint.open(source, config)
        resolve_max_length(config, checkpoint.spec)
        for read in (source.tokenizer, source.stop_ids, source.default_sampling, source.identity):
            read()
        read_weights(source, checkpoint)
    except ForerunError as error:
        return str(error)
    return "loaded"


def cost(source: CheckpointSource, read_weights: Read) -> tuple[str, float, int]:
    """What becomes of a checkpoint in a process of its own, its CPU seconds and the memory above the start."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = process_time()
        status = "traceback"
        try:
            status = "loaded" if outcome(source, read_weights) == "loaded" else "refused"
        finally:
            if status == "traceback":
                traceback.print_exc()
            num_bytes = KIBIBYTE * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
            os.write(writing, f"{status} {process_time() - began} {num_bytes}".encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        status, seconds, num_bytes = (pipe.read() or "killed 0 0").split()
    os.waitpid(pid, 0)
    return status, float(seconds), int(num_bytes)


def forked(answer: Callable[[], str]) -> tuple[str, float]:
    """What a process of its own answers, and its CPU seconds; a process that dies answers how it ended."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        began = process_time()
        said = "traceback"
        try:
            said = answer()
        finally:
            if said == "traceback":
                traceback.print_exc()
            os.write(writing, f"{process_time() - began} {said}".encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        seconds, _, said = pipe.read().partition(" ")
    _, status = os.waitpid(pid, 0)
    return (said, float(seconds)) if seconds else (f"ended with status {status}", 0.0)
