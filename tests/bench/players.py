"""A run with scripted contestants beside the real `none`, which notes who was asked what, in which order."""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from forerun import EngineConfig, NoDrafter, SamplingParams
from forerun.checkpoints.open import open_source
from forerun_lab.bench.data.prompts import Reader
from forerun_lab.bench.data.questions import Question
from forerun_lab.bench.records.answers import Contestant, Record, Turn
from forerun_lab.bench.records.record_files import read_records
from forerun_lab.bench.records.run_folder import RunFolder
from forerun_lab.bench.records.run_plan import RunPlan
from forerun_lab.bench.run.drafters import DrafterContestant
from forerun_lab.bench.run.entrants import NONE
from forerun_lab.bench.run.interleaved import BenchRun

TEMPLATE: Final = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
NUM_TOKENS: Final = 3
Questions = Mapping[str, Sequence[Question]]
Behaviour = Callable[[Turn], Turn]  # what `none` wrote to what somebody else writes


@dataclass(frozen=True, kw_only=True)
class Call:
    """Somebody was asked to write; `is_warm_up` before the first question."""

    name: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams


class PlainContestant(DrafterContestant):
    """Drafter `none`, which notes what it was asked and stays open from run to run."""

    def __init__(self, target: str = "builtin", **changes: Any) -> None:
        config = EngineConfig(target=target, drafter=NoDrafter(), max_length=256, num_threads=1, **changes)
        super().__init__(NONE, config)
        self.calls: list[Call] = []
        self.answers: dict[tuple[object, ...], Turn] = {}

    def write(self, prompt_ids: Sequence[int], params: SamplingParams) -> Turn:
        turn = super().write(prompt_ids, params)
        self.answers[key_of(prompt_ids, params)] = turn
        self.calls.append(Call(name=NONE, prompt_ids=tuple(prompt_ids), params=params))
        return turn

    def close(self) -> None:
        self.forget()


def key_of(prompt_ids: Sequence[int], params: SamplingParams) -> tuple[object, ...]:
    return tuple(prompt_ids), params.temperature, params.seed, params.max_new_tokens, params.ignore_eos


@dataclass(kw_only=True)
class Scripted:
    """Writes what `none` wrote to the same prompt, changed as the script says; notes what it was asked."""

    name: str
    none: PlainContestant
    behave: Behaviour
    num_forgotten: int = 0
    is_closed: bool = False

    def write(self, prompt_ids: Sequence[int], params: SamplingParams) -> Turn:
        self.none.calls.append(Call(name=self.name, prompt_ids=tuple(prompt_ids), params=params))
        return self.behave(self.none.answers[key_of(prompt_ids, params)])

    def forget(self) -> None:
        self.num_forgotten += 1

    def close(self) -> None:
        self.is_closed = True


def same(turn: Turn) -> Turn:
    """A flawless drafter; the text is left to the ids."""
    return replace(turn, text="")


@dataclass(kw_only=True)
class Stage:
    """Everything for a run in a folder.

    Args:
        script: contestants beside `none`, and what they do.
    """

    none: PlainContestant
    questions: Questions
    script: Mapping[str, Behaviour] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    opened: list[Scripted] = field(default_factory=list)

    @property
    def plan(self) -> RunPlan:
        return plan_of(self.questions, tuple(self.script), **self.changes)

    @property
    def reader(self) -> Reader:
        return Reader(tokenizer=self.none.engine.tokenizer, max_length=256)

    def open(self, name: str, temperature: float) -> Contestant:
        if name == NONE:
            return self.none
        self.opened.append(Scripted(name=name, none=self.none, behave=self.script[name]))
        return self.opened[-1]

    def play(self, path: Path, **replaced: Any) -> list[Call]:
        """Play into the folder; the calls, warm-ups left out."""
        first = len(self.none.calls)
        folder = RunFolder(path, self.plan, {"machine": {}})
        try:
            BenchRun(self.plan, self.questions, folder, replaced.get("open", self.open), self.reader).play(
                lambda done, who: None
            )
        finally:
            folder.close()
        return [call for call in self.none.calls[first:] if not call.params.ignore_eos]


def plan_of(questions: Questions, others: Iterable[str] = (), **changes: Any) -> RunPlan:
    """A plan; the changes may also be sampling parameters."""
    config = EngineConfig(drafter=NoDrafter(), max_length=256, num_threads=1)
    sampling = SamplingParams(max_new_tokens=NUM_TOKENS, seed=0)
    of_sampling = {name: changes.pop(name) for name in list(changes) if hasattr(sampling, name)}
    values: dict[str, Any] = {
        "config": config,
        "sampling": replace(sampling, **of_sampling),
        "draft": None,
        "drafters": dict.fromkeys((NONE, *others), config),
        "peers": (),
        "questions": {name: tuple(question.question_id for question in rows) for name, rows in questions.items()},
        "temperatures": (0.0,),
        "repeats": 1,
        "tune": False,
    }
    return RunPlan(**values | changes)


def question(number: int, *turns: str) -> Question:
    return Question(question_id=number, category="code", turns=turns or (f"def f{number}(x):\n    return",))


def questions_file(path: Path, texts: Iterable[Sequence[str]]) -> str:
    """A file of questions with these turns."""
    rows = [json.dumps({"question_id": number, "turns": list(turns)}) for number, turns in enumerate(texts)]
    path.write_text("".join(f"{row}\n" for row in rows))
    return str(path)


def records_in(path: Path) -> dict[str, list[Record]]:
    """Records by name of their file, in the order of writing."""
    return {file.relative_to(path).as_posix(): list(read_records(file)) for file in sorted(path.glob("*/*.jsonl"))}


def keys_in(path: Path) -> list[tuple[object, ...]]:
    """Every record's key, sorted: one that is doubled shows twice."""
    return sorted(
        (record.dataset, record.contestant, record.temperature, record.question_id, record.repeat)
        for records in records_in(path).values()
        for record in records
    )


def with_template(folder: Path) -> Path:
    """The built-in target as a chat model."""
    shutil.copytree(open_source("builtin").folder, folder, dirs_exist_ok=True)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def stage_of(none: PlainContestant, **values: Any) -> Stage:
    """Two questions to `none` and two flawless drafters, with these changes."""
    return Stage(
        **{"none": none, "questions": {"code": (question(0), question(1))}, "script": {"a": same, "b": same}, **values}
    )


def write_wrong(turn: Turn) -> Turn:
    """Another token in the second place."""
    first, second, *rest = turn.token_ids
    return replace(turn, text="", token_ids=(first, (second + 1) % 4096, *rest))
