"""The flags that choose and configure the drafter."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, cast

from forerun.cli.flags import flagged, given_settings, option, option_name, with_flags_of
from forerun.cli.speculative_config import read_speculative_config
from forerun.core.drafter_config import (
    AUTO_DRAFT,
    DRAFTERS,
    Automatic,
    DrafterConfig,
    DrafterName,
    DraftModel,
    LayerSkip,
    PaperName,
    Parallel,
    PromptLookup,
    automatic_drafter,
    draft_name,
    drafter_name,
    paper_layer_skip,
    paper_parallel,
)
from forerun.core.errors import ConfigError

ITSELF: Final = "self"  # as a draft
# auto: the fastest of several drafters, the named draft among them. ngram: prompt lookup.
NameOrAlias = Literal[DrafterName, "ngram", PaperName]
ALIASES: Final[Mapping[str, DrafterName]] = {
    "ngram": "prompt_lookup", "layer_skip_paper": "layer_skip", "parallel_paper": "parallel",
}  # fmt: skip
# The flags whose values make a paper's drafter what it is.
SET_BY_PAPER: Final[Mapping[str, tuple[str, ...]]] = {"layer_skip_paper": ("search",), "parallel_paper": ("without",)}


def flags_of(config: type[Any]) -> tuple[str, ...]:
    """The option names of the flags of a config's fields."""
    return tuple(map(option_name, flagged(config)))


# These have no effect on a worker that was started separately.
OF_A_PROCESS: Final = ("draft", "drafter_cores", "draft_ranks", "draft_device")
OF_ITSELF: Final = ("skip_sets", "draft_weights")  # for a process that drafts with a part of the target
# The flags each drafter uses. The error about another drafter's flag recommends the first drafter that uses it.
USED_FLAGS: Final[Mapping[str, tuple[str, ...]]] = {
    name: (*flags_of(kind.config), *kind.more_flags) for name, kind in DRAFTERS.items()
}
ALL_FLAGS: Final = tuple(dict.fromkeys(sum(USED_FLAGS.values(), ())))
OFF_FLAGS: Final = {
    option_name(field): field.metadata["flags"][0].partition("/")[2]
    for kind in DRAFTERS.values()
    for field in flagged(kind.config)
}
DRAFT_FLAG: Final = option(
    "--draft",
    "--draft-model",
    "-md",
    help="Smaller model with the same tokens, or a draft head; auto: the one that forerun models lists for "
    "MODEL; self: the target itself with sublayers skipped.",
)


def flags_used(name: NameOrAlias) -> tuple[str, ...]:
    """The flags that a drafter uses; for auto, the one that adds a drafter to those that it tries."""
    if name == "auto":
        return ("draft",)
    used = USED_FLAGS[ALIASES.get(name, cast(DrafterName, name))]
    return tuple(flag for flag in used if flag not in SET_BY_PAPER.get(name, ()))


def flag_of(name: str, value: object) -> str:
    """The flag that gives an option this value: for a switch that is off, such as adaptive, --fixed-widths."""
    return OFF_FLAGS[name] if value is False else f"--{name.replace('_', '-')}"


