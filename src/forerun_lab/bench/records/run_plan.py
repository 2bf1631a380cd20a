"""The settings that define a run, which must be the same to continue it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from forerun.core.config import SamplingParams
from forerun.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The questions, the contestants, and the decoding settings.

    Args:
        target, draft: model names; a draft of None is the built-in one.
        drafters, peers: contestants by name; drafter "none" is always the first.
        questions: ids of the questions, by data set.
        repeats: how often each question is asked.
        tune: whether `tuning` first chooses settings, on other questions.
        task_after_task: ask all questions of a data set before those of the next one; otherwise the sets alternate.
    """

    target: str
    draft: str | None
    drafters: tuple[str, ...]
    peers: tuple[str, ...]
    questions: Mapping[str, tuple[int | str, ...]]
    temperatures: tuple[float, ...]
    repeats: int
    max_new_tokens: int
    seed: int
    ignore_eos: bool
    tune: bool
    task_after_task: bool = False
    dtype: str
    weights: str
    inputs: str
    device: str
    exactness: str
    kernels: str
    max_length: int | None
    num_threads: int

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
        return SamplingParams(
            temperature=temperature,
            max_new_tokens=self.max_new_tokens,
            seed=self.seed + question_number,
            ignore_eos=self.ignore_eos,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def require_same(self, values: Mapping[str, Any], where: str) -> None:
        """Raise ConfigError unless `values`, a plan read from a file, equals this plan."""
        for name, ours in json.loads(json.dumps(self.to_json())).items():
            theirs = values.get(name)
            if ours != theirs:
                raise ConfigError(
                    f"{where} holds a run with {name} {theirs!r}, this one has {ours!r}: give another folder to "
                    "--out, or the same flags to continue that run"
                )
