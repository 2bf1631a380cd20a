"""The drafters of `forerun bench run`, from texts such as "parallel:verify_width=8,draft_width=8" and from flags."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Final, cast, get_args, get_origin, get_type_hints

import typer

from forerun.cli.drafter_options import DRAFT_FLAG, OF_A_PROCESS, DrafterOptions, NameOrAlias, flag_of, flags_used
from forerun.cli.flag_values import flag_kind, plain_kind, read_size, reader_of
from forerun.cli.flags import flagged, option_name, with_flags_of
from forerun.cli.options import SHOWN, engine_config
from forerun.core.config import EngineConfig
from forerun.core.drafter_config import DRAFTERS, NoDrafter
from forerun.core.errors import ConfigError, require
from forerun_lab.bench.run.entrants import GRIDS, NONE, Entrant, grid_of

LABEL: Final = "label"
SETTING: Final = re.compile(r"[\w-]+=")  # else a piece begins the next contestant
OF_ALL: Final = ("max_length", "chat_template", "chat_template_kwargs")  # all contestants answer the same prompts
PLACES: Final = (*OF_A_PROCESS, "drafter_address", "key_file", "skip_sets")  # settings that leave the drafts' shape


@with_flags_of(*(kind.config for kind in DRAFTERS.values()), panel="Speculation, for all drafters that use it")
class DraftingOptions:
    """The settings of drafters."""

    draft: Annotated[str | None, DRAFT_FLAG] = None

    @property
    def given(self) -> dict[str, Any]:
        """The flags that were given, with their values."""
        return {field.name: value for field in fields(cast(Any, self)) if (value := vars(self)[field.name]) is not None}


@with_flags_of(EngineConfig, panel="Model and machine", shown=SHOWN)
class BenchEngineOptions:
    """The settings of all engines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSetting:
    """A setting that a contestant may have of its own: one of the flags of `forerun generate`.

    Args:
        option: the field of `DrafterOptions` or `BenchEngineOptions` that holds its value.
        kind: the type of that field.
        is_off: the name is the one that turns a switch off, such as fixed_widths.
    """

    option: str
    kind: Any
    is_off: bool = False

    def read(self, text: str) -> Any:
        """The value of a text, as the flag reads it."""
        if self.option.endswith("_bytes"):
            return read_size(text)
        value = (reader_of(get_args(self.kind)[0] if self.is_list else self.kind) or str)(text)
        return value is not self.is_off if self.kind is bool else value

    @property
    def is_list(self) -> bool:
        return get_origin(self.kind) is list


def known_settings() -> dict[str, OwnSetting]:
    """All settings by the names of their flags, with underscores."""
    known = {"draft": OwnSetting(option="draft", kind=str)}
    for config in (EngineConfig, *(kind.config for kind in DRAFTERS.values())):
        kinds = get_type_hints(config)
        for field in flagged(config):
            kind = plain_kind(flag_kind(kinds[field.name]))
            for flag in field.metadata["flags"]:
                on, _, off = flag.partition("/")
                known[spelt(on)] = OwnSetting(option=option_name(field), kind=kind)
                if off:
                    known[spelt(off)] = OwnSetting(option=option_name(field), kind=kind, is_off=True)
    return known


def spelt(name: str) -> str:
    return name.strip().lstrip("-").replace("-", "_")


def read_entrants(
    texts: Sequence[str],
    target: str,
    drafting: DraftingOptions,
    machine: BenchEngineOptions,
    *,
    has_peers: bool = False,
) -> tuple[Entrant, ...]:
    """The drafters that a user named, plain decoding first.

    Args:
        texts: drafters separated by commas. A drafter is NAME or NAME:SETTING=VALUE,SETTING=VALUE; a piece of the form
            SETTING=VALUE belongs to the drafter before it.
        drafting, machine: the settings of all drafters that do not have their own.
        has_peers: peers take part, which may use the draft too.

    Raises:
        ConfigError: a name or a setting is unknown, or has no effect on its drafter.
    """
    plain = Entrant(label=NONE, name=NONE, config=engine_config(machine, target=target, drafter=NoDrafter()))
    named = [part for text in texts for part in parts_of(text)]
    for name, _ in named:
        grid_of(name)  # raises if the name is unknown
        require(name in GRIDS, f"{name} is a peer: name it with --peers")
    require_used(drafting, [name for name, _ in named], used=("draft",) if has_peers else ())
    others = [entrant_of(name, own, target, drafting, machine) for name, own in named if (name, own) != (NONE, ())]
    labels = [*(NONE for name, own in named if (name, own) == (NONE, ())), *(entrant.label for entrant in others)]
    require(len(set(labels)) == len(labels), f"--drafters {','.join(labels)} names one twice: name each once")
    require(
        all(entrant.label != NONE for entrant in others), f"the {LABEL} {NONE} is that of plain decoding: change it"
    )
    return (plain, *others)


