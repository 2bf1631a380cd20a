"""Who drafts, and how: one config for each kind of drafter, each with only its own knobs."""

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from forerun.core.errors import require
from forerun.core.field_types import read_fields, setting
from forerun.core.model_spec import WeightFormat

BUILTIN_TARGET: Final = "builtin"
BUILTIN_DRAFT: Final = "builtin-draft"
SMOLLM2_DRAFT: Final = "smollm2-draft"
MIN_MATCH: Final = 2  # tokens at the end of the text, at least, whose earlier place gives a tree its looked-up chain
MAX_MATCH: Final = 5  # tokens at the end of the text that are looked for first
MOST_CHILDREN: Final = 16  # of an expanded node: the kernels find the top 16 continuations of a token
MAX_RANKS: Final = 64  # that share one model; more has never been tried
LayerSearch = Literal["gated", "paper", "off"]

# The draft models of this package by the fingerprint of the vocabulary that they draft for, see text/vocabulary: a
# target is the same in a folder, in a GGUF file and under any name, and its tuned descendants can be drafted for too.
KNOWN_DRAFTS: Final = {"465da6fb": BUILTIN_DRAFT, "e73c6dd8": SMOLLM2_DRAFT}

# The most that each setting of a tree can be, and why.
CEILINGS: Final = {
    "verify_width": (128, "the GPU's table of a pass has room for any tree of so many nodes"),
    "draft_width": (128, "the GPU's table of a pass has room for any tree of so many nodes"),
    "depth": (127, "no tree of 128 rows has more levels below its root"),
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
        adaptive: take the widths as upper limits, and choose them each round by what rows cost and the tree promises.
    """

    model: str = BUILTIN_DRAFT
    verify_width: int = setting(16, "--verify-width", help="Rows the target verifies per round.")
    draft_width: int = setting(8, "--draft-width", help="Nodes one draft step expands.")
    depth: int = setting(
        8, "--depth", "--spec-tokens", "--num-draft-tokens", "--num-speculative-tokens", "--draft-max",
        help="Draft steps per round; with prompt_lookup, tokens it proposes.",
    )  # fmt: skip
    adaptive: bool = setting(True, "--adaptive/--fixed-widths", help="Take the widths as limits, or as they are.")

    def __post_init__(self) -> None:
        read_fields(self)
        require_shape(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLookup:
    """Continuations of earlier occurrences of the last few tokens; no model at all.

    Args:
        verify_width: rows the target verifies per round, root included.
        adaptive: take verify_width as an upper limit, and propose so many tokens of a continuation, or none, as pay by
            what rows cost and by how often such continuations came true in the texts so far.
    """

    verify_width: int = setting(8, "--verify-width", help="Rows the target verifies per round.")
    adaptive: bool = setting(True, "--adaptive/--fixed-widths", help="Take the widths as limits, or as they are.")

    def __post_init__(self) -> None:
        read_fields(self)
        require_shape(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecycling:
    """A tree from the target's own successors of every token so far; no model at all (arXiv 2408.08696).

    Args:
        verify_width: rows the target verifies per round, root included.
        adaptive: take verify_width as an upper limit, and verify so many rows, or the root alone, as pay by what rows
            cost and by how often such guesses came true so far.
    """

    verify_width: int = setting(16, "--verify-width", help="Rows the target verifies per round.")
    adaptive: bool = setting(True, "--adaptive/--fixed-widths", help="Take the widths as limits, or as they are.")

    def __post_init__(self) -> None:
        read_fields(self)
        require_shape(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSkip:
    """The target drafts for itself with sublayers left out, on its own cache (SWIFT, arXiv 2410.06916).

    Args:
        verify_width: rows the target verifies per round, root included.
        depth: draft passes per round at most, hence levels below the root.
        adaptive: draft on as long as it is worth its time by what passes cost, and not at all where plain decoding is
            faster; else as far as `depth`, or until what would be drafted next is unlikely.
        search: how the skipped sublayers are found: "gated" scores candidates within verification passes, "paper" is
            SWIFT's own search, with a draft that ends and branches as the paper's does, see `paper_layer_skip`; "off"
            takes the best known set, else every other layer.
        sets: a file with known sets; None: the one that `forerun prepare` left beside the model.
        weights: "int8" or "int4" drafts with a copy of the weights rounded to 8 or 4 bits, beside the plain ones.
    """

    verify_width: int = setting(16, "--verify-width", help="Rows the target verifies per round.")
    depth: int = setting(12, "--depth", help="Draft steps per round.")
    adaptive: bool = setting(True, "--adaptive/--fixed-widths", help="Take the widths as limits, or as they are.")
    search: LayerSearch = setting(
        "gated", "--search", help="How layer_skip finds what to skip; paper drafts as SWIFT does [gated]."
    )
    sets: str | None = setting(
        None, "--skip-sets", help="File with sets that layer_skip may skip [what prepare found]."
    )  # fmt: skip
    weights: WeightFormat = setting(
        "plain", "--draft-weights", help="Copy of the weights that layer_skip drafts with [none]."
    )  # fmt: skip

    def __post_init__(self) -> None:
        read_fields(self)
        require_shape(self)


def require_shape(config: object) -> None:
    """Raise ConfigError for a width, depth or length of a drafter that is below 1 or above its ceiling."""
    for name, (ceiling, reason) in CEILINGS.items():
        value = getattr(config, name, 1)
        require(value >= 1, f"{name} {value} must be >= 1")
        require(value <= ceiling, f"{name} {value} must be <= {ceiling}: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """A draft model in a separate process that grows its tree while the target verifies (SwiftSpec, 2506.11309).

    Args:
        draft: the model and the shape of its tree. It grows until the verdict, so that `depth` has
            no meaning here, and `adaptive` chooses the verified rows alone. With `LayerSkip` the process holds what is
            kept of the target; the skip set is fixed then, as that process does not verify.
        ranks: processes that share the draft, each with a part of every layer, on as many GPUs from `device` on, or on
            the CPU.
        device: the draft's torch device; None: the target's, and where several ranks share target or draft, the GPU
            behind the target's last.
        cores: CPU cores for the process; empty: the last ones, if there are enough to leave some to the target.
        num_threads: CPU threads of the process, or of each rank; None: one.
        address: "host:port" of a `forerun worker --listen` to use, in place of starting a process.
        key_file: the key shared with that worker; may be left out on this host.
    """

    draft: DraftModel | LayerSkip = field(default_factory=DraftModel)
    cores: tuple[int, ...] = setting((), "--drafter-cores", help="CPU cores for a parallel drafter, such as 2,3.")
    ranks: int = setting(1, "--draft-ranks", help="Processes that share a parallel drafter's model.")
    device: str | None = setting(None, "--draft-device", help="A parallel drafter's torch device [the target's].")
    num_threads: int | None = None
    address: str | None = setting(
        None, "--drafter-address", help="HOST:PORT of a forerun worker that drafts in parallel."
    )  # fmt: skip
    key_file: str | None = setting(None, "--key-file", help="File with the key shared with that worker.")

    def __post_init__(self) -> None:
        read_fields(self)
        require(self.num_threads is None or self.num_threads >= 1, f"num_threads {self.num_threads} must be >= 1")
        require(
            self.address is None or not self.cores, "cores are those of a process started here: leave out the address"
        )
        require(self.key_file is None or self.address is not None, "a key_file is of no use without an address")
        require(1 <= self.ranks <= MAX_RANKS, f"ranks {self.ranks} of a draft must lie in [1, {MAX_RANKS}]")
        require(
            self.ranks == 1 or self.address is None,
            "ranks are those of a process started here: leave out the address, or say forerun worker --ranks there",
        )
        require(
            self.ranks == 1 or isinstance(self.draft, DraftModel),
            "a part of the target that drafts for it has one rank: take ranks 1, or a draft model",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Automatic:
    """The fastest of several drafters for model, machine and temperature, found while the first answers are written.

    Args:
        learnt: folder in which what was found is kept for the next start; None: it is not kept.
    """

    learnt: str | None = None

    def __post_init__(self) -> None:
        read_fields(self)


def paper_layer_skip() -> LayerSkip:
    """SWIFT with the settings of its paper: its search, a chain of up to 25 tokens while the draft is sure of them,
    runners-up beside each, and nothing that the paper does not have."""
    return LayerSkip(search="paper", verify_width=32, depth=25, adaptive=False)


DrafterConfig: TypeAlias = NoDrafter | DraftModel | Parallel | PromptLookup | TokenRecycling | LayerSkip | Automatic


def automatic_drafter(draft: str | None = None) -> DrafterConfig:
    """The named draft model, else the fastest of what needs no name."""
    return Automatic() if draft is None else DraftModel(model=draft)
