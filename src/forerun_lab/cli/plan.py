"""forerun plan: how to divide a machine between target and draft, which tree to use, and the expected speed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

from forerun.checkpoints.short_names.catalogue import find_named
from forerun.cli.failures import find_draft_model, find_model, say
from forerun.cli.flags import option, output, with_flags_of, with_options
from forerun.cli.options import SHOWN, engine_config
from forerun.cli.progress import progress
from forerun.core.config import EngineConfig
from forerun.core.drafter_config import BUILTIN_TARGET
from forerun.core.errors import ConfigError
from forerun.core.output_file import require_writable, write_whole
from forerun.core.pace import read_device
from forerun.core.paths import path_of
from forerun_lab.cli.plan_bound import bound_entry, print_table, show_bound
from forerun_lab.planner.profile import Profile
from forerun_lab.planner.trace import AnswerTrace, read_traces

if TYPE_CHECKING:
    from forerun_lab.planner.plan import Plan
    from forerun_lab.planner.roofline import SizedModel

Pair = tuple["SizedModel", "SizedModel"]  # target and draft
KINDS_OF_NUMBERS: Final = {
    "measured": "predicted from times measured on this machine",
    "paced": "predicted for paced devices",
    "stated": "PROJECTED from stated times",
    "roofline": "PROJECTED from sizes and bandwidths: nobody has measured this",
}


RANKS_OF_HOSTS: Final = ("remote_ranks", "rank_address", "rank_key_file")


@with_flags_of(
    EngineConfig,
    panel="For --calibrate",
    only=("dtype", "weights", "device", "num_threads", *RANKS_OF_HOSTS),
    shown=SHOWN,
)
class CalibrationOptions:
    """Number formats, device, threads and ranks for calibration."""

    target_numbers: Annotated[
        str | None,
        option(
            "--target-ranks",
            "--tensor-parallel-size",
            help="Numbers of ranks to measure the target on, such as 1,2,4 [on GPUs: every number].",
        ),
    ] = None
    draft_numbers: Annotated[str | None, option("--draft-ranks", help="The same for the draft.")] = None
    draft_device: Annotated[str | None, option("--draft-device", help="First device of the draft.")] = None

    @property
    def has_ranks(self) -> bool:
        """Whether ranks or the draft's device were given."""
        return bool(self.target_numbers or self.draft_numbers or self.draft_device)


@with_flags_of(panel="Times of passes (one of these)")
class TimeOptions:
    """The source of the times of passes."""

    machine: Annotated[
        str | None, option("--machine", help="8xH800, 8xH800-floor, 8xH100, 1xH200 or a TOML file: project from sizes.")
    ] = None
    profile: Annotated[Path | None, option("--profile", help="File with measured step times.")] = None
    calibrate: Annotated[
        Path | None, output("--calibrate", help="Measure step times on this machine and write them to this file.")
    ] = None
    paced: Annotated[str | None, option("--paced", help="A paced device, in the form of --device.")] = None
    weight_bits: Annotated[int, option("--weight-bits", help="4, 8 or 16; for --machine.")] = 4
    context: Annotated[int, option("--context", help="Tokens in the cache; for --machine.")] = 512


@with_flags_of(panel="Acceptance (one of these)")
class GuessOptions:
    """The source of the draft's acceptance."""

    trace: Annotated[Path | None, option("--trace", help="A file that forerun bench trace wrote.")] = None
    accept_length: Annotated[
        float | None,
        option(
            "--accept-length",
            help="Accepted tokens per round without the bonus token, of a serial tree of 8 rows and 5 levels.",
        ),
    ] = None
    temperature: Annotated[float | None, option("--temperature", help="Use only answers of this temperature.")] = None


@with_options(TimeOptions, GuessOptions, CalibrationOptions)
def plan(
    times: TimeOptions,
    acceptance: GuessOptions,
    machine: CalibrationOptions,
    target: Annotated[str, option("--target", help="Folder, hub name, or a model of known size.")] = BUILTIN_TARGET,
    draft: Annotated[
        str | None, option("--draft", help="The same for the smaller model; auto: the known one [auto].")
    ] = None,
    units: Annotated[int | None, option("--units", help="GPUs or cores to divide; default: all.")] = None,
    lookup: Annotated[bool, option("--lookup/--no-lookup", help="Let drafters look up earlier text.")] = True,
    as_json: Annotated[Path | None, output("--json", help="Write everything to this file.")] = None,
    plot: Annotated[Path | None, output("--plot", help="Draw the splits: plan.svg or plan.png.")] = None,
) -> None:
    """Simulate every way to divide a machine between target and draft, and rank them by expected speed."""
    for path in filter(None, (times.calibrate, as_json, plot)):
        require_writable(path)
    if times.calibrate is None and machine.has_ranks:
        raise ConfigError(
            "--target-ranks, --draft-ranks and --draft-device say what --calibrate FILE measures: add that flag; plans "
            "try every split of --units by themselves"
        )
    if draft is not None and _is_here(draft):
        find_draft_model(draft)  # a head is refused whatever the source of the times
    profile = times.profile
    trace = acceptance.trace
    accept_length = acceptance.accept_length
    if times.calibrate is not None:
        _calibrate(times.calibrate, target, draft, machine)
        if trace is None and accept_length is None:
            return
        profile = profile or times.calibrate
    pair = None if times.machine is None else _sized_pair(target, draft, times.weight_bits)
    chosen = _profile(times, profile, pair)
    traces = _traces(trace, accept_length, acceptance.temperature)
    from forerun_lab.planner.plan import search  # slow to import

    with progress("simulating") as on_plan:
        plans = search(chosen, traces, units=units, lookup=lookup, on_plan=on_plan)
    source = KINDS_OF_NUMBERS[chosen.source]
    _show(plans, chosen, source, _acceptance_note(traces, trace, accept_length), pair)
    show_bound(plans)
    if as_json is not None:
        write_whole(as_json, json.dumps(_to_dict(plans, traces, chosen, source, pair), indent=2) + "\n")
    if plot is not None:
        from forerun_lab.planner.plan import draw_plans

        draw_plans(plot, plans, title=f"{_subject(chosen)}\n{source}")
        say(f"wrote {plot}")


