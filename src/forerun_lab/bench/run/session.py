"""Turn the flags of `forerun bench run` into a run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from forerun.checkpoints.open import open_source
from forerun.core.affinity import usable_cores
from forerun.core.config import EngineConfig, SamplingParams
from forerun.core.drafter_config import BUILTIN_DRAFT, BUILTIN_TARGET
from forerun.core.errors import ConfigError
from forerun.core.pace import read_device
from forerun.engine.model_loading import Checkpoint, resolve_max_length
from forerun.engine.threads_and_cores import allowed_threads
from forerun_lab.bench.data.datasets import Dataset, load_dataset
from forerun_lab.bench.data.prompts import Reader, spread
from forerun_lab.bench.data.questions import Question
from forerun_lab.bench.peers.messages import PeerPlan
from forerun_lab.bench.records.run_folder import NAME, RunFolder
from forerun_lab.bench.records.run_plan import RunPlan
from forerun_lab.bench.run.candidates import Candidates, grid_of
from forerun_lab.bench.run.ceilings import bytes_per_step, measure_ceilings
from forerun_lab.bench.run.drafters import GRIDS, NONE
from forerun_lab.bench.run.interleaved import BenchRun, Progress
from forerun_lab.bench.run.machine import describe_machine, foreign_load

NUM_TUNING_PROMPTS = 4
FLOOR_CONTEXT = 256  # tokens of context in the step whose bytes are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """The flags of a run.

    Args:
        config: target, dtype, device, threads, context and exactness.
        data: names of data sets, or question files.
        data_folder: searched for data sets before anything is downloaded.
        cache: folder for downloads.
        urls: address of the server, by peer.
        commands: command line that starts the server, by peer.
    """

    config: EngineConfig
    draft: str | None
    drafters: tuple[str, ...]
    peers: tuple[str, ...]
    data: tuple[str, ...]
    num_prompts: int
    temperatures: tuple[float, ...]
    repeats: int
    max_new_tokens: int
    seed: int
    ignore_eos: bool
    tune: bool
    out: Path
    cache: Path
    data_folder: Path | None = None
    urls: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)
    command: str = ""

    def __post_init__(self) -> None:
        for name in (*self.drafters, *self.peers):
            grid_of(name)  # raises if the name is unknown
        for temperature in self.temperatures:  # raises if a value is invalid
            SamplingParams(temperature=temperature, max_new_tokens=max(1, self.max_new_tokens), seed=self.seed)
        shown = tuple(f"{temperature:g}" for temperature in self.temperatures)  # as in the names of files
        for name, values in (
            ("--drafters", self.drafters),
            ("--peers", self.peers),
            ("--data", self.data),
            ("--temperature", shown),
        ):
            if len(set(values)) < len(values):
                raise ConfigError(f"{name} {','.join(values)} names one twice: name each once")
        for flag, servers in (("--url", self.urls), ("--serve", self.commands)):
            for name in servers:
                if name not in self.peers:
                    raise ConfigError(f"{flag} is given for {name!r}, which is not a peer here: add it to --peers")
        misplaced = [name for name in self.peers if name in GRIDS] + [
            name for name in self.drafters if name not in GRIDS
        ]
        if misplaced:
            raise ConfigError(
                f"{misplaced[0]} is a drafter: name it with --drafters"
                if misplaced[0] in GRIDS
                else f"{misplaced[0]} is a peer: name it with --peers"
            )
        if min(self.num_prompts, self.repeats, self.max_new_tokens, len(self.data), len(self.temperatures)) < 1:
            raise ConfigError("a run needs at least one data set, prompt, temperature, repeat and new token")


def play(
    request: RunRequest, *, on_data: Callable[[Dataset, int], None], on_progress: Callable[[int], Progress]
) -> None:
    """Load the questions, measure the answers that the folder lacks, and save everything.

    Args:
        on_data: called with every data set and the number of its questions that are too long for the context.
        on_progress: called with the number of answers; returns the function to call for each.
    """
    checkpoint = Checkpoint.open(open_source(request.config.target), request.config)
    reader = Reader(
        tokenizer=checkpoint.source.tokenizer(), max_length=resolve_max_length(request.config, checkpoint.spec)
    )
    measured, others = choose_questions(request, reader, on_data)
    num_threads = allowed_threads(request.config.num_threads, usable_cores())
    torch.set_num_threads(num_threads)
    plan = plan_of(request, measured, num_threads)
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
        config=replace(request.config, num_threads=num_threads),
        draft=request.draft,
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


def plan_of(request: RunRequest, questions: Mapping[str, Sequence[Question]], num_threads: int) -> RunPlan:
    """The settings that define the run."""
    known = {
        item.name: getattr(source, item.name)
        for source in (request.config, request)
        for item in fields(source)
        if item.name in {planned.name for planned in fields(RunPlan)}
    }
    known |= {
        "drafters": (NONE, *(name for name in request.drafters if name != NONE)),
        "questions": {name: tuple(question.question_id for question in rows) for name, rows in questions.items()},
        "num_threads": num_threads,
    }
    return RunPlan(**known)


def measure_limits(request: RunRequest, checkpoint: Checkpoint) -> dict[str, Any]:
    """The device's memory bandwidth, and the shortest time of a plain step that it allows."""
    placement = read_device(request.config.device)
    ceilings = measure_ceilings(placement.torch_device)
    num_bytes = bytes_per_step(checkpoint.spec, checkpoint.dtype.itemsize, FLOOR_CONTEXT, checkpoint.weight_format)
    is_cached = num_bytes < ceilings.cache_bytes
    return {
        "ceilings": asdict(ceilings),
        "floor": None
        if placement.is_paced or checkpoint.has_codes  # bytes_per_step does not support codes
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
