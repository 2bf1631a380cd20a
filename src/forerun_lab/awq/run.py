"""Convert a folder of plain weights into one packed in 4 bits by AWQ."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from forerun.backends.choose import choose_backend
from forerun.backends.dtypes import Conditions
from forerun.checkpoints.huggingface.folder import HuggingFaceFolder
from forerun.checkpoints.huggingface.load import load_weights
from forerun.checkpoints.huggingface.packed_tensors import IN_WORD
from forerun.checkpoints.safetensors.header import ITEM_BYTES
from forerun.checkpoints.source import CheckpointSource
from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.core.errors import ConfigError
from forerun.core.mechanisms import WINDOW as SLIDING
from forerun.core.mechanisms import lacking, mechanisms_of
from forerun.core.model_spec import ModelSpec
from forerun.model.quantise import GROUP_SIZES
from forerun.model.runner import Runner
from forerun.model.weights import Int4Weight, WeightSource
from forerun_lab.awq.folder import stored_tensors, write_folder
from forerun_lab.awq.layer import LayerPacker
from forerun_lab.awq.layer_inputs import LayerInputs, perplexity, read_window

WINDOW: Final = 512  # tokens read at once, from an empty cache
HELD_OUT: Final = 4  # one window in four is not used for calibration but measured
PACKED_FAMILIES: Final = ("llama", "mistral", "qwen2", "qwen3")
OnStep = Callable[[int, int], None]  # number of steps done so far, number of all steps


@dataclass(frozen=True, slots=True, kw_only=True)
class AwqReport:
    """The result of packing a model.

    Args:
        num_calibrated, num_measured: tokens of text.
        perplexity_before, perplexity_after: on the measured text, which was not used in calibration.
    """

    folder: Path
    group_size: int
    num_calibrated: int
    num_measured: int
    perplexity_before: float
    perplexity_after: float
    num_bytes: int


def pack_model(source: CheckpointSource, out: Path, text: str, on_step: OnStep) -> AwqReport:
    """Pack a model on the CPU, in float32, and write its folder; the model must fit in memory.

    Args:
        text: the model reads it to measure the inputs of its layers.
        on_step: called after each window of text and each layer.

    Raises:
        ConfigError: AWQ's layout cannot hold the model, the text is too short, or `out` exists or cannot be written.
        CheckpointError: the model cannot be read.
    """
    spec = source.spec()
    require_plain(spec, source.name)
    folder = plain_folder(source)
    group_size = find_group_size(spec)
    if out.exists():
        raise ConfigError(f"{out} exists already: name a folder that does not exist")
    calibrated, measured = windows_of(source, text, spec)
    weights = load_weights(folder, spec, dtype=torch.float32)
    runner = open_runner(spec, LoadedWeights(weights))
    inputs = LayerInputs(sum(map(len, calibrated)))
    num_done = 0
    num_steps = len(calibrated) + 2 * len(measured) + spec.num_layers

    def step() -> None:
        nonlocal num_done
        num_done += 1
        on_step(num_done, num_steps)

    for window in calibrated:
        read_window(runner, window, inputs.observe)
        step()
    before = perplexity(runner, measured, step)
    dtype = getattr(torch, source.stored_dtype())
    del runner
    packer = LayerPacker(spec=spec, weights=weights, inputs=inputs, group_size=group_size, dtype=dtype)
    packed: dict[str, Int4Weight] = {}
    for layer in range(spec.num_layers):
        packed |= packer.pack(layer)
        step()
    write_folder(out, folder, stored_tensors(spec, packed, weights, dtype), group_size)
    written = HuggingFaceFolder(name=str(out), folder=out)
    return AwqReport(
        folder=out,
        group_size=group_size,
        num_calibrated=sum(map(len, calibrated)),
        num_measured=sum(map(len, measured)),
        perplexity_before=before,
        perplexity_after=perplexity(open_runner(spec, written.weights(dtype=torch.float32)), measured, step),
        num_bytes=sum(written.stored_formats().values()),
    )


def plain_folder(source: CheckpointSource) -> Path:
    """The folder of a model's plain weights.

    Raises:
        ConfigError: the weights are quantised already, or not in a folder with safetensors.
    """
    if isinstance(source, HuggingFaceFolder) and len(source.stored_formats().keys() - ITEM_BYTES.keys()) == 0:
        return source.folder
    raise ConfigError(
        f"{source.name} holds weights in {', '.join(source.stored_formats())}, but AWQ is made from the plain weights "
        "of a folder with safetensors: give the original checkpoint"
    )


def require_plain(spec: ModelSpec, name: str) -> None:
    """Refuse a model whose layers AWQ cannot pack.

    Raises:
        ConfigError: names the reason.
    """
    missing = lacking(mechanisms_of(spec, spec.max_positions) - {SLIDING}, frozenset(), "AWQ's scales")
    if missing or spec.family not in PACKED_FAMILIES:
        reason = missing or f"only those of {', '.join(PACKED_FAMILIES)} are supported"
        raise ConfigError(f"{name} is a {spec.family} model, whose layers AWQ does not pack: {reason}")


def find_group_size(spec: ModelSpec) -> int:
    """The largest of GROUP_SIZES that divides the inputs of every layer, since a folder has one group size.

    Raises:
        ConfigError: no group size does, or the outputs of a layer do not fill whole words.
    """
    inputs = (spec.hidden_size, spec.q_size, spec.intermediate_size)
    outputs = (*inputs, spec.kv_size)
    for size in GROUP_SIZES:
        if not any(num_in % size for num_in in inputs) and not any(num_out % IN_WORD for num_out in outputs):
            return size
    raise ConfigError(
        f"layers of {', '.join(map(str, inputs))} inputs and {spec.kv_size} keys cannot be packed by AWQ's layout, "
        f"whose groups have at least {GROUP_SIZES[-1]} inputs and whose words {IN_WORD} outputs: choose another model"
    )


def windows_of(source: CheckpointSource, text: str, spec: ModelSpec) -> tuple[list[list[int]], list[list[int]]]:
    """Split a text into windows to calibrate with and windows to measure, which are every HELD_OUT-th.

    Raises:
        ConfigError: the text is too short for both.
    """
    token_ids = source.tokenizer().encode(text)
    size = min(WINDOW, spec.max_positions)
    windows = [token_ids[start : start + size] for start in range(0, len(token_ids) - size + 1, size)]
    if len(windows) < HELD_OUT:
        raise ConfigError(
            f"the text has {len(token_ids)} tokens, but {HELD_OUT * size} are needed to calibrate with and to "
            "measure: give a longer file"
        )
    measured = windows[HELD_OUT - 1 :: HELD_OUT]
    del windows[HELD_OUT - 1 :: HELD_OUT]
    return windows, measured


def open_runner(spec: ModelSpec, weights: WeightSource) -> Runner:
    """A model on torch's kernels, because they let an observer read the output of every op."""
    torchs = Conditions(kernels="torch")
    choice = choose_backend("fast", dtype=torch.float32, device="cpu", head_dim=spec.head_dim, conditions=torchs)
    return Runner(spec, weights, backend=choice.backend, capacity=WINDOW, dtype=torch.float32, device="cpu")
