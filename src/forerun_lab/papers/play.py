"""Play the experiments of a paper into a folder. What is there already is not played again."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from forerun.core.config import EngineConfig, SamplingParams
from forerun.core.drafter_config import DRAFTERS, LayerSkip, Parallel, paper_parallel
from forerun.core.errors import ConfigError
from forerun.core.output_file import write_whole
from forerun.drafting.policies import Policies
from forerun.engine.engine import Engine
from forerun_lab.bench.data.datasets import Dataset, load_dataset
from forerun_lab.bench.data.prompts import Reader
from forerun_lab.bench.run.draft_traces import Recorder
from forerun_lab.bench.run.entrants import Entrant
from forerun_lab.bench.run.interleaved import Progress
from forerun_lab.bench.run.session import RunRequest, play
from forerun_lab.papers.experiments import SOURCES, Contest, Line, Source, Variant
from forerun_lab.papers.swiftspec import shared_units, tree
from forerun_lab.planner.plan import Plan, Split, first_tokens, order_of, search, speed_of
from forerun_lab.planner.profile import Profile
from forerun_lab.planner.simulate import Costs, simulate
from forerun_lab.planner.swiftspec import UNITS, Pair
from forerun_lab.planner.trace import AnswerTrace, read_traces, write_traces

PAPER: Final = "paper.json"
TRACE: Final = "guesses.jsonl"
SEARCH: Final = "search.json"
SEARCHED_TOKENS: Final = 128  # of an answer at least: a search scores nothing in the first 34
CHOSEN: Final = ", the planner's choice"
QUICK_TOKENS: Final = 768  # of the recorded answers that a quick projection simulates
# The kinds of figures that depend on a part of a request, if not all do.
USED_BY: Final[Mapping[str, tuple[Source, ...]]] = {
    "stretch": ("paced",), "machine": ("paced", "projected"), "settings": ("measured",), "draft_ranks": ("measured",),
}  # fmt: skip
OnTotal = Callable[[int], Progress]
OnData = Callable[[Dataset, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperRequest:
    """What is played, and on what.

    Args:
        paper: "swiftspec" or "swift".
        subject: the pair or model of the paper.
        target, draft: the models that run here.
        data: names of data sets.
        sources: kinds of figures that are wanted.
        stretch: paces are so many times the paper's times.
        machine: the one that the paper's times are of.
        settings: of every engine that runs at this machine's speed.
        draft_ranks: of the draft at this machine's speed.
    """

    paper: str
    subject: str
    target: str
    draft: str | None
    data: tuple[str, ...]
    num_prompts: int
    max_new_tokens: int
    sources: tuple[str, ...]
    stretch: float
    machine: str
    is_quick: bool
    settings: Mapping[str, Any]
    draft_ranks: int
    out: Path
    cache: Path
    data_folder: Path | None
    command: str

    def continued(self) -> "PaperRequest":
        """This run with the kinds of figures that earlier runs of its folder were asked for.

        Raises:
            ConfigError: the folder holds another run.
        """
        file = self.out / PAPER
        if not file.exists():
            return self
        there = read_paper(file)
        earlier = set(there["sources"])
        kept: dict[str, Any] = {}
        for name, value in self.written().items():
            uses = USED_BY.get(name, tuple(SOURCES))
            if earlier.intersection(uses) and not set(self.sources).intersection(uses):
                kept[name] = there.get(name)  # this command has nothing to say about it
            elif earlier.intersection(uses) and there.get(name) != value:
                raise ConfigError(
                    f"{file} is of a run with {name} {there.get(name)!r}, this one has {value!r}: give another "
                    "folder to --out, or the same flags to continue that run"
                )
        return replace(self, **kept, sources=tuple(name for name in SOURCES if name in {*earlier, *self.sources}))

    def keep(self) -> None:
        """Write down what this run is."""
        values = {**self.written(), "sources": self.sources, "command": self.command}
        write_whole(self.out / PAPER, json.dumps(values, indent=2) + "\n", makes_folder=True)

    def written(self) -> dict[str, Any]:
        """What makes this run another one than a run with other values."""
        values = asdict(self)
        for name in ("sources", "command", "out", "cache", "data_folder"):
            del values[name]
        written: dict[str, Any] = json.loads(json.dumps(values))
        return written


def read_paper(file: Path) -> dict[str, Any]:
    """What an earlier run of this folder was.

    Raises:
        ConfigError: the file does not say so.
    """
    try:
        there = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file} cannot be read ({error}): give another folder to --out") from error
    if not isinstance(there, dict) or not isinstance(there.get("sources"), list):
        raise ConfigError(f"{file} is not of forerun bench paper: give another folder to --out")
    return there


def require_own(folder: Path) -> None:
    """Raise ConfigError for a folder with other files than those of this command, which it would write between."""
    if folder.is_dir() and any(folder.iterdir()) and not {*folder.glob(PAPER), *folder.glob(f"*/{PAPER}")}:
        raise ConfigError(f"{folder} is not empty and holds no {PAPER}: give a new folder to --out")


def play_contest(request: PaperRequest, contest: Contest, on_data: OnData, on_total: OnTotal) -> None:
    """Let the contestants answer the questions that they have not answered yet."""
    of_all = request.settings if contest.source == "measured" else only_threads(request)
    played = RunRequest(
        entrants=tuple(entrant(request, each, of_all) for each in contest.contestants),
        draft=request.draft,
        peers=(),
        data=request.data,
        num_prompts=request.num_prompts,
        temperatures=(0.0,),
        repeats=1,
        sampling=SamplingParams(max_new_tokens=request.max_new_tokens, seed=0),
        tune=False,
        out=request.out / contest.name,
        cache=request.cache,
        data_folder=request.data_folder,
        command=request.command,
    )
    play(played, on_data=on_data, on_progress=on_total)


def only_threads(request: PaperRequest) -> dict[str, Any]:
    """The settings of engines whose figures do not depend on this machine's speed."""
    return {name: value for name, value in request.settings.items() if name == "num_threads"}