def _calibrate(path: Path, target: str, draft: str | None, machine: CalibrationOptions) -> None:
    """Measure both models and write the profile."""
    hosts = [getattr(machine, name) for name in RANKS_OF_HOSTS]
    config = engine_config(replace(cast(Any, machine), **dict.fromkeys(RANKS_OF_HOSTS)), target=target)
    find_model(config.target)
    from forerun.engine.known_draft import draft_for

    model = draft_for(config.target, draft)
    find_draft_model(model)
    from forerun_lab.planner.calibrate import Ranks, calibrate  # imports torch

    ranks = None
    if machine.has_ranks or any(hosts):
        ranks = Ranks(
            target=_numbers(machine.target_numbers, "--target-ranks"),
            draft=_numbers(machine.draft_numbers, "--draft-ranks"),
            remote=hosts[0] or 0,
            address=hosts[1],
            key_file=hosts[2],
            draft_device=machine.draft_device,
        )
    calibrate(config, model, lambda step: say(f"forerun: measuring {step}"), ranks).write(path)
    say(f"forerun: wrote {path}; use it with --profile {path}")


def _numbers(text: str | None, flag: str) -> tuple[int, ...]:
    """Numbers from a text such as 1,2,4; none without a text."""
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise ConfigError(f"{flag} {text!r} must be numbers of ranks separated by commas, such as 1,2,4") from None


def _profile(times: TimeOptions, profile: Path | None, pair: Pair | None) -> Profile:
    """The times of passes, from the one source that was named."""
    if sum(source is not None for source in (pair, profile, times.paced)) != 1:
        raise ConfigError(
            "the times of passes must come from one of --machine (such as 8xH800), --profile FILE, --calibrate FILE, "
            'and --paced "paced:target=...;draft=..."'
        )
    if profile is not None:
        return Profile.read(profile)
    if times.paced is not None:
        return _paced_profile(times.paced)
    from forerun_lab.planner.roofline import machine_named, roofline_profile

    assert times.machine is not None, "one of three was given"
    assert pair is not None, "the pair is read for every machine"
    return roofline_profile(machine_named(times.machine), *pair, context=times.context)


def _sized_pair(target: str, draft: str | None, weight_bits: int) -> Pair:
    """Target and draft for a projection."""
    from forerun.engine.known_draft import draft_for

    return (
        _sized(target, weight_bits, "--target"),
        _sized(draft_for(target, draft), weight_bits, "--draft"),
    )


def _paced_profile(text: str) -> Profile:
    """A profile of two devices with these paces: serial drafting shares them, parallel drafting gives one to each."""
    placement = read_device(text)
    if placement.target is None or placement.draft is None:
        raise ConfigError(f"{text!r} does not give times for both models: planning needs target= and draft=")
    return Profile(
        source="paced",
        unit="device",
        target={1: placement.target, 2: placement.target},
        draft={1: placement.draft, 2: placement.draft},
        about={"device": text},
    )


def _sized(name: str, weight_bits: int, flag: str) -> "SizedModel":
    """A model's sizes: known ones by name, else those of its config.json."""
    from forerun.checkpoints.known_models import find_known, known_models
    from forerun_lab.planner.roofline import SizedModel

    known = find_known(name)
    if known is not None:
        return SizedModel(name=known.name, spec=known.spec, weight_bits=weight_bits)
    if not (_is_here(name) or "/" in name or find_named(name) is not None):
        names = ", ".join(known_models())
        raise ConfigError(f"{flag} {name!r} is neither a folder or file nor a hub name nor one of {names}")
    spec = (find_draft_model if flag == "--draft" else find_model)(name).spec()
    return SizedModel(name=name, spec=spec, weight_bits=weight_bits)


