"""forerun perplexity: how well a model predicts a text."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from forerun.cli.engine_loading import open_engine
from forerun.cli.failures import find_model
from forerun.cli.flags import option, with_flags_of, with_options
from forerun.cli.options import SHOWN, engine_config
from forerun.core.config import EngineConfig
from forerun.core.drafter_config import NoDrafter
from forerun.core.errors import require
from forerun_lab.cli.prepare import read_text


@with_flags_of(
    EngineConfig,
    panel=None,
    only=("dtype", "weights", "inputs", "device", "kernels", "num_threads", "target_ranks"),
    shown=SHOWN,
)
class PerplexityMachine:
    """Number formats, device and threads."""


@with_options(PerplexityMachine)
def perplexity(
    machine: PerplexityMachine,
    model: Annotated[str, typer.Argument(help="Short name, checkpoint folder, GGUF file or hub name.")],
    file: Annotated[Path, typer.Argument(help="The text, in UTF-8.")],
    length: Annotated[int, option("--ctx-size", "-c", help="Tokens of a chunk; its second half is scored.")] = 512,
    num_chunks: Annotated[int | None, option("--chunks", help="Score only the first chunks.")] = None,
    as_json: Annotated[bool, option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show how well a model predicts a text: its perplexity as llama-perplexity defines it, and the standard error.

    Each chunk is read on its own, after the model's BOS token if it has one.
    """
    require(num_chunks is None or num_chunks >= 1, f"--chunks {num_chunks} must be >= 1")
    text = read_text(file)
    find_model(model)
    config = engine_config(machine, target=model, drafter=NoDrafter(), max_length=length + 1, cache_bytes=0)
    with open_engine(config) as engine:
        from forerun_lab.perplexity import chunks_of, running_losses  # imports torch

        chunks = chunks_of(engine, text, length)[:num_chunks]
        running = sys.stderr if as_json else sys.stdout
        for number, losses in enumerate(running_losses(engine, chunks), 1):
            print(f"[{number}]{losses.perplexity:.4f},", end="", file=running, flush=True)
        print(file=running)
    if as_json:
        found = {"model": model, "file": str(file), "ctx_size": length, "chunks": len(chunks)}
        print(
            json.dumps({**found, "tokens": losses.num_tokens, "perplexity": losses.perplexity, "error": losses.error})
        )
    else:
        print(f"PPL = {losses.perplexity:.4f} +/- {losses.error:.5f} ({losses.num_tokens} tokens scored)")
