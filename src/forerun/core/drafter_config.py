"""Who drafts, and how: one config for each kind of drafter, each with only its own knobs."""

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from forerun.core.errors import require
from forerun.core.field_types import read_fields
from forerun.core.model_spec import WeightFormat
from forerun.core.sublayers import Sublayer

BUILTIN_TARGET: Final = "builtin"
BUILTIN_DRAFT: Final = "builtin-draft"
MIN_MATCH: Final = 2  # last tokens of the text looked for, at least, for what `DraftModel.lookup` hangs into a tree
MAX_MATCH: Final = 5  # and at most
LayerSearch = Literal["gated", "paper", "off"]

# The most that each setting of a tree can be, and why.
CEILINGS: Final = {
    "verify_width": (128, "the GPU's table of a pass has room for any tree of so many nodes"),
    "draft_width": (128, "the GPU's table of a pass has room for any tree of so many nodes"),
    "depth": (127, "no tree of 128 rows has more levels below its root"),
    "children": (16, "the kernels rank so many continuations of a token"),
    "max_match": (16, "suffixes of every length up to it are kept for each token of the text"),
}


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
        read_fields(self)
        require_shape(self)
        require(0.0 <= self.min_mass <= 1.0, f"min_mass {self.min_mass} must lie in [0, 1] (0 grows to the full depth)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLookup:
    """Continuations of earlier occurrences of the last few tokens; no model at all.

    Args:
        verify_width: rows the target verifies per round, root included.
        max_match: longest suffix looked for, in tokens.
        min_match: shortest suffix that counts as a match.
        adaptive: take verify_width as an upper limit, and propose so many tokens of a continuation, or none, as pay by
            what rows cost and by how often such continuations came true in the texts so far.
    """

    verify_width: int = 8
    max_match: int = 4
    min_match: int = 2
    adaptive: bool = True

    def __post_init__(self) -> None:
        read_fields(self)
        require_shape(self)
        require(
            1 <= self.min_match <= self.max_match,
            f"min_match {self.min_match} and max_match {self.max_match} must satisfy 1 <= min_match <= max_match",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSkip:
    """The target drafts for itself with sublayers left out, on its own cache (SWIFT, arXiv 2410.06916).

    Args:
        verify_width: rows the target verifies per round, root included.
        draft_width: nodes one draft pass expands; 1 drafts a chain, with the runners-up of every token beside it.
        depth: draft passes per round at most, hence levels below the root.
        children: children considered per expanded node.
        noise_aware: at temperature > 0 rank children by log q + g with the target's own noise, not by log q.
        lookup: hang what followed the last tokens earlier in the text into the tree before it grows.
        adaptive: draft on as long as it is worth its time by what passes cost, and not at all where plain decoding is
            faster; else until `depth`, `min_mass` or `min_confidence` end it.
        min_mass: a draft ends where the nodes it would expand are together less likely than this, in [0, 1]; of no
            effect where `adaptive` decides.
        min_confidence: nothing is drafted behind a token that the draft gave less than this, in [0, 1]; SWIFT's is 0.8.
        search: how the skipped sublayers are found: "gated" scores candidates within verification passes, "paper" is
            SWIFT's own search, "off" takes the best known set, else every other layer.
        search_share: part of the time that the gated search may take at most.
        sets: a file with known sets; None: the one that `forerun prepare` left beside the model.
        skipped: the sublayers to start with, as (layer, "attention" or "mlp"); empty: the best known set.
        weights: "int8" or "int4" drafts with a copy of the weights rounded to so many bits, beside the plain ones.
        seed: of the search, which has no influence on the text.
    """

    verify_width: int = 16
    draft_width: int = 1
    depth: int = 12
    children: int = 4
    noise_aware: bool = True
    lookup: bool = True
    adaptive: bool = True
    min_mass: float = 0.3
    min_confidence: float = 0.0
    search: LayerSearch = "gated"
    search_share: float = 0.01
    sets: str | None = None
    skipped: tuple[Sublayer, ...] = ()
    weights: WeightFormat = "plain"
    seed: int = 0

    def __post_init__(self) -> None:
        read_fields(self)
        require_shape(self)
        for name in ("min_mass", "min_confidence"):
            require(0.0 <= getattr(self, name) <= 1.0, f"{name} {getattr(self, name)} must lie in [0, 1]")
        require(0.0 < self.search_share <= 1.0, f"search_share {self.search_share} must lie in (0, 1]")
        require(self.seed >= 0, f"seed {self.seed} of the search must be >= 0")


def require_shape(config: object) -> None:
    """Raise ConfigError for a width, depth or length of a drafter that is below 1 or above its ceiling."""
    for name, (ceiling, reason) in CEILINGS.items():
        value = getattr(config, name, 1)
        require(value >= 1, f"{name} {value} must be >= 1")
        require(value <= ceiling, f"{name} {value} must be <= {ceiling}: {reason}")


def parallel_draft() -> DraftModel:
    """The built-in draft with the widths that suit a tree which grows for nothing while the target verifies."""
    return DraftModel(verify_width=16, draft_width=8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """A draft model in a process of its own that grows its tree while the target verifies (SwiftSpec, 2506.11309).

    Args:
        draft: the model and the shape of its tree. It grows until the verdict, so that `depth` and `min_mass` have
            no meaning here, and `adaptive` chooses the verified rows alone. With `LayerSkip` the process holds what is
            kept of the target; what is skipped is fixed then, as nobody there verifies.
        device: the draft's torch device; None: the target's.
        cores: CPU cores for the process; empty: the last ones, if there are enough to leave some to the target.
        num_threads: CPU threads of the process; None: one.
        address: "host:port" of a `forerun worker --listen` to use, in place of starting a process.
        key_file: the key shared with that worker; may be left out on this host.
        ahead: send the tree ahead of the verdict, so that the target need not wait where the tree has the answer.
        fill: where there is no tree, take what followed the last tokens earlier in the text.
        calibrate: learn online how often the target agrees with the draft's probabilities.
        repairs: expansions between verdict and answer, at most: the first after a miss always, others where they pay.
        overrun: start an expansion that ends at most so many of its own lengths after the verdict is expected.
        trace: have the process tell when it was at work, for a timeline.
    """

    draft: DraftModel | LayerSkip = field(default_factory=parallel_draft)
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
        read_fields(self)
        require(self.num_threads is None or self.num_threads >= 1, f"num_threads {self.num_threads} must be >= 1")
        require(1 <= self.repairs <= 16, f"repairs {self.repairs} must lie in [1, 16]")
        require(0.0 <= self.overrun <= 1e6, f"overrun {self.overrun} must lie in [0, 1e6]")
        require(
            self.address is None or not self.cores, "cores are those of a process started here: leave out the address"
        )
        require(self.key_file is None or self.address is not None, "a key_file is of no use without an address")


def paper_layer_skip() -> LayerSkip:
    """SWIFT with the settings of its paper: its search, a chain of up to 25 tokens while the draft is sure of them,
    runners-up beside each, and nothing that the paper does not have."""
    return LayerSkip(
        search="paper", verify_width=32, depth=25, children=3, lookup=False, adaptive=False, min_mass=0.0,
        min_confidence=0.8, noise_aware=False,
    )  # fmt: skip


DrafterConfig: TypeAlias = NoDrafter | DraftModel | Parallel | PromptLookup | LayerSkip


def automatic_drafter(draft: str | None = None) -> DrafterConfig:
    """The named draft model, else prompt lookup, which needs no model and costs next to nothing where it does not pay.

    So also for the built-in target: its draft model's passes cost more than they bring at temperatures above 0.
    """
    if draft is not None:
        return DraftModel(model=draft)
    return PromptLookup()
