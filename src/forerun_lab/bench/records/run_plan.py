"""The settings that define a run, which must be the same to continue it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from forerun.core.config import EngineConfig, SamplingParams
from forerun.core.drafter_config import drafter_name
from forerun.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The questions, the contestants, and the decoding settings.

    Args:
        config: the engine of plain decoding.
        sampling: how all contestants sample; seed and temperature are set for each question, see `params`.
        draft: the model's name; None is the built-in one.
        drafters: the engines of our drafters by their labels; drafter "none" is always the first.
        peers: contestants by name.
        questions: ids of the questions, by data set.
        repeats: how often each question is asked.
        tune: whether `tuning` first chooses settings, on other questions.
        task_after_task: ask all questions of a data set before those of the next one; otherwise the sets alternate.
    """

    config: EngineConfig
    sampling: SamplingParams
    draft: str | None
    drafters: Mapping[str, EngineConfig]
    peers: tuple[str, ...]
    questions: Mapping[str, tuple[int | str, ...]]
    temperatures: tuple[float, ...]
    repeats: int
    tune: bool
    task_after_task: bool = False

    @property
    def contestants(self) -> tuple[str, ...]:
        return (*self.drafters, *self.peers)

    @property
    def num_answers(self) -> int:
        """Number of answers in the whole run; the turns of a question count as one."""
        num_questions = sum(map(len, self.questions.values()))
        return num_questions * self.repeats * len(self.temperatures) * len(self.contestants)

    def params(self, temperature: float, question_number: int) -> SamplingParams:
        """Sampling parameters for a question, with the same seed for every contestant and repeat."""
        assert self.sampling.seed is not None, "a run has a seed"
        return replace(self.sampling, temperature=temperature, seed=self.sampling.seed + question_number)

    def to_json(self) -> dict[str, Any]:
        """All settings by their names; of each drafter, those that differ from plain decoding."""
        engine = settings_of(self.config)
        sampling = asdict(self.sampling)
        del sampling["temperature"]
        return {
            "draft": self.draft,
            "drafters": {
                label: {"drafter": {"name": drafter_name(config.drafter)} | asdict(config.drafter)}
                | {name: value for name, value in settings_of(config).items() if value != engine[name]}
                for label, config in self.drafters.items()
            },
            "peers": self.peers,
            "questions": dict(self.questions),
            "temperatures": self.temperatures,
            "repeats": self.repeats,
            "tune": self.tune,
            "task_after_task": self.task_after_task,
            **engine,
            **sampling,
        }

    def require_same(self, values: Mapping[str, Any], where: str) -> None:
        """Raise ConfigError unless `values`, a plan read from a file, equals this plan."""
        for name, ours in json.loads(json.dumps(self.to_json())).items():
            theirs = values.get(name)
            if ours != theirs:
                raise ConfigError(
                    f"{where} holds a run with {name} {theirs!r}, this one has {ours!r}: give another folder to "
                    "--out, or the same flags to continue that run"
                )


def settings_of(config: EngineConfig) -> dict[str, Any]:
    """The settings of an engine, without its drafter's."""
    settings = asdict(config)
    del settings["drafter"]
    return settings