def parts_of(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each drafter of a text, with the settings behind its name."""
    name = ""
    own = list[str]()
    for piece in filter(None, map(str.strip, text.split(","))):
        if SETTING.match(piece):
            require(bool(name), f"--drafters {text!r} begins with a setting: name its drafter, as in parallel:{piece}")
            own.append(piece)
            continue
        if name:
            yield name, tuple(own)
        name, _, first = map(str.strip, piece.partition(":"))
        require(bool(name), f"--drafters {text!r}: {piece!r} lacks the drafter's name, as in parallel{piece}")
        own = [first] if first else []
    if name:
        yield name, tuple(own)


def entrant_of(
    name: str, own: Sequence[str], target: str, drafting: DraftingOptions, machine: BenchEngineOptions
) -> Entrant:
    """A drafter with settings of its own, in addition to those of all drafters.

    Raises:
        ConfigError: a setting is unknown, or has no effect; the message begins with the drafter, as the user wrote it.
    """
    written = ":".join([name, *filter(None, [",".join(own)])])
    try:
        label, given = read_settings(own)
        engine_options = {key: given.pop(key) for key in list(given) if key in vars(machine)}
        for_all = {key: value for key, value in drafting.given.items() if key in flags_used(cast(NameOrAlias, name))}
        options: DrafterOptions = cast(Any, DrafterOptions)(drafter=name, **for_all | given)
        changed: Any = replace(cast(Any, machine), **engine_options)
        config = engine_config(changed, target=target, drafter=options.config(target))
    except ConfigError as error:
        raise ConfigError(f"{written}: {error}") from None
    is_shaped = not {*for_all, *given} <= set(PLACES)
    return Entrant(label=label or written, name=name, config=config, is_shaped=is_shaped)


def read_settings(own: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The label among these settings, "" without one, and the values of the others by their options."""
    known = known_settings()
    label = ""
    given: dict[str, Any] = {}
    for text in own:
        written, _, value = text.partition("=")
        require(bool(value), f"the setting {written!r} has no value: write {written}=VALUE, such as verify_width=8")
        name = spelt(written)
        if name == LABEL:
            label = value
            continue
        setting = known.get(name)
        if setting is None:
            raise ConfigError(
                f"there is no setting {written!r}: give {LABEL}=TEXT, or a flag of forerun generate under Speculation "
                "or under Model and machine, such as verify_width=8"
            )
        require(setting.option not in OF_ALL, f"{name} is the same for all contestants: give it as a flag")
        require(setting.is_list or setting.option not in given, f"{name} is given twice: leave out one")
        try:
            read = setting.read(value)
        except typer.BadParameter as error:
            raise ConfigError(f"{name} {error.message}") from None
        given[setting.option] = [*given.get(setting.option, ()), read] if setting.is_list else read
    return label, given


def require_used(drafting: DraftingOptions, names: Sequence[str], used: Collection[str]) -> None:
    """Raise ConfigError for a flag that neither a named drafter uses nor anybody else."""
    used = {*used, *(flag for name in names for flag in flags_used(cast(NameOrAlias, name)))}
    for flag, value in drafting.given.items():
        fitting = [name for name in DRAFTERS if flag in flags_used(name)]
        require(
            flag in used,
            f"{flag_of(flag, value)} has no effect on the drafters {', '.join(names)}: leave it out, or add "
            f"{fitting[0]} to --drafters",
        )
