"""Turn the flags of `forerun bench run` into a run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from forerun.checkpoints.open import open_source
from forerun.core.affinity import usable_cores
from forerun.core.config import AUTO_DEVICE, EngineConfig, SamplingParams
from forerun.core.drafter_config import BUILTIN_DRAFT, BUILTIN_TARGET, Parallel
from forerun.core.errors import ConfigError
from forerun.core.pace import read_device
from forerun.engine.auto_device import settle_device
from forerun.engine.drafters import draft_device
from forerun.engine.model_loading import Checkpoint, resolve_max_length
from forerun.engine.shared_model import device_of
from forerun.engine.threads_and_cores import allowed_threads
from forerun_lab.bench.data.datasets import Dataset, load_dataset
from forerun_lab.bench.data.prompts import Reader, spread
from forerun_lab.bench.data.questions import Question
from forerun_lab.bench.peers.messages import PeerPlan
from forerun_lab.bench.records.run_folder import NAME, RunFolder, file_name
from forerun_lab.bench.records.run_plan import RunPlan
from forerun_lab.bench.run.candidates import Candidates
from forerun_lab.bench.run.ceilings import bytes_per_step, measure_ceilings
from forerun_lab.bench.run.entrants import GRIDS, Entrant, grid_of
from forerun_lab.bench.run.interleaved import BenchRun, Progress
from forerun_lab.bench.run.machine import describe_machine, foreign_load

NUM_TUNING_PROMPTS = 4
FLOOR_CONTEXT = 256  # tokens of context in the step whose bytes are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """The flags of a run.

    Args:
        entrants: the drafters of this engine, plain decoding first.
        draft: the draft model, of peers too.
        sampling: all sampling parameters but the temperature; the seed is that of the first question.
        data: names of data sets, or question files.
        data_folder: searched for data sets before anything is downloaded.
        cache: folder for downloads.
        urls: address of the server, by peer.
        commands: command line that starts the server, by peer.
    """

    entrants: tuple[Entrant, ...]
    draft: str | None
    peers: tuple[str, ...]
    data: tuple[str, ...]
    num_prompts: int
    temperatures: tuple[float, ...]
    repeats: int
    sampling: SamplingParams
    tune: bool
    out: Path
    cache: Path
    data_folder: Path | None = None
    task_after_task: bool = False
    urls: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)
    command: str = ""

    def __post_init__(self) -> None:
        for name in self.peers:
            grid_of(name)  # raises if the name is unknown
            if name in GRIDS:
                raise ConfigError(f"{name} is a drafter: name it with --drafters")
        for temperature in self.temperatures:  # raises if a value is invalid
            replace(self.sampling, temperature=temperature)
        shown = tuple(f"{temperature:g}" for temperature in self.temperatures)  # as in the names of files
        for name, values in (("--peers", self.peers), ("--data", self.data), ("--temperature", shown)):
            if len(set(values)) < len(values):
                raise ConfigError(f"{name} {','.join(values)} names one twice: name each once")
        for flag, servers in (("--url", self.urls), ("--serve", self.commands)):
            for name in servers:
                if name not in self.peers:
                    raise ConfigError(f"{flag} is given for {name!r}, which is not a peer here: add it to --peers")
        if min(self.num_prompts, self.repeats, self.max_new_tokens, len(self.data), len(self.temperatures)) < 1:
            raise ConfigError("a run needs at least one data set, prompt, temperature, repeat and new token")
        for entrant in self.entrants:
            if entrant.label in self.peers:
                raise ConfigError(f"the label {entrant.label} is the name of a peer here: change it")
            for temperature in self.temperatures:  # raises if the label is too long
                file_name(entrant.label, temperature)
            require_stated_gpu(entrant)

    @property
    def config(self) -> EngineConfig:
        """The engine of plain decoding."""
        return self.entrants[0].config

    @property
    def max_new_tokens(self) -> int:
        return self.sampling.max_new_tokens or 0

    def with_engines(self, change: Callable[[EngineConfig], EngineConfig]) -> "RunRequest":
        """The same with another engine for each entrant."""
        return replace(
            self, entrants=tuple(replace(entrant, config=change(entrant.config)) for entrant in self.entrants)
        )


def require_stated_gpu(entrant: Entrant) -> None:
    """Raise ConfigError for a parallel drafter that would share the target's GPU although there are others, since this
    is what a user of several GPUs does not mean."""
    config = entrant.config
    drafter = config.drafter
    device = read_device(config.device).torch_device
    if not isinstance(drafter, Parallel) or drafter.address is not None or not device.startswith("cuda"):
        return
    num_gpus = torch.cuda.device_count()
    if drafter.device is None and draft_device(drafter, config) == config.device and num_gpus > 1:
        raise ConfigError(
            f"{entrant.label} would draft on {device}, the target's own GPU, and there are {num_gpus}: give "
            f"--draft-device {device_of(device, 1)}, or --draft-device {device} to share it"
        )


def play(
    request: RunRequest, *, on_data: Callable[[Dataset, int], None], on_progress: Callable[[int], Progress]
) -> None:
    """Load the questions, measure the answers that the folder lacks, and save everything.

    Args:
        on_data: called with every data set and the number of its questions that are too long for the context.
        on_progress: called with the number of answers; returns the function to call for each.
    """
    request = request.with_engines(lambda config: settle_device(config) if config.device == AUTO_DEVICE else config)
    checkpoint = Checkpoint.open(open_source(request.config.target), request.config)
    reader = Reader(
        tokenizer=checkpoint.source.tokenizer(), max_length=resolve_max_length(request.config, checkpoint.spec)
    )
    measured, others = choose_questions(request, reader, on_data)
    num_threads = allowed_threads(request.config.num_threads, usable_cores())
    torch.set_num_threads(num_threads)
    request = request.with_engines(lambda config: replace(config, num_threads=config.num_threads or num_threads))
    plan = plan_of(request, measured)
    # The cache of a peer is as long as the longest conversation and no longer, since some peers read all of it.
    questions = [*others, *chain(*measured.values())]
    max_length = max(reader.room_for(question, request.max_new_tokens) for question in questions)
    peers = peer_plan(request, checkpoint, num_threads, max_length)
    limits = {} if (request.out / NAME).exists() else measure_limits(request, checkpoint)  # only once per run
    about = {  # what describes the run but does not define it
        "machine": describe_machine() | {"foreign_load": foreign_load()},
        "command": request.command,
        "dtype": checkpoint.dtype_name,
    }
    folder = RunFolder(request.out, plan, about | limits)
    candidates = Candidates(
        plan=plan,
        folder=folder,
        entrants={entrant.label: entrant for entrant in request.entrants},
        peers=peers,
        tuning_prompts=[reader.prompt_after(question, ()) for question in others],
    )
    try:
        BenchRun(plan, measured, folder, candidates.open, reader).play(on_progress(plan.num_answers))
    finally:
        folder.close()


def choose_questions(
    request: RunRequest, reader: Reader, on_data: Callable[[Dataset, int], None]
) -> tuple[dict[str, tuple[Question, ...]], list[Question]]:
    """The questions to measure, by data set, and a few others for tuning, from as many data sets as possible."""
    measured: dict[str, tuple[Question, ...]] = {}
    others: list[Sequence[Question]] = []
    for name in request.data:
        dataset = load_dataset(name, folder=request.data_folder, cache=request.cache / "data")
        choice = reader.choose(dataset.questions, request.num_prompts, request.max_new_tokens)
        if dataset.name in measured:
            raise ConfigError(f"two data sets are called {dataset.name!r}: rename one of the files")
        measured[dataset.name] = choice.measured
        others.append(spread(choice.others, -(-NUM_TUNING_PROMPTS // len(request.data))))
        on_data(dataset, choice.num_too_long)
    by_turns = [
        questions[place] for place in range(NUM_TUNING_PROMPTS) for questions in others if place < len(questions)
    ]
    return measured, by_turns[:NUM_TUNING_PROMPTS]


def plan_of(request: RunRequest, questions: Mapping[str, Sequence[Question]]) -> RunPlan:
    """The settings that define the run."""
    return RunPlan(
        config=request.config,
        sampling=request.sampling,
        draft=request.draft,
        drafters={entrant.label: entrant.config for entrant in request.entrants},
        peers=request.peers,
        questions={name: tuple(question.question_id for question in rows) for name, rows in questions.items()},
        temperatures=request.temperatures,
        repeats=request.repeats,
        tune=request.tune,
        task_after_task=request.task_after_task,
    )


def measure_limits(request: RunRequest, checkpoint: Checkpoint) -> dict[str, Any]:
    """The device's memory bandwidth, and the shortest time of a plain step that it allows."""
    placement = read_device(request.config.device)
    ceilings = measure_ceilings(placement.torch_device)
    num_bytes = bytes_per_step(
        checkpoint.spec,
        checkpoint.dtype.itemsize,
        FLOOR_CONTEXT,
        checkpoint.weight_format,
        checkpoint.cache_format,
    )
    is_cached = num_bytes < ceilings.cache_bytes
    return {
        "ceilings": asdict(ceilings),
        "floor": None
        if placement.is_paced
        or checkpoint.has_codes  # bytes_per_step does not support codes
        or request.config.target_ranks > 1  # each rank reads its part
        else {
            "bytes_per_step": num_bytes,
            "bytes_per_s": (ceilings.cached_read if is_cached else ceilings.read).median,
            "from": "cache" if is_cached else "memory",
        },
    }


def peer_plan(request: RunRequest, checkpoint: Checkpoint, num_threads: int, max_length: int) -> PeerPlan:
    """The peers' settings, which make them do the same work as our engine."""
    is_builtin = request.draft is None and request.config.target == BUILTIN_TARGET
    draft = BUILTIN_DRAFT if is_builtin else request.draft
    return PeerPlan(
        target=str(checkpoint.source.path),
        draft=None if draft is None or not request.peers else str(open_source(draft).path),
        dtype=str(checkpoint.dtype).removeprefix("torch."),
        weight_format=checkpoint.weight_format,
        num_threads=num_threads,
        max_length=max_length,
        device=request.config.device,
        urls=request.urls,
        commands=request.commands,
    )