def _is_here(name: str) -> bool:
    """Whether a model is a folder or file, or part of the package."""
    from forerun.checkpoints.open import BUILTIN_FOLDERS

    return name in BUILTIN_FOLDERS or path_of(name).exists()


def _traces(path: Path | None, accept_length: float | None, temperature: float | None) -> list[AnswerTrace]:
    if (path is None) == (accept_length is None):
        raise ConfigError(
            "the draft's acceptance is missing: give --trace FILE (made with forerun bench trace) or --accept-length"
        )
    if path is None:
        from forerun_lab.planner.synthetic import traces_for

        assert accept_length is not None, "one of two was given"
        return traces_for(accept_length)
    traces = read_traces(path)
    if not any(any(item.children) for item in traces):
        raise ConfigError(f"{path} holds no guesses of a draft model: record some with --drafters draft_model")
    if temperature is None:
        return traces
    chosen = [item for item in traces if item.temperature == temperature]
    if not chosen:
        there = ", ".join(f"{value:g}" for value in sorted({item.temperature for item in traces}))
        raise ConfigError(f"{path} has no answer of temperature {temperature:g}, only of {there}")
    return chosen


def _show(plans: "list[Plan]", profile: Profile, source: str, acceptance: str, pair: Pair | None) -> None:
    heads = ["plan", "rows", "width", "depth", "tokens/s", "95 %", "per round", "round ms", "misses"]
    print(f"{_subject(profile)}\n{acceptance}\ntokens/s are {source}\n")
    print_table(heads if pair is None else [*heads, "GB"], [_cells(entry, pair) for entry in plans])


def _cells(entry: "Plan", pair: Pair | None) -> tuple[str, ...]:
    outcome = entry.outcome
    tree = entry.tree
    low, high = outcome.interval()
    limit = "<=" if tree is not None and tree.adaptive else ""
    return (
        f"{'none' if tree is None else entry.kind} {entry.split.name}",
        "1" if tree is None else f"{limit}{tree.verify_width}",
        "" if tree is None else f"{limit}{tree.draft_width}",
        f"{limit}{tree.depth}" if tree is not None and entry.kind == "serial" else "",
        f"{outcome.tokens_per_s:.0f}",
        f"{low:.0f}-{high:.0f}",
        f"{outcome.tokens_per_round:.2f}",
        f"{1e3 * outcome.round_s:.2f}",
        f"{outcome.miss_rate:.2f}" if entry.kind == "parallel" else "",
        *([] if pair is None else ["+".join(f"{size / 1e9:.1f}" for size in _unit_bytes(entry, pair).values())]),
    )


def _unit_bytes(entry: "Plan", pair: Pair) -> dict[str, float]:
    """Bytes of weights that a unit of the target holds, and one of the draft."""
    target, draft = pair
    of_target = {"target": target.stored_bytes(entry.split.target_units)}
    return of_target if entry.tree is None else of_target | {"draft": draft.stored_bytes(entry.split.draft_units)}


def _subject(profile: Profile) -> str:
    about = profile.about
    if "machine" in about and "target" in about:
        return f"{about['target']} with {about.get('draft', 'no draft')} on {about['machine']}"
    return about.get("device", "") or ", ".join(about.values()) or "this pair"


def _acceptance_note(traces: list[AnswerTrace], path: Path | None, accept_length: float | None) -> str:
    num_tokens = sum(len(item.token_ids) for item in traces)
    if path is not None:
        return f"acceptance from {path}: {len(traces)} answers, {num_tokens} tokens"
    return f"acceptance from a synthetic pair with {accept_length:g} accepted tokens per round (8 rows, 5 levels)"


def _to_dict(
    plans: "list[Plan]", traces: list[AnswerTrace], profile: Profile, source: str, pair: Pair | None
) -> dict[str, Any]:
    return {
        "source": profile.source,
        "numbers": source,
        "about": dict(profile.about),
        "temperatures": sorted({trace.temperature for trace in traces}),
        "plans": [
            _entry(entry) | {"weights_bytes_per_unit": None if pair is None else _unit_bytes(entry, pair)}
            for entry in plans
        ],
    }


def _entry(entry: "Plan") -> dict[str, Any]:
    outcome = entry.outcome
    tree = entry.tree
    return {
        "kind": entry.kind,
        "target_units": entry.split.target_units,
        "draft_units": entry.split.draft_units,
        "adaptive": tree is not None and tree.adaptive,
        "verify_width": 1 if tree is None else tree.verify_width,
        "draft_width": None if tree is None else tree.draft_width,
        "depth": tree.depth if tree is not None and entry.kind == "serial" else None,
        "tokens_per_s": outcome.tokens_per_s,
        "interval": list(outcome.interval()),
        "tokens_per_round": outcome.tokens_per_round,
        "round_s": outcome.round_s,
        "expansions_per_round": outcome.expansions_per_round,
        "miss_rate": outcome.miss_rate if entry.kind == "parallel" else None,
        "bound": None if entry.bound is None else bound_entry(entry, entry.bound),
    }