def entrant(request: PaperRequest, contestant: Variant, of_all: Mapping[str, Any]) -> Entrant:
    settings = {**of_all, **contestant.settings}
    config = EngineConfig(target=request.target, drafter=contestant.drafter, **settings)
    name = next(name for name, kind in DRAFTERS.items() if isinstance(contestant.drafter, kind.config))
    return Entrant(label=contestant.label, name=name, config=config, is_shaped=True)


def prompts_of(request: PaperRequest, engine: Engine, num_prompts: int) -> Iterator[list[int]]:
    """The ids of this many questions of each data set."""
    reader = Reader(tokenizer=engine.tokenizer, max_length=engine.max_length)
    for name in request.data:
        questions = load_dataset(name, folder=request.data_folder, cache=request.cache / "data").questions
        for question in reader.choose(questions, num_prompts, request.max_new_tokens).measured:
            yield reader.prompt_after(question, ())


def record_guesses(request: PaperRequest, on_answer: Callable[[int, int], None]) -> list[AnswerTrace]:
    """The target's answers, and the draft's guesses at each of their tokens."""
    file = request.out / TRACE
    if not file.exists():
        params = SamplingParams(max_new_tokens=request.max_new_tokens, seed=0)
        config = EngineConfig(target=request.target, **only_threads(request))
        with closing(Recorder(config, request.draft)) as recorder:
            num_each = max(1, min(request.num_prompts, 24 // len(request.data)))
            prompts = list(prompts_of(request, recorder.engine, num_each))
            write_traces(file, recorder.record(prompts, params, lambda done: on_answer(done, len(prompts))))
    return read_traces(file)


def project(
    request: PaperRequest,
    pair: Pair,
    profile: Profile,
    traces: Sequence[AnswerTrace],
    on_plan: Callable[[int, int], None],
    *,
    name: str = "splits",
) -> list[Line]:
    """The speed of every split of eight GPUs, and of the paper's own settings.

    Args:
        name: of the experiment and its file.
    """
    file = request.out / f"{name}.json"
    if file.exists():
        return [Line(**values) for values in json.loads(file.read_text(encoding="utf-8"))]
    traces = first_tokens(traces, QUICK_TOKENS) if request.is_quick else traces
    plans = search(profile, traces, units=UNITS, has_bound=False, on_plan=on_plan)
    draft = request.draft or ""
    shared = Split(target_units=UNITS, draft_units=shared_units(profile), is_parallel=False)
    published = Split(target_units=pair.target_units, draft_units=pair.draft_units, is_parallel=True)
    own = [
        play_plan(profile, traces, shared, tree(pair, draft)),
        play_plan(profile, traces, published, Parallel(draft=tree(pair, draft))),
        play_plan(profile, traces, published, paper_parallel(draft)),
    ]
    plain = next(plan for plan in plans if plan.kind == "plain")
    shapes = (f"8 rows, depth {pair.depth}", "8 rows", "8 rows, without forerun's additions")
    papers = zip(own, shapes, strict=True)
    lines = [line_of(name, plan, text, pair, plain, is_papers=True) for plan, text in papers]
    best = max((plan for plan in plans if plan.kind == "parallel"), key=speed_of)
    for plan in sorted(plans, key=order_of):
        words = shape_of(plan) + (CHOSEN if plan is best else "")
        lines.append(replace(line_of(name, plan, words, pair, plain), is_planned=True))
    write_whole(file, json.dumps([asdict(line) for line in lines], indent=1) + "\n")
    return lines


def play_plan(profile: Profile, traces: Sequence[AnswerTrace], split: Split, drafter: Any) -> Plan:
    costs = Costs.of(profile, target_units=split.target_units, draft_units=split.draft_units)
    return Plan(split=split, drafter=drafter, outcome=simulate(traces, drafter, costs, Policies.of(drafter)))


def line_of(name: str, plan: Plan, words: str, pair: Pair, plain: Plan, *, is_papers: bool = False) -> Line:
    low, high = plan.outcome.interval()
    is_published = plan.kind == "parallel" and plan.split.target_units == pair.target_units
    published = pair.tokens_per_s if is_published and is_papers else None
    if is_papers and plan.kind == "serial":
        published = pair.serial_tokens_per_s
    return Line(
        experiment=name,
        contestant=f"{plan.kind} {plan.split.name}",
        words=words,
        dataset="",
        source="projected",
        tokens_per_s=plan.outcome.tokens_per_s,
        low=low,
        high=high,
        ratio=plan.outcome.tokens_per_s / plain.outcome.tokens_per_s,
        tokens_per_round=plan.outcome.tokens_per_round,
        published_tokens_per_s=published,
        published_note="" if published is None else f"which needs {published * plan.outcome.round_s:.2f} tok/round",
    )


def shape_of(plan: Plan) -> str:
    """The tree of a plan in words."""
    if plan.tree is None:
        return "plain decoding"
    if plan.tree.adaptive:
        return "adaptive widths"
    depth = f", depth {plan.tree.depth}" if plan.kind == "serial" else ""
    return f"{plan.tree.verify_width} rows, {plan.tree.draft_width} a draft pass{depth}"


def chosen_units(lines: Sequence[Line]) -> int | None:
    """GPUs of the target in the planner's choice."""
    names = [line.contestant for line in lines if line.words.endswith(CHOSEN)]
    return int(names[0].split()[1].split("+")[0]) if names else None


def record_search(
    request: PaperRequest, searches: Mapping[str, LayerSkip], on_answer: Callable[[int, int], None]
) -> None:
    """How the matchness grows with the candidates that a search has scored."""
    file = request.out / SEARCH
    if file.exists():
        return
    found: dict[str, Any] = {}
    num_done = 0
    num_each = 4 if request.is_quick else 10
    num_new = max(request.max_new_tokens, SEARCHED_TOKENS)
    for words, drafter in searches.items():
        config = EngineConfig(target=request.target, drafter=drafter, **request.settings)
        points: list[dict[str, Any]] = []
        with closing(Engine(config)) as engine:
            num_items = 2 * (engine.spec.num_layers - 2)
            prompts = list(prompts_of(request, engine, -(-num_each // len(request.data))))[:num_each]
            for number, prompt in enumerate(prompts):
                params = SamplingParams(max_new_tokens=num_new, seed=number, ignore_eos=True)
                for step in engine.stream(prompt, params):
                    skips = step.stats.skips
                    if skips is not None and (not points or skips.num_scored > points[-1]["steps"]):
                        points.append({"request": number, "steps": skips.num_scored, "matchness": skips.matchness,
                                       "search_s": skips.search_s, "is_searching": skips.is_searching})  # fmt: skip
                num_done += 1
                on_answer(num_done, len(prompts) * len(searches))
            skipped = len(skips.attention) + len(skips.mlp) if skips is not None else 0
        found[words] = {"points": points, "skipped": skipped, "of": num_items}
    write_whole(file, json.dumps(found, indent=1) + "\n")
