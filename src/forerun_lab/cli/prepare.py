"""forerun prepare: a model packed in 4 bits, divided among ranks, or searched for sublayers that it can skip."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Annotated, Final, Literal, cast

import typer

from forerun.checkpoints.huggingface.folder import HuggingFaceFolder
from forerun.checkpoints.prepared.manifest import VERSION, StoredDType, rank_name
from forerun.checkpoints.source import CheckpointSource
from forerun.cli.engine_loading import prepared_sets
from forerun.cli.failures import find_model, say
from forerun.cli.flags import option, output, with_options
from forerun.cli.model_sheet import size
from forerun.cli.options import MachineOptions, engine_config
from forerun.cli.progress import progress
from forerun.core.config import DTypeName, EngineConfig, SamplingParams
from forerun.core.drafter_config import BUILTIN_TARGET, LayerSkip
from forerun.core.errors import ConfigError, require
from forerun.core.model_spec import WeightFormat
from forerun.core.output_file import require_writable
from forerun.core.paths import cache_folder
from forerun.core.sublayers import ATTENTION, MLP, SkipSet
from forerun.sharding.plan import require_divisible
from forerun_lab.awq.resumable_folder import require_room, resumable_folder

if TYPE_CHECKING:
    from forerun.engine.engine import Engine
    from forerun_lab.awq.run import AwqReport
    from forerun_lab.skip_finder import Findings

PACKED: Final = "packed"  # the model in 4 bits, until its parts are written


@with_options(MachineOptions)
def prepare(
    machine: MachineOptions,
    model: Annotated[str, typer.Argument(help="Checkpoint folder, GGUF file or hub name.")] = BUILTIN_TARGET,
    quantize: Annotated[
        Literal["awq"] | None, option("--quantize", help="Pack a folder's plain weights in 4 bits, into --out.")
    ] = None,
    target_ranks: Annotated[
        int | None, option("--target-ranks", help="Write the parts of this many ranks, into --out.")
    ] = None,
    calib: Annotated[Path | None, option("--calib", help="Text to quantize by [the built-in prompts].")] = None,
    layer_skip: Annotated[
        bool, option("--layer-skip", help="Find sublayers that the model can skip when it drafts for itself.")
    ] = False,
    data: Annotated[Path | None, option("--data", help="A question file; default: the built-in prompts.")] = None,
    out: Annotated[
        Path | None,
        output(
            "--out",
            metavar="PATH",
            help="Folder to write; with --layer-skip, a file [next to the model, or in the cache].",
        ),
    ] = None,
    num_prompts: Annotated[int, option("--num-prompts", help="Maximum number of questions.")] = 64,
    max_new_tokens: Annotated[int, option("--max-new-tokens", help="Maximum tokens per answer.")] = 128,
    temperature: Annotated[float, option("--temperature", help="0 is greedy.")] = 0.0,
    seed: Annotated[int, option("--seed", help="Seed for sampling and search.")] = 1,
    draft_weights: Annotated[
        WeightFormat, option("--draft-weights", help="Copy of the weights to draft with.")
    ] = "plain",
) -> None:
    """Pack weights in 4 bits (--quantize awq), divide them among ranks (--target-ranks), or find sublayers to skip
    (--layer-skip)."""
    if (quantize is not None or target_ranks is not None) == layer_skip:
        raise ConfigError(
            "say what to prepare: --layer-skip finds sublayers to skip in self-speculation; --quantize awq packs "
            "weights in 4 bits, --target-ranks writes each rank's part, and these two can be combined"
        )
    if target_ranks is not None:
        config = engine_config(machine, target=model, target_ranks=target_ranks)
        prepare_ranks(config, out, is_packed=quantize is not None, calib=calib)
        return
    if quantize is not None:
        prepare_awq(engine_config(machine, target=model), out, calib)
        return
    require(num_prompts >= 1, f"num_prompts {num_prompts} must be >= 1")
    params = SamplingParams(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    config = engine_config(machine, target=model)
    prepare_sets(config, out, params, data=data, num_prompts=num_prompts, weights=draft_weights)


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
    from forerun.engine.threads_and_cores import allowed_threads
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
    """The text of a file; without one, the package's own prompts."""
    if path is None:
        from forerun_lab.bench.data.datasets import questions_in

        return "\n\n".join(turn for question in questions_in(None) for turn in question.turns)
    return read_text(path)


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as text ({error}): give a UTF-8 file") from error


def prepare_ranks(config: EngineConfig, out: Path | None, *, is_packed: bool, calib: Path | None) -> None:
    """Write each rank's part of the config's target, and print the result.

    Args:
        is_packed: whether AWQ packs the weights first.

    Raises:
        ConfigError: no folder was named, or the model cannot be prepared in this way.
        CheckpointError: the model cannot be read.
    """
    if out is None:
        raise ConfigError("no folder is named for the prepared model: add --out FOLDER")
    require(
        (config.device, config.dtype) == ("cpu", "auto"),
        "a model is prepared on the CPU, in its own dtype: leave --device and --dtype out",
    )
    require(not is_packed or config.weights == "stored", "AWQ packs weights in 4 bits: leave --weights out")
    source = plain_source(config.target)
    require_divisible(source.spec())
    text = calibration_text(calib) if is_packed else ""
    job = {
        "identity": source.identity(), "ranks": config.target_ranks, "weights": config.weights, "awq": is_packed,
        "text": sha256(text.encode()).hexdigest(), "version": VERSION,
    }  # fmt: skip
    with resumable_folder(out, job) as folder:
        if is_packed:
            if not (folder / PACKED).exists():
                pack(source, folder / PACKED, text, config.num_threads)
            source = HuggingFaceFolder(name=config.target, folder=folder / PACKED)
        num_bytes = write_parts(source, config, folder)
        rmtree(folder / PACKED, ignore_errors=True)
    say(f"written to {out}, {size(num_bytes)} for {config.target_ranks} ranks")


