"""forerun prepare --quantize awq: a model packed in 4 bits, in a new folder."""

from pathlib import Path
from typing import TYPE_CHECKING

from forerun.checkpoints.source import CheckpointSource
from forerun.cli.failures import find_model, say
from forerun.cli.progress import progress
from forerun.cli.sheet import size
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError, require
from forerun.core.output_file import require_writable

if TYPE_CHECKING:
    from forerun_lab.awq.run import AwqReport


def prepare_awq(config: EngineConfig, out: Path | None, calib: Path | None) -> None:
    """Pack the config's target on the CPU and print the result.

    Raises:
        ConfigError: no folder was named, the text cannot be read, or the model cannot be packed.
    """
    if out is None:
        raise ConfigError("no folder is named for the packed model: add --out FOLDER")
    is_default = (config.device, config.dtype, config.weights) == ("cpu", "auto", "stored")
    require(is_default, "a model is packed in float32 on the CPU: leave --device, --dtype and --weights out")
    require_writable(out)
    source = find_model(config.target)
    text = calibration_text(calib)
    report = pack(source, out, text, config.num_threads)
    say(f"written to {report.folder}, {size(report.num_bytes)}")


def pack(source: CheckpointSource, out: Path, text: str, num_threads: int | None) -> "AwqReport":
    """Pack a model and print its perplexity before and after."""
    from forerun.core.affinity import usable_cores
    from forerun.core.threads import on_threads
    from forerun.engine.placement import allowed_threads
    from forerun_lab.awq.run import pack_model  # imports torch

    with progress("packing") as show:
        threads = allowed_threads(num_threads, usable_cores())
        report = on_threads(threads, lambda: pack_model(source, out, text, show))
    before = report.perplexity_before
    after = report.perplexity_after
    print(
        f"groups of {report.group_size} inputs, calibrated with {report.num_calibrated} tokens; on "
        f"{report.num_measured} others the perplexity is {after:.3f}, before {before:.3f} ({after / before - 1:+.2%})"
    )
    return report


def calibration_text(path: Path | None) -> str:
    """The text of a file; without one, the package's own prompts.

    Raises:
        ConfigError: it cannot be read.
    """
    if path is None:
        from forerun_lab.bench.data.datasets import questions_in

        return "\n\n".join(turn for question in questions_in(None) for turn in question.turns)
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as text ({error}): give a UTF-8 file") from error