@with_flags_of(*(kind.config for kind in DRAFTERS.values()), panel="Speculation")
class DrafterOptions:
    """The drafter, the shape of its drafts, and the place of a drafter in another process."""

    draft: Annotated[str | None, DRAFT_FLAG] = None
    drafter: Annotated[
        NameOrAlias,
        option(
            "--drafter",
            "--spec-method",
            help="The drafter; auto finds the fastest for model, machine and temperature, and also tries --draft, or "
            "with --fixed-widths uses it alone; parallel drafts in a separate process, ngram is prompt_lookup, with "
            "layer_skip the target drafts for itself, and two have the settings of their papers.",
        ),
    ] = "auto"
    speculative_config: Annotated[
        str | None, option("--speculative-config", help="A drafter as JSON, in vLLM's format.")
    ] = None

    def config(self, model: str) -> DrafterConfig:
        """The drafter these flags ask for, for the target `model`."""
        if self.speculative_config is not None:
            if self.drafter != "auto" or self._given(ALL_FLAGS):
                raise ConfigError("--speculative-config cannot be used with other drafter flags: leave them out")
            return read_speculative_config(self.speculative_config)
        if self.draft == AUTO_DRAFT:
            options: DrafterOptions = replace(cast(Any, self), draft=self._draft_for(model))
            return options.config(model)
        self._refuse(
            SET_BY_PAPER.get(self.drafter, ()),
            f"on {self.drafter}, which drafts as its paper does: leave it out, or choose --drafter "
            f"{ALIASES.get(self.drafter)}",
        )
        chosen = self._choose(model)
        self._refuse_foreign(chosen)
        given = given_settings(type(chosen), self)
        match chosen:
            case Automatic(draft=DraftModel() as draft):
                given["draft"] = replace(draft, **given_settings(DraftModel, self))
            case PromptLookup() if (depth := vars(self)["depth"]) is not None:
                given.setdefault("verify_width", depth + 1)  # the root is verified too
            case Parallel(draft=draft):
                given["cores"] = read_cores(given.get("cores"), flag="--drafter-cores")
                given["draft"] = replace(draft, **given_settings(type(draft), self))
        return replace(chosen, **given)

    def _choose(self, model: str) -> DrafterConfig:
        """The chosen drafter with its default settings."""
        is_fixed = vars(self)["adaptive"] is False
        match self.drafter:
            case "auto" if is_fixed and self.draft is not None and self.draft != ITSELF:
                return DraftModel(model=self.draft)
            case "auto" if self.draft != ITSELF:
                return automatic_drafter(self.draft)
            case "draft_model" if self.draft == ITSELF:
                raise ConfigError("--draft self is the target itself: choose --drafter layer_skip, or parallel")
            case "draft_model":
                return DraftModel(model=self._draft_for(model))
            case "parallel":
                return self._parallel(model)
            case "parallel_paper":
                return self._paper_parallel(model)
            case "layer_skip_paper":
                return paper_layer_skip()
            case "ngram":
                return PromptLookup()
            case "auto" | "layer_skip":
                return paper_layer_skip() if vars(self)["search"] == "paper" else LayerSkip()
            case name:
                return DRAFTERS[name].config()

    def _parallel(self, model: str) -> Parallel:
        address = vars(self)["drafter_address"]
        if address is not None:  # an external worker, with a separate model, device and cores
            self._refuse(
                (*OF_A_PROCESS, *OF_ITSELF),
                f"on the worker at {address}, which was started with its own model, device and cores: leave it out "
                "here, and give it to forerun worker",
            )
            return Parallel(address=address)
        if self.draft != ITSELF:
            self._refuse(OF_ITSELF, "on a draft model: leave it out, or use --draft self")
            return Parallel(draft=DraftModel(model=self._draft_for(model)))
        self._refuse(("draft_width",), "on --draft self, which drafts a chain: leave it out")
        return Parallel(draft=LayerSkip())

    def _paper_parallel(self, model: str) -> Parallel:
        parallel = self._parallel(model)
        if not isinstance(parallel.draft, DraftModel):
            raise ConfigError("the paper's parallel drafting uses a draft model: name one with --draft, not self")
        paper = paper_parallel(parallel.draft.model)
        return replace(parallel, draft=paper.draft, without=paper.without)

    def _draft_for(self, model: str) -> str:
        from forerun.engine.known_draft import draft_for

        return draft_for(model, self.draft)

    def _refuse_foreign(self, config: DrafterConfig) -> None:
        """Raise ConfigError for a given flag that this drafter does not use."""
        chosen = drafter_name(config)
        draft = draft_name(config)
        used = USED_FLAGS[chosen if draft is None or chosen != "auto" else "draft_model"]
        foreign = [flag for flag in self._given(ALL_FLAGS) if flag not in used]
        if chosen == "layer_skip" and self.draft == ITSELF:
            foreign.remove("draft")
        fitting = [name for name, flags in USED_FLAGS.items() if set(foreign) <= set(flags)]
        advice = "leave it out"
        if fitting:
            names_draft = chosen == "auto" and fitting[0] == "draft_model"
            advice += ", or name a draft with --draft" if names_draft else f", or choose --drafter {fitting[0]}"
        self._refuse(foreign, f"on the drafter {chosen}: {advice}")

    def _refuse(self, names: Iterable[str], what: str) -> None:
        """Raise ConfigError if any of these flags was given."""
        flags = [flag_of(name, value) for name, value in self._given(names).items()]
        if flags:
            raise ConfigError(f"{' and '.join(flags)} {'has' if len(flags) == 1 else 'have'} no effect {what}")

    def _given(self, names: Iterable[str]) -> dict[str, Any]:
        """The flags among these that were given, with their values."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def read_cores(text: str | None, *, flag: str) -> tuple[int, ...]:
    """CPU cores from a text such as 2,3 or 4-7, all of which this process may use; empty without a text."""
    cores = tuple(core for part in text.split(",") for core in read_range(part, flag=flag, text=text)) if text else ()
    known = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(cores)
    foreign = [core for core in cores if core not in known]
    if foreign:
        raise ConfigError(f"{flag} {text}: this process may not use core {foreign[0]}: choose from {sorted(known)}")
    return cores


def read_range(part: str, *, flag: str, text: str) -> range:
    """The numbers of 3 or of 4-7."""
    found = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
    if found is None:
        raise ConfigError(f"{flag} {text!r} must be numbers separated by commas, such as 2,3, or a range, such as 4-7")
    return range(int(found[1]), int(found[2] or found[1]) + 1)