def plain_source(name: str) -> HuggingFaceFolder:
    """A model whose weights can be prepared.

    Raises:
        ConfigError: it is not a folder of safetensors files.
    """
    source = find_model(name)
    if isinstance(source, HuggingFaceFolder):
        return source
    raise ConfigError(
        f"{name} is not a folder of safetensors files, which preparing parts needs: give the original checkpoint. A "
        "GGUF file needs no preparation, ranks read their parts from it"
    )


def write_parts(source: HuggingFaceFolder, config: EngineConfig, folder: Path) -> int:
    """Write all files of a prepared folder; return the bytes of its weights."""
    from forerun.checkpoints.prepared.write import copy_texts, write_manifest, write_ranks  # imports torch
    from forerun.engine.model_loading import Checkpoint
    from forerun.engine.rank_weights import rank_weights, shard_plans, shared_group_size, stored_bytes

    config = replace(config, dtype=cast(DTypeName, source.stored_dtype()))
    checkpoint = Checkpoint.open(source, config)
    plans = shard_plans(checkpoint, config.target_ranks)
    unwritten = [plan for plan in plans if not (folder / rank_name(plan.rank)).exists()]
    require_room(folder, sum(stored_bytes(checkpoint, plan) for plan in unwritten))
    with progress("preparing") as show:
        write_ranks(folder, checkpoint.spec, plans, lambda plan: rank_weights(checkpoint, plan), show)
    copy_texts(source.folder, folder)
    manifest = write_manifest(
        folder,
        checkpoint.spec,
        len(plans),
        identity=source.identity(),
        weights=config.weights,
        dtype=cast(StoredDType, source.stored_dtype()),
        group_size=shared_group_size(checkpoint),
    )
    return sum(manifest.formats.values())


def prepare_sets(
    config: EngineConfig,
    out: Path | None,
    params: SamplingParams,
    *,
    data: Path | None,
    num_prompts: int,
    weights: WeightFormat,
) -> None:
    """Search for sets on the answers to questions, write those that were found, and print them.

    Args:
        out: the file of the sets; None: next to the model, or in forerun's cache.
        data: the file of questions; None: the built-in ones.
        weights: the copy of the weights to draft with.
    """
    sets = prepared_sets(find_model(config.target))
    from forerun_lab.skip_finder import find_skip_sets, keep_sets, place_for_sets  # imports torch

    place = place_for_sets(config.target, out, cache_folder())
    drafter = LayerSkip(weights=weights, sets=sets)
    with progress("searching") as show:
        prompts = _prompts(data, num_prompts, params)
        found = find_skip_sets(config, drafter, prompts, params, lambda number: show(number, num_prompts))
    _print(found)
    say(f"written to {keep_sets(config.target, found.sets, found.num_layers, place)}")


def _prompts(
    data: Path | None, num_prompts: int, params: SamplingParams
) -> "Callable[[Engine], Iterable[Sequence[int]]]":
    """First turns of questions, as the target's token ids."""
    from forerun_lab.bench.data.datasets import questions_in
    from forerun_lab.bench.data.prompts import Reader

    questions = questions_in(data)

    def read(engine: "Engine") -> Iterable[Sequence[int]]:
        reader = Reader(tokenizer=engine.tokenizer, max_length=engine.max_length)
        for question in reader.choose(questions, num_prompts, params.max_new_tokens or 0).measured:
            yield reader.prompt_after(question, ())

    return read


def _print(found: "Findings") -> None:
    """Print the sets as a table, and the expected speed of the best one."""
    print(f"{'set':<20}{'hits':>14}{'chance':>8}  skips")
    for item in found.sets:
        hits = f"{item.num_hits:.0f} of {item.num_rows:.0f}"
        chance = f"{item.num_hits / item.num_rows:.2f}" if item.num_rows else "-"
        print(f"{item.name:<20}{hits:>14}{chance:>8}  {_layers(item.skipped)}")
    ending = "settled" if found.has_settled else "not settled: more prompts may find better sets"
    print(
        f"{found.num_evaluations} evaluations, {ending}; the best set guesses right {found.chance:.0%} of the time and "
        f"should decode at {found.speedup:.2f}x the speed of plain decoding"
    )


def _layers(skipped: SkipSet) -> str:
    kinds: dict[str, list[str]] = {ATTENTION: [], MLP: []}
    for layer, kind in sorted(skipped):
        kinds[kind].append(str(layer))
    return ", ".join(f"{kind} {' '.join(layers)}" for kind, layers in kinds.items() if layers) or "nothing"
