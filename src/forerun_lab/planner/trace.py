"""Drafters' guesses at every position of an answer, as the planner's data on a pair of models."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from math import inf, isnan
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from forerun.core.drafter_config import WITHOUT_MODEL
from forerun.core.errors import ConfigError
from forerun.core.output_file import write_whole

DRAFT_MODEL = "draft_model"
LAYER_SKIP = "layer_skip"
RECORDED: Final = (DRAFT_MODEL, LAYER_SKIP, *WITHOUT_MODEL)
DIGITS: Final = 5  # decimals of a log-probability in a file
Count = Annotated[int, msgspec.Meta(ge=0)]
Ids = tuple[tuple[Count, ...], ...]
LogProbs = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTrace:
    """An answer of the target, and the draft's guesses at each of its tokens given the true text before it.

    Args:
        prompt_ids: at least one token.
        token_ids: the answer.
        children: for each answer token the ids the draft would have tried, in the drafter's order: likeliest first, at
            a temperature above 0 with the target's own noise; none if no draft model was recorded.
        log_probs: their log-probabilities, none above 0, in descending order.
        temperature: the answer's temperature.
        seed: seed of the answer's noise; None when greedy.
        skip_children, skip_log_probs: the same guesses by the target with layers skipped; () if not recorded.
        accepted: by the name of a drafter without a model, for each answer token how many tokens from there on a round
            that began there would have accepted.
    """

    prompt_ids: tuple[Count, ...]
    token_ids: tuple[Count, ...]
    children: Ids
    log_probs: LogProbs
    temperature: float = 0.0
    seed: int | None = None
    skip_children: Ids = ()
    skip_log_probs: LogProbs = ()
    accepted: Mapping[str, tuple[Count, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        num_tokens = len(self.token_ids)
        if not self.prompt_ids or not self.token_ids:
            raise ConfigError("a trace has no prompt or no answer: both need at least one token")
        if not 0.0 <= self.temperature < inf:
            raise ConfigError(f"temperature {self.temperature} must be finite and at least 0")
        require_guesses(num_tokens, self.children, self.log_probs)
        if self.skip_children or self.skip_log_probs:
            require_guesses(num_tokens, self.skip_children, self.skip_log_probs)
        for name, counts in self.accepted.items():
            if len(counts) != num_tokens or any(count > num_tokens - place for place, count in enumerate(counts)):
                raise ConfigError(
                    f"{name} accepts {counts} tokens at the {num_tokens} places of an answer: there must be one number "
                    "for every token, at most the number of tokens that follow"
                )

    def by_layer_skip(self) -> "AnswerTrace":
        """The trace as if the target with layers skipped were the draft."""
        return replace(self, children=self.skip_children, log_probs=self.skip_log_probs)

    def to_json(self) -> str:
        """The trace as one line of JSON; values that were not recorded have no key."""
        others = {
            "skip_children": self.skip_children,
            "skip_log_probs": rounded(self.skip_log_probs),
            "accepted": self.accepted,
        }
        return json.dumps(
            {
                "prompt_ids": self.prompt_ids,
                "token_ids": self.token_ids,
                "children": self.children,
                "log_probs": rounded(self.log_probs),
                "temperature": self.temperature,
                "seed": self.seed,
                **{key: values for key, values in others.items() if values},
            }
        )


def rounded(log_probs: LogProbs) -> list[list[float]]:
    """Log-probabilities, rounded as in a file."""
    return [[round(max(value, -1e9), DIGITS) for value in values] for values in log_probs]


def require_guesses(num_tokens: int, children: Ids, log_probs: LogProbs) -> None:
    """Raise ConfigError if these are not the guesses at every token of an answer."""
    if not num_tokens == len(children) == len(log_probs):
        raise ConfigError(
            f"a trace of {num_tokens} tokens has {len(children)} lists of children and {len(log_probs)} of "
            "log-probabilities: there must be one of each for every token"
        )
    for place, (ids, values) in enumerate(zip(children, log_probs, strict=True)):
        if len(ids) != len(values) or len(set(ids)) < len(ids) or not falls(values):
            raise ConfigError(
                f"the children at place {place} are {ids} with log-probabilities {values}: distinct ids are needed, "
                "and as many log-probabilities, at most 0 and in descending order"
            )


def falls(values: tuple[float, ...]) -> bool:
    """Whether log-probabilities are in descending order."""
    limits = (1e-3, *values)  # rounding may leave a value slightly above zero
    return all(not isnan(value) and value <= before for before, value in zip(limits, values, strict=False))


def write_traces(path: Path, traces: Iterable[AnswerTrace]) -> int:
    """Write one trace a line once all of them have been computed; return their number.

    If an error ends them early and the file did not exist, the traces so far are written.

    Raises:
        ConfigError: the file cannot be written.
    """
    lines = list[str]()
    try:
        lines.extend(trace.to_json() + "\n" for trace in traces)
    except BaseException:
        if lines and not path.exists():
            write_whole(path, "".join(lines), makes_folder=True)
        raise
    write_whole(path, "".join(lines), makes_folder=True)
    return len(lines)


def read_traces(path: Path) -> list[AnswerTrace]:
    """All traces of a file.

    Raises:
        ConfigError: the file does not exist, has no trace, or has a line that is not one.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the traces {path} cannot be read ({error}): make some with forerun bench trace") from error
    traces = list(parse_lines(path, lines))
    if not traces:
        raise ConfigError(f"{path} holds no trace: make some with forerun bench trace")
    return traces


def parse_lines(path: Path, lines: Iterable[str]) -> Iterator[AnswerTrace]:
    """A trace for every line that is not blank."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield parse_trace(json.loads(line))
            except (ValueError, TypeError, msgspec.ValidationError, ConfigError) as error:
                raise ConfigError(
                    f"{path}, line {number}, is not a trace ({type(error).__name__}: {error}): make the file again "
                    "with forerun bench trace"
                ) from error


def parse_trace(values: dict[str, Any]) -> AnswerTrace:
    """Parse a trace from JSON; unknown keys are errors."""
    unknown = sorted(set(values) - {item.name for item in fields(AnswerTrace)})
    if unknown:
        raise ValueError(f"unknown keys {', '.join(unknown)}")
    return msgspec.convert(values, AnswerTrace)
