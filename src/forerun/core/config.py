"""What a user can ask for: frozen, checked when built, unknown keys refused by Python itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from forerun.core.errors import ConfigError
from forerun.core.pace import read_device

DTypeName = Literal["auto", "float32", "bfloat16", "float16", "float64", "int8", "int4"]
WeightFormat = Literal["plain", "int8", "int4"]  # of the weights of linear layers
Exactness = Literal["fast", "exact"]
KernelsName = Literal["auto", "torch"]
BUILTIN_TARGET = "builtin"
BUILTIN_DRAFT = "builtin-draft"


def require(condition: bool, message: str) -> None:
    """Raise ConfigError with `message` unless `condition` holds."""
    if not condition:
        raise ConfigError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and when to stop. temperature 0 is greedy; nothing else is.

    `seed` None draws a fresh seed for each request. `max_new_tokens` None means 256, or as many as still fit.
    Filters apply in the order penalties, bias, temperature, top_k, top_p, min_p.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    max_new_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        require(
            self.temperature == 0.0 or 1e-4 <= self.temperature < float("inf"),
            f"temperature {self.temperature} must be 0 (greedy) or a finite number of at least 0.0001",
        )
        require(self.top_k >= 0, f"top_k {self.top_k} must be >= 0 (0 switches it off)")
        require(0.0 < self.top_p <= 1.0, f"top_p {self.top_p} must lie in (0, 1] (1 switches it off)")
        require(0.0 <= self.min_p <= 1.0, f"min_p {self.min_p} must lie in [0, 1] (0 switches it off)")
        require(
            0.0 < self.repetition_penalty < float("inf"),
            f"repetition_penalty {self.repetition_penalty} must be finite and > 0 (1 switches it off)",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            require(-2.0 <= value <= 2.0, f"{name} {value} must lie in [-2, 2] (0 switches it off)")
        require(
            self.max_new_tokens is None or self.max_new_tokens >= 1,
            f"max_new_tokens {self.max_new_tokens} must be >= 1, or None for 256 or as many as fit",
        )
        require(
            not isinstance(self.stop, str), f'stop {self.stop!r} must be a tuple of strings: write ("{self.stop}",)'
        )
        require(
            isinstance(self.stop_token_ids, Sequence), f"stop_token_ids {self.stop_token_ids!r} must be a tuple of ids"
        )
        for token_id, bias in self.logit_bias.items():
            require(
                bias < float("inf"), f"logit_bias of token {token_id} is {bias}: finite or minus infinity is needed"
            )
        require("" not in self.stop, "stop holds an empty string, which would stop every text at once: leave it out")
        require(
            self.seed is None or 0 <= self.seed < 2**63,
            f"seed {self.seed} must lie in [0, 2**63), or be None for a fresh one per request",
        )

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NoDrafter:
    """Plain autoregressive decoding: the baseline every other drafter must reproduce."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModel:
    """A best-first tree grown by a smaller model before each verification (SpecExec, arXiv 2406.02532).

    Args:
        model: checkpoint folder, hub name, or the built-in draft.
        verify_width: rows the target verifies per round, root included.
        draft_width: nodes one draft forward expands.
        depth: draft forwards per round at most, hence levels below the root.
        min_mass: growth ends when the nodes it would expand are together less likely than this, in [0, 1]; of no effect
            where `adaptive` decides.
        children: children considered per expanded node.
        noise_aware: at temperature > 0 rank children by log q + g with the target's own noise, not by log q.
        lookup: hang what followed the last tokens earlier in the text into the tree before it grows.
        adaptive: take the widths as upper limits, and choose them each round by what rows cost and the tree promises.
    """

    model: str = BUILTIN_DRAFT
    verify_width: int = 16
    draft_width: int = 8
    depth: int = 8
    min_mass: float = 0.3
    children: int = 4
    noise_aware: bool = True
    lookup: bool = True
    adaptive: bool = True

    def __post_init__(self) -> None:
        for name in ("verify_width", "draft_width", "depth", "children"):
            require(getattr(self, name) >= 1, f"{name} {getattr(self, name)} must be >= 1")
        require(0.0 <= self.min_mass <= 1.0, f"min_mass {self.min_mass} must lie in [0, 1] (0 grows to the full depth)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLookup:
    """Continuations of earlier occurrences of the last few tokens; no model at all.

    Args:
        verify_width: rows the target verifies per round, root included.
        max_match: longest suffix looked for, in tokens.
        min_match: shortest suffix that counts as a match.
    """

    verify_width: int = 8
    max_match: int = 4
    min_match: int = 2

    def __post_init__(self) -> None:
        require(self.verify_width >= 1, f"verify_width {self.verify_width} must be >= 1")
        require(
            1 <= self.min_match <= self.max_match,
            f"min_match {self.min_match} and max_match {self.max_match} must satisfy 1 <= min_match <= max_match",
        )


def parallel_draft() -> DraftModel:
    """The built-in draft with the widths that suit a tree which grows for nothing while the target verifies."""
    return DraftModel(verify_width=16, draft_width=8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """A draft model in a process of its own that grows its tree while the target verifies (SwiftSpec, 2506.11309).

    Args:
        draft: the model and the shape of its tree. It grows until the verdict, so that `depth` and `min_mass` have
            no meaning here, and `adaptive` chooses the verified rows alone.
        device: the draft's torch device; None: the target's.
        cores: CPU cores for the process; empty: the last ones, if there are enough to leave some to the target.
        num_threads: CPU threads of the process; None: as many as are fastest by the engine's profile, else one.
        address: "host:port" of a `forerun worker --listen` to use, in place of starting a process.
        key_file: the key shared with that worker; may be left out on this host.
        ahead: send the tree ahead of the verdict, so that the target need not wait where the tree has the answer.
        fill: where there is no tree, take what followed the last tokens earlier in the text.
        calibrate: learn online how often the target agrees with the draft's probabilities.
        repairs: expansions between verdict and answer, at most: the first after a miss always, others where they pay.
        overrun: start an expansion that ends at most so many of its own lengths after the verdict is expected.
        trace: have the process tell when it was at work, for a timeline.
    """

    draft: DraftModel = field(default_factory=parallel_draft)
    device: str | None = None
    cores: tuple[int, ...] = ()
    num_threads: int | None = None
    address: str | None = None
    key_file: str | None = None
    ahead: bool = True
    fill: bool = True
    calibrate: bool = True
    repairs: int = 2
    overrun: float = 0.35
    trace: bool = False

    def __post_init__(self) -> None:
        for name in ("verify_width", "draft_width", "children"):
            width = getattr(self.draft, name)
            require(width <= 1024, f"{name} {width} of a parallel draft must be <= 1024")
        require(self.num_threads is None or self.num_threads >= 1, f"num_threads {self.num_threads} must be >= 1")
        require(1 <= self.repairs <= 16, f"repairs {self.repairs} must lie in [1, 16]")
        require(0.0 <= self.overrun <= 1e6, f"overrun {self.overrun} must lie in [0, 1e6]")
        require(
            self.address is None or not self.cores, "cores are those of a process started here: leave out the address"
        )
        require(self.key_file is None or self.address is not None, "a key_file is of no use without an address")


DrafterConfig: TypeAlias = NoDrafter | DraftModel | Parallel | PromptLookup


def automatic_drafter(target: str, draft: str | None) -> DrafterConfig:
    """The named draft model, or the built-in one for the built-in target, or prompt lookup, which needs no model."""
    if draft is not None:
        return DraftModel(model=draft)
    return DraftModel() if target == BUILTIN_TARGET else PromptLookup()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One engine: a target, where it runs, and who drafts for it.

    Args:
        target: checkpoint folder, hub name, or the built-in target.
        drafter: None takes what suits the target, see `automatic_drafter`.
        dtype: "auto" takes the checkpoint's own, except where the CPU would only emulate it. "int8" and "int4" round
            the weights of linear layers to so many bits on loading, of target and draft; the text is that of the
            rounded target.
        device: a torch device, such as "cpu" or "cuda:0"; "paced:target=13ms;draft=2ms" slows passes, see core/pace.
        max_length: tokens of prompt and answer together; None takes the model's own limit, but 8192 at most.
        exactness: "fast" uses any kernel; "exact" computes every row alone, so that its bits depend on nothing else.
        kernels: "auto" takes the native kernels on a CPU, where they were built; "torch" leaves them aside.
        num_threads: CPU threads; None leaves torch's own choice, less what a drafter's process takes.
        profile: a file that `forerun plan --calibrate` wrote, for drafters that choose their widths; None: what they
            need is measured at the start, in less than a second.
    """

    target: str = BUILTIN_TARGET
    drafter: DrafterConfig | None = None
    dtype: DTypeName = "auto"
    device: str = "cpu"
    max_length: int | None = None
    exactness: Exactness = "fast"
    kernels: KernelsName = "auto"
    num_threads: int | None = None
    profile: str | None = None

    def __post_init__(self) -> None:
        require(self.max_length is None or self.max_length >= 2, f"max_length {self.max_length} must be >= 2")
        require(self.num_threads is None or self.num_threads >= 1, f"num_threads {self.num_threads} must be >= 1")
        require(
            self.dtype in get_args(DTypeName), f"dtype {self.dtype!r} must be one of {', '.join(get_args(DTypeName))}"
        )
        require(self.exactness in ("fast", "exact"), f'exactness {self.exactness!r} must be "fast" or "exact"')
        require(self.kernels in get_args(KernelsName), f'kernels {self.kernels!r} must be "auto" or "torch"')
        read_device(self.device)  # raises for a paced device that cannot be read
