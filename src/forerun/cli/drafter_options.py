"""The flags that say who drafts, and how."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, Final

from forerun.cli.declare import option
from forerun.cli.speculative_config import read_speculative_config
from forerun.core.drafter_config import (
    BUILTIN_DRAFT,
    BUILTIN_TARGET,
    DrafterConfig,
    DraftModel,
    LayerSkip,
    NoDrafter,
    Parallel,
    PromptLookup,
    automatic_drafter,
    paper_layer_skip,
    parallel_draft,
)
from forerun.core.errors import ConfigError

SPECULATION: Final = "Speculation"


class DrafterName(StrEnum):
    """Who drafts. auto: the named draft model, else prompt lookup. ngram: prompt lookup."""

    AUTO = "auto"
    NONE = "none"
    DRAFT_MODEL = "draft_model"
    PARALLEL = "parallel"
    PROMPT_LOOKUP = "prompt_lookup"
    NGRAM = "ngram"
    LAYER_SKIP = "layer_skip"


class LayerSearchName(StrEnum):
    """How skipped sublayers are found. gated: within verification passes; paper: as SWIFT does; off: not at all."""

    GATED = "gated"
    PAPER = "paper"
    OFF = "off"


class DraftWeights(StrEnum):
    """What a target that drafts for itself drafts with. plain: its own weights; else a copy in so many bits."""

    PLAIN = "plain"
    INT8 = "int8"
    INT4 = "int4"


SHAPE: Final = ("verify_width", "draft_width", "adaptive")
# The flags of a target that drafts for itself, and the fields they stand for.
SELF: Final[Mapping[str, str]] = {
    "search": "search",
    "skip_sets": "sets",
    "draft_weights": "weights",
}
ITSELF: Final = "self"  # as a draft
OF_ITSELF: Final = ("skip_sets", "draft_weights")  # of a parallel drafter that is the target with sublayers left out
OWN_PROCESS: Final = ("draft", "drafter_cores", "draft_device")  # of no use to a worker that others have started
# The flags each drafter heeds; where one is foreign, the first drafter that heeds it is recommended.
FLAGS: Final[Mapping[DrafterName, Sequence[str]]] = {
    DrafterName.DRAFT_MODEL: ("draft", *SHAPE, "depth"),
    DrafterName.LAYER_SKIP: ("verify_width", "adaptive", "depth", *SELF),
    DrafterName.PARALLEL: (*SHAPE, *OWN_PROCESS, "drafter_address", "key_file", *OF_ITSELF),
    DrafterName.PROMPT_LOOKUP: ("verify_width", "adaptive", "depth"),
    DrafterName.NONE: (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterOptions:
    """Who drafts; the shape of what is drafted; where a drafter in a process of its own is."""

    draft: Annotated[
        str | None,
        option(
            "--draft",
            "--draft-model",
            "-md",
            help="Smaller model with the same tokens; self: the target itself with sublayers left out.",
            panel=SPECULATION,
        ),
    ] = None
    drafter: Annotated[
        DrafterName,
        option(
            "--drafter",
            "--spec-method",
            help="Who drafts; parallel drafts in a process of its own, ngram is prompt_lookup, and with layer_skip the "
            "target drafts for itself.",
            panel=SPECULATION,
        ),
    ] = DrafterName.AUTO
    verify_width: Annotated[
        int | None, option("--verify-width", help="Rows the target verifies per round.", panel=SPECULATION)
    ] = None
    draft_width: Annotated[
        int | None, option("--draft-width", help="Nodes one draft step expands.", panel=SPECULATION)
    ] = None
    depth: Annotated[
        int | None,
        option(
            "--depth",
            "--spec-tokens",
            "--num-draft-tokens",
            "--num-speculative-tokens",
            "--draft-max",
            help="Draft steps per round; with prompt_lookup, tokens it proposes.",
            panel=SPECULATION,
        ),
    ] = None
    adaptive: Annotated[
        bool | None,
        option("--adaptive/--fixed-widths", help="Take the widths as limits, or as they are.", panel=SPECULATION),
    ] = None
    drafter_cores: Annotated[
        str | None,
        option("--drafter-cores", help="CPU cores for a parallel drafter, such as 2,3.", panel=SPECULATION),
    ] = None
    draft_device: Annotated[
        str | None,
        option("--draft-device", help="A parallel drafter's torch device [the target's].", panel=SPECULATION),
    ] = None
    drafter_address: Annotated[
        str | None,
        option("--drafter-address", help="HOST:PORT of a forerun worker that drafts in parallel.", panel=SPECULATION),
    ] = None
    key_file: Annotated[
        str | None, option("--key-file", help="File with the key shared with that worker.", panel=SPECULATION)
    ] = None

    search: Annotated[
        LayerSearchName | None,
        option(
            "--search", help="How layer_skip finds what to skip; paper drafts as SWIFT does [gated].", panel=SPECULATION
        ),
    ] = None
    skip_sets: Annotated[
        str | None,
        option("--skip-sets", help="File with sets that layer_skip may skip [what prepare found].", panel=SPECULATION),
    ] = None
    draft_weights: Annotated[
        DraftWeights | None,
        option("--draft-weights", help="Copy of the weights that layer_skip drafts with [none].", panel=SPECULATION),
    ] = None

    speculative_config: Annotated[
        str | None,
        option("--speculative-config", help="A drafter in JSON, as vLLM takes it.", panel=SPECULATION),
    ] = None

    def config(self, model: str) -> DrafterConfig:
        """The drafter these flags ask for, for the target `model`."""
        if self.speculative_config is not None:
            if self != DrafterOptions(speculative_config=self.speculative_config):
                raise ConfigError("--speculative-config goes without other flags of drafters: leave them out")
            return read_speculative_config(self.speculative_config)
        chosen = self._choose(model)
        self._refuse_foreign(name_of(chosen))
        shape = self._given((*SHAPE, "depth"))
        if isinstance(chosen, PromptLookup) and (depth := shape.pop("depth", None)) is not None:
            shape.setdefault("verify_width", depth + 1)  # the root is verified too
        if isinstance(chosen, Parallel):
            if isinstance(chosen.draft, LayerSkip) and "draft_width" in shape:
                raise ConfigError("--draft-width has no effect on --draft self, which drafts a chain: leave it out")
            return replace(chosen, draft=replace(chosen.draft, **shape))
        return replace(chosen, **shape)

    def _choose(self, model: str) -> DrafterConfig:
        match self.drafter:
            case DrafterName.AUTO if self.draft == ITSELF:
                return self._layer_skip()
            case DrafterName.AUTO:
                return automatic_drafter(self.draft)
            case DrafterName.NONE:
                return NoDrafter()
            case DrafterName.DRAFT_MODEL if self.draft == ITSELF:
                raise ConfigError("--draft self is the target itself: choose --drafter layer_skip, or parallel")
            case DrafterName.DRAFT_MODEL:
                return DraftModel(model=self._draft_for(model))
            case DrafterName.PARALLEL:
                return self._parallel(model)
            case DrafterName.PROMPT_LOOKUP | DrafterName.NGRAM:
                return PromptLookup()
            case DrafterName.LAYER_SKIP:
                return self._layer_skip()

    def _layer_skip(self) -> LayerSkip:
        fields = {SELF[flag]: value for flag, value in self._given(SELF).items()}
        start = paper_layer_skip() if self.search is LayerSearchName.PAPER else LayerSkip()
        return replace(start, **{name: getattr(value, "value", value) for name, value in fields.items()})

    def _parallel(self, model: str) -> Parallel:
        if self.drafter_address is not None:
            return self._listening(self.drafter_address)
        of_itself = self._given(OF_ITSELF)
        if of_itself and self.draft != ITSELF:
            raise ConfigError(f"{_no_effect(of_itself)} on a draft model: leave it out, or say --draft self")
        chosen = Parallel(
            device=self.draft_device,
            cores=read_cores(self.drafter_cores, flag="--drafter-cores"),
            key_file=self.key_file,
        )
        draft = self._layer_skip() if self.draft == ITSELF else replace(parallel_draft(), model=self._draft_for(model))
        return replace(chosen, draft=draft)

    def _listening(self, address: str) -> Parallel:
        """A worker that others have started, with a model, a device and cores of its own."""
        needless = self._given((*OWN_PROCESS, *OF_ITSELF))
        if needless:
            raise ConfigError(
                f"{_no_effect(needless)} on the worker at {address}, which was started with its own model, "
                "device and cores: leave it out here, and say it to forerun worker"
            )
        return Parallel(address=address, key_file=self.key_file)

    def _draft_for(self, model: str) -> str:
        if self.draft is None and model != BUILTIN_TARGET:
            raise ConfigError(f"--drafter {self.drafter} needs a draft for {model}: name a smaller model with --draft")
        return BUILTIN_DRAFT if self.draft is None else self.draft

    def _refuse_foreign(self, chosen: DrafterName) -> None:
        """Every flag given must be one that this drafter heeds."""
        all_flags = dict.fromkeys(flag for flags in FLAGS.values() for flag in flags)
        foreign = [flag for flag in self._given(all_flags) if flag not in FLAGS[chosen]]
        if chosen is DrafterName.LAYER_SKIP and self.draft == ITSELF:
            foreign.remove("draft")
        if foreign:
            heeding = [name for name, flags in FLAGS.items() if set(foreign) <= set(flags)]
            advice = f"leave it out, or choose --drafter {heeding[0]}" if heeding else "leave it out"
            raise ConfigError(f"{_no_effect(foreign)} on the drafter {chosen}: {advice}")

    def _given(self, names: Iterable[str]) -> dict[str, Any]:
        """Those of the flags that were given, with their values."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def read_cores(text: str | None, *, flag: str) -> tuple[int, ...]:
    """CPU cores written as 2,3, all of them open to this process; none without a text."""
    try:
        cores = tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise ConfigError(f"{flag} {text!r} must be numbers with commas between them, such as 2,3") from None
    known = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(cores)
    foreign = [core for core in cores if core not in known]
    if foreign:
        raise ConfigError(f"{flag} {text}: core {foreign[0]} is not among those this process may use, {sorted(known)}")
    return cores


def _no_effect(names: Iterable[str]) -> str:
    flags = [f"--{name.replace('_', '-')}" for name in names]
    return f"{' and '.join(flags)} {'has' if len(flags) == 1 else 'have'} no effect"


def name_of(drafter: DrafterConfig) -> DrafterName:
    match drafter:
        case NoDrafter():
            return DrafterName.NONE
        case DraftModel():
            return DrafterName.DRAFT_MODEL
        case Parallel():
            return DrafterName.PARALLEL
        case PromptLookup():
            return DrafterName.PROMPT_LOOKUP
        case LayerSkip():
            return DrafterName.LAYER_SKIP
