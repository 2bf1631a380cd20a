"""The drafters' configs: one for each kind of drafter, with only its own settings."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from forerun.core.errors import require
from forerun.core.field_types import read_fields, setting, settings
from forerun.core.model_spec import WeightFormat

BUILTIN_TARGET: Final = "builtin"
BUILTIN_DRAFT: Final = "builtin-draft"
BUILTIN_HEADS: Final = {"eagle3": "builtin-eagle3", "dflash": "builtin-dflash"}  # by their kind
SMOLLM2_DRAFT: Final = "smollm2-draft"
MIN_MATCH: Final = 2  # fewest tokens at the end of the text that prompt lookup matches
MAX_MATCH: Final = 5  # tokens at the end of the text that prompt lookup tries to match first
MOST_CHILDREN: Final = 16  # of an expanded node: the kernels find the top 16 continuations of a token
MAX_RANKS: Final = 64  # ranks that share one model; more were never tested
LayerSearch = Literal["gated", "paper", "off"]
# What parallel drafting adds to the scheme of SwiftSpec's paper, see drafting/policies.
Addition = Literal["send_ahead", "lookup", "calibration", "foresight", "repairs", "noise"]

# The draft models of this package by the fingerprint of the vocabulary that they draft for, see text/vocabulary: a
# target is the same in a folder, in a GGUF file and under any name, and the draft also fits fine-tuned versions of it.
AUTO_DRAFT: Final = "auto"  # as the name of a draft: the known one of its target
KNOWN_DRAFTS: Final = {"465da6fb": BUILTIN_DRAFT, "e73c6dd8": SMOLLM2_DRAFT}

WIDTHS_HELP: Final = "Widths are upper limits; with --fixed-widths they are always used in full."

# The settings of SWIFT's search, and the least and the most that each can be.
PAPERS: Final[Mapping[str, tuple[float, float]]] = {
    "skip_ratio": (0.01, 1.0),
    "window": (1, 256),
    "bayes_interval": (1, 2**31),
    "max_steps": (1, 2**31),
    "patience": (0, 2**31),
    "max_score": (0.0, 1.0),
    "confidence": (0.0, 1.0),
    "optimise": (False, True),
    "bayes": (False, True),
    "siblings": (False, True),
}

# The most that each setting of a tree can be, and why. The table of a pass on a GPU has room for so many nodes.
CEILINGS: Final = {
    "verify_width": (128, "no tree has more nodes, on any device"),
    "draft_width": (128, "no tree has more nodes, on any device"),
    "depth": (127, "no tree of 128 rows has more levels below its root"),
}


@settings
@dataclass(frozen=True, slots=True, kw_only=True)
class NoDrafter:
    """Plain autoregressive decoding, the baseline whose text every other drafter must reproduce."""


@settings
@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModel:
    """A best-first tree grown by a smaller model before each verification (SpecExec, arXiv 2406.02532).

    Args:
        model: checkpoint folder, hub name, or the built-in draft.
        verify_width: rows the target verifies per round, root included.
        draft_width: nodes one draft forward expands.
        depth: most draft forwards per round, and so most levels below the root.
        adaptive: use the widths as upper limits, and choose them each round by the cost of rows and the tree's expected
            acceptance.
    """

    model: str = BUILTIN_DRAFT
    verify_width: int = setting(16, "--verify-width", help="Rows the target verifies per round.")
    draft_width: int = setting(8, "--draft-width", help="Nodes one draft step expands.")
    depth: int = setting(
        8,
        "--depth",
        "--spec-tokens",
        "--num-draft-tokens",
        "--num-speculative-tokens",
        "--draft-max",
        help="Draft steps per round; with prompt_lookup, tokens it proposes.",
    )
    adaptive: bool = setting(True, "--adaptive/--fixed-widths", help=WIDTHS_HELP)

    def __post_init__(self) -> None:
        read_fields(self)
        require_named(self.model)
        require_shape(self)


@settings
@dataclass(frozen=True, slots=True, kw_only=True)
class DraftHead:
    """A tree by a small network that reads the target's own features. Its files determine its kind: EAGLE-3, DFlash,
    DFlash 2 or DSpark.

    A `DraftModel` whose `model` is such a head is read as a `DraftHead`.

    Args:
        model: folder or GGUF file of the head, or its hub name.
        verify_width, draft_width, depth, adaptive: as in `DraftModel`. A DFlash head needs one pass for the whole tree,
            so `draft_width` and `depth` have no effect on it.
    """

    model: str
    verify_width: int = 16
    draft_width: int = 8
    depth: int = 8
    adaptive: bool = True

    def __post_init__(self) -> None:
        read_fields(self)
        require_named(self.model)
        require_shape(self)

    @classmethod
    def of(cls, draft: DraftModel) -> "DraftHead":
        """The head of a config that names it as a draft model."""
        return cls(**asdict(draft))

    @property
    def shape(self) -> DraftModel:
        """The same settings of a draft model."""
        return DraftModel(**asdict(self))


DraftConfig: TypeAlias = DraftModel | DraftHead  # of a named draft


@settings
@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLookup:
    """Continuations of earlier occurrences of the last few tokens; no model at all.

    Args:
        verify_width: rows the target verifies per round, root included.
        adaptive: use verify_width as an upper limit, and propose only as many tokens of a continuation, or none, as are
            worth their rows' cost, by how often such continuations were accepted so far.
    """

    verify_width: int = setting(16, "--verify-width", help="Rows the target verifies per round.")
    adaptive: bool = setting(True, "--adaptive/--fixed-widths", help=WIDTHS_HELP)

    def __post_init__(self) -> None:
        read_fields(self)
        require_shape(self)


@settings
@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecycling:
    """A tree from the target's own successors of every token so far; no model at all (arXiv 2408.08696).

    Args:
        verify_width: rows the target verifies per round, root included.
        adaptive: use verify_width as an upper limit, and verify only as many rows, or only the root, as are worth their
            cost, by how often such guesses were accepted so far.
    """

    verify_width: int = setting(16, "--verify-width", help="Rows the target verifies per round.")
    adaptive: bool = setting(True, "--adaptive/--fixed-widths", help=WIDTHS_HELP)

    def __post_init__(self) -> None:
        read_fields(self)
        require_shape(self)


@settings
@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSkip:
    """The target drafts for itself with sublayers left out, on its own cache (SWIFT, arXiv 2410.06916).

    Args:
        verify_width: rows the target verifies per round, root included.
        depth: most draft passes per round, and so most levels below the root.
        adaptive: draft while a pass is worth its time, and not at all if plain decoding is faster; otherwise draft up
            to `depth`, or until the next token is unlikely.
        search: how the skipped sublayers are found: "gated" scores candidates within verification passes, "paper" is
            SWIFT's own search, with a draft that ends and branches as in the paper, see `paper_layer_skip`; "off" uses
            the best known set, else every other layer.
        sets: a file with known sets; None: the one that `forerun prepare` wrote next to the model.
        weights: "int8" or "int4" drafts with an additional copy of the weights rounded to 8 or 4 bits.
        skip_ratio: share of the skippable sublayers that a candidate skips, in [0.01, 1]; None: 0.45, and 0.5 for
            models of 34 billion parameters or more. This and all further settings belong to the search "paper", with
            the paper's values as defaults.
        window: tokens over which a candidate is scored, the first ones of the answer, in [1, 256].
        bayes_interval: number of candidates from one of Bayesian optimisation to the next; all others are random.
        max_steps: the search ends after more candidates than this,
        patience: or after more candidates without gain than this,
        max_score: or at a score greater than this, the share of the window's tokens that were guessed, in [0, 1].
        confidence: a draft ends after a token with a lower draft probability than this, in [0, 1].
        optimise: search at all; False: the first known set stays, else every other layer.
        bayes: use Bayesian optimisation; False: all candidates are random.
        siblings: verify each token of the chain with its runners-up; False: the chain alone.
    """

    verify_width: int = setting(16, "--verify-width", help="Rows the target verifies per round.")
    depth: int = setting(12, "--depth", help="Draft steps per round.")
    adaptive: bool = setting(True, "--adaptive/--fixed-widths", help=WIDTHS_HELP)
    search: LayerSearch = setting(
        "gated", "--search", help="How layer_skip finds what to skip; paper drafts as SWIFT does [gated]."
    )
    sets: str | None = setting(
        None, "--skip-sets", help="File with sets that layer_skip may skip [the file of prepare]."
    )
    weights: WeightFormat = setting(
        "plain", "--draft-weights", help="Copy of the weights that layer_skip drafts with [none]."
    )
    skip_ratio: float | None = setting(
        None, "--skip-ratio", help="Share of the sublayers that --search paper skips [0.45; 0.5 for large models]."
    )
    window: int = setting(32, "--search-window", help="Tokens over which --search paper scores a set.")
    bayes_interval: int = setting(25, "--bayes-interval", help="Sets from one Bayesian one to the next, of paper.")
    max_steps: int = setting(1000, "--search-steps", help="Sets after which --search paper ends.")
    patience: int = setting(300, "--search-patience", help="Sets without gain after which --search paper ends.")
    max_score: float = setting(0.95, "--search-score", help="Share of right guesses above which --search paper ends.")
    confidence: float = setting(0.8, "--draft-confidence", help="With --search paper, drafts end below it.")
    optimise: bool = setting(True, "--optimise/--no-optimise", help="Whether --search paper searches at all.")
    bayes: bool = setting(True, "--bayes/--no-bayes", help="Whether --search paper tries sets that are not random.")
    siblings: bool = setting(
        True, "--siblings/--no-siblings", help="Whether --search paper verifies each token with its runners-up."
    )

    def __post_init__(self) -> None:
        read_fields(self)
        require_shape(self)
        changed = [one.name for one in fields(self) if one.name in PAPERS and getattr(self, one.name) != one.default]
        require(
            self.search == "paper" or not changed,
            f"{' and '.join(changed)} {'belongs' if len(changed) == 1 else 'belong'} to SWIFT's search, but search is "
            f"{self.search!r}: set it to 'paper'",
        )
        for name, (least, most) in PAPERS.items():
            value = getattr(self, name)
            require(value is None or least <= value <= most, f"{name} {value} must lie in [{least}, {most}]")


def require_named(model: str) -> None:
    """Raise ConfigError for an empty name."""
    require(model != "", "the model of a drafter is an empty string: give a folder, a GGUF file or a hub name")


def require_shape(config: object) -> None:
    """Raise ConfigError for a width, depth or length of a drafter that is below 1 or above its ceiling."""
    for name, (ceiling, reason) in CEILINGS.items():
        value = getattr(config, name, 1)
        require(value >= 1, f"{name} {value} must be >= 1")
        require(value <= ceiling, f"{name} {value} must be <= {ceiling}: {reason}")


@settings
@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """A draft model in a separate process that grows its tree while the target verifies (SwiftSpec, 2506.11309).

    Args:
        draft: the model and the shape of its tree. The tree grows until the verdict, so `depth` is ignored, and
            `adaptive` chooses only the verified rows. With `LayerSkip` the process holds the part of the target that is
            not skipped; the skip set is then fixed, because that process does not verify.
        ranks: processes that share the draft, each with a part of every layer, on as many GPUs, starting at `device`,
            or on the CPU.
        device: the draft's torch device; None: the target's, or if several ranks share target or draft, the GPU after
            the target's last.
        cores: CPU cores for the process; empty: the last ones, if enough are left for the target.
        num_threads: CPU threads of the process, or of each rank; None: one.
        address: "host:port" of a `forerun worker --listen` to use, instead of starting a process.
        key_file: the key shared with that worker; optional on this host.
        without: additions to the paper's scheme that are left out; with all of them left out, it is the paper's scheme.
            They change the speed, and no text.
    """

    draft: DraftModel | LayerSkip = field(default_factory=DraftModel)
    cores: tuple[int, ...] = setting((), "--drafter-cores", help="CPU cores for a parallel drafter, such as 2,3.")
    ranks: int = setting(1, "--draft-ranks", help="Processes that share a parallel drafter's model.")
    device: str | None = setting(None, "--draft-device", help="A parallel drafter's torch device [the target's].")
    num_threads: int | None = None
    address: str | None = setting(
        None, "--drafter-address", help="HOST:PORT of a forerun worker that drafts in parallel."
    )
    key_file: str | None = setting(None, "--key-file", help="File with the key shared with that worker.")
    without: tuple[Addition, ...] = setting(
        (),
        "--without",
        help=f"Leave out an addition to the paper's parallel drafting: {', '.join(get_args(Addition))}; repeatable.",
    )

    def __post_init__(self) -> None:
        read_fields(self)
        require(self.num_threads is None or self.num_threads >= 1, f"num_threads {self.num_threads} must be >= 1")
        require(self.address is None or not self.cores, "cores are for a process started here: leave out the address")
        require(self.key_file is None or self.address is not None, "a key_file has no effect without an address")
        require(1 <= self.ranks <= MAX_RANKS, f"ranks {self.ranks} of a draft must lie in [1, {MAX_RANKS}]")
        require(
            self.ranks == 1 or self.address is None,
            "ranks are for a process started here: leave out the address, or set forerun worker --ranks there",
        )
        require(
            self.ranks == 1 or isinstance(self.draft, DraftModel),
            "a part of the target that drafts for it has one rank: take ranks 1, or a draft model",
        )


@settings
@dataclass(frozen=True, slots=True, kw_only=True)
class Automatic:
    """The fastest of several drafters for model, machine and temperature, found during the first answers.

    Args:
        draft: a draft model or head that is one of them; None: the package's draft model for the target, if it has one.
        learnt: folder in which the measurements are saved for the next start; None: they are not saved.
    """

    draft: DraftConfig | None = None
    learnt: str | None = None

    def __post_init__(self) -> None:
        read_fields(self)


def paper_layer_skip() -> LayerSkip:
    """SWIFT with the settings of its paper and nothing else: its search, and a chain of up to 25 confident tokens, each
    with as many runners-up as the paper gives it. Its largest tree has 131 rows, ours 128."""
    return LayerSkip(search="paper", verify_width=128, depth=25, adaptive=False)


def paper_parallel(draft: str = BUILTIN_DRAFT) -> Parallel:
    """SwiftSpec with the settings of its paper and nothing else: 8 rows, 8 nodes a draft pass, and no addition."""
    shape = DraftModel(model=draft, verify_width=8, draft_width=8, adaptive=False)
    return Parallel(draft=shape, without=get_args(Addition))


NamedConfig: TypeAlias = NoDrafter | DraftModel | Parallel | PromptLookup | TokenRecycling | LayerSkip | Automatic
DrafterConfig: TypeAlias = NamedConfig | DraftHead  # a head has no name: it is found by its files
DrafterName = Literal["none", "auto", "draft_model", "prompt_lookup", "recycling", "parallel", "layer_skip"]
PaperName = Literal["layer_skip_paper", "parallel_paper"]  # drafters with the settings of their papers


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterKind:
    """A row of the table of drafters.

    Args:
        config: its settings.
        loader: the function that loads it, as text "module:name", since it imports torch; "" where it is no drafter
            by itself.
        is_in_auto: `auto` tries it without being asked; it needs no model.
        more_flags: flags of the command line besides those of its config.
        grid: settings to tune it by; the first ones are the default.
    """

    config: type[NamedConfig]
    loader: str = ""
    is_in_auto: bool = False
    more_flags: tuple[str, ...] = ()
    grid: tuple[Mapping[str, Any], ...] = ({},)


DRAFTERS: Final[Mapping[DrafterName, DrafterKind]] = {
    "none": DrafterKind(config=NoDrafter),
    "auto": DrafterKind(config=Automatic),
    "draft_model": DrafterKind(
        config=DraftModel,
        loader="forerun.engine.drafters:load_draft",
        more_flags=("draft",),
        grid=(
            {},
            {"verify_width": 8},
            {"verify_width": 32},
            {"adaptive": False, "verify_width": 8, "draft_width": 4, "depth": 6},
            {"adaptive": False, "depth": 4},
            {"adaptive": False, "verify_width": 8, "depth": 4},
        ),
    ),
    "recycling": DrafterKind(
        config=TokenRecycling,
        loader="forerun.drafting.token_recycling:load",
        is_in_auto=True,
        grid=(
            {},
            {"verify_width": 8},
            {"verify_width": 12},
            {"verify_width": 24},
            {"adaptive": False, "verify_width": 8},
            {"adaptive": False, "verify_width": 12},
        ),
    ),
    "prompt_lookup": DrafterKind(
        config=PromptLookup,
        loader="forerun.drafting.prompt_lookup:load",
        is_in_auto=True,
        more_flags=("depth",),
        grid=(
            {},
            {"verify_width": 4},
            {"verify_width": 8},
            {"verify_width": 3},
            {"verify_width": 6},
            {"verify_width": 12},
        ),
    ),
    "layer_skip": DrafterKind(
        config=LayerSkip,
        loader="forerun.engine.self_drafter:load",
        grid=(
            {},
            {"weights": "int8"},
            {"weights": "int4"},
            {"depth": 6},
            {"verify_width": 4},
            {"verify_width": 8},
        ),
    ),
    "parallel": DrafterKind(
        config=Parallel,
        loader="forerun.engine.drafters:start_parallel",
        more_flags=("draft", "verify_width", "draft_width", "adaptive", "skip_sets", "draft_weights"),
        grid=(
            {},
            {"verify_width": 8, "adaptive": False},
            {"verify_width": 8},
            {"verify_width": 32},
            {"draft_width": 4},
            {"draft_width": 16},
        ),
    ),
}
WITHOUT_MODEL: Final[Mapping[str, Any]] = {  # with fixed widths
    name: replace(cast(Any, kind.config()), adaptive=False) for name, kind in DRAFTERS.items() if kind.is_in_auto
}


def drafter_name(config: DrafterConfig) -> DrafterName:
    """The name of a config's drafter; a draft head is named like the draft model as which it may be given."""
    return next((name for name, kind in DRAFTERS.items() if kind.config is type(config)), "draft_model")


def automatic_drafter(draft: str | None = None) -> DrafterConfig:
    """The automatic choice, with the named draft model or head among the drafters."""
    return Automatic(draft=None if draft is None else DraftModel(model=draft))


def draft_name(drafter: DrafterConfig) -> str | None:
    """The model or head that a drafter was told to draft with, if it is opened on this host."""
    match drafter:
        case DraftModel(model=draft) | DraftHead(model=draft):
            return draft
        case (
            Automatic(draft=DraftModel(model=draft) | DraftHead(model=draft))
            | Parallel(draft=DraftModel(model=draft), address=None)
        ):
            return draft
        case _:
            return None
