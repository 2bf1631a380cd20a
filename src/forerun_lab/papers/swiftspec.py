"""SwiftSpec's experiments (arXiv 2506.11309): pairs of models on eight GPUs, serial and parallel trees, ablations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from forerun.core.drafter_config import DrafterConfig, DraftModel, NoDrafter, Parallel, paper_parallel
from forerun.core.errors import ConfigError
from forerun.core.pace import Pace
from forerun_lab.papers.experiments import Contest, Published, Variant
from forerun_lab.planner.profile import Profile
from forerun_lab.planner.swiftspec import UNITS, Pair

SETS: Final = ("mt_bench", "humaneval", "gsm8k", "alpaca", "sum", "qa")
DEPTHS: Final = (5, 6)
USUAL_SPLITS: Final = (4, 6)  # GPUs of the target in the splits that the paper uses
# Table 7, Qwen2-72B with Qwen2-1.5B. The paper does not say whether a length counts the bonus token.
PARALLEL_LENGTHS: Final = {
    "alpaca": 2.92, "gsm8k": 3.78, "humaneval": 3.92, "mt_bench": 3.11, "qa": 2.74, "sum": 3.56, "": 3.34,
}  # fmt: skip
SERIAL_LENGTHS: Final = {
    "alpaca": 3.28, "gsm8k": 4.20, "humaneval": 4.04, "mt_bench": 3.42, "qa": 3.12, "sum": 3.72, "": 3.63,
}  # fmt: skip
OF_TABLE_7: Final = "qwen2"
WITHOUT_ASYNCHRONY: Final = "0.70 of the parallel tree, mean of five families"  # 1 / 1.43
WITHOUT_FUSION: Final = "0.86 of the whole, mean of five families"  # 1 / 1.16


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """A division of eight GPUs on which contestants run.

    Args:
        target, draft: paces of the two models, stretched.
        settings: of every engine on it.
    """

    target: Pace
    draft: Pace
    settings: Mapping[str, Any]


def paced_division(profile: Profile, target_units: int, draft_units: int, stretch: float) -> Division:
    """The paper's times of both models on so many GPUs, `stretch` times as long."""
    target = stretched(profile.target[target_units], stretch)
    draft = stretched(profile.draft[draft_units], stretch)
    device = f"paced:target={written(target)};draft={written(draft)}"
    return Division(target=target, draft=draft, settings={"device": device})


def require_divisible(pair: Pair, profile: Profile) -> None:
    """Raise ConfigError if a split of the experiments is not possible on a machine."""
    targets = (UNITS, pair.target_units, *USUAL_SPLITS)
    if not set(targets) <= set(profile.target) or not {UNITS - units for units in targets[1:]} <= set(profile.draft):
        raise ConfigError(
            f"the experiments divide {UNITS} GPUs, of which each split holds {pair.target} and {pair.draft}; this "
            f"machine holds the target on {sorted(profile.target)} and the draft on {sorted(profile.draft)}: give "
            "another --machine"
        )


def stretched(pace: Pace, stretch: float) -> Pace:
    return Pace(steps=tuple((rows, stretch * seconds) for rows, seconds in pace.steps))


def written(pace: Pace) -> str:
    """As `--device` reads it."""
    return ",".join(f"{1e3 * seconds:.4g}ms@{rows}" for rows, seconds in pace.steps)


def shared_units(profile: Profile) -> int:
    """GPUs of the draft when both models take turns on all: those on which it is fastest."""
    return min(profile.draft, key=lambda units: profile.draft[units].step_s(8))


def paced_contests(pair: Pair, profile: Profile, draft: str, stretch: float, chosen: int | None) -> tuple[Contest, ...]:
    """The main table, the planner's split beside the paper's, and the ablations, at the paper's times.

    Args:
        draft: the draft model that stands for the paper's.
        chosen: GPUs of the target in the split that the planner chose; None: it was not asked.
    """

    def contest(name: str, title: str, contestants: Sequence[Variant]) -> Contest:
        return Contest(name=name, title=title, source="paced", stretch=stretch, contestants=tuple(contestants))

    def parallel(units: int) -> Variant:
        words = f"tree in parallel, {units} + {UNITS - units} GPUs, 8 rows" + split_words(units, pair, chosen)
        published = published_parallel(pair) if units == pair.target_units else Published()
        division = paced_division(profile, units, UNITS - units, stretch)
        return contestant(
            f"parallel_{units}+{UNITS - units}", words, Parallel(draft=tree(pair, draft)), division, published
        )

    shared = paced_division(profile, UNITS, shared_units(profile), stretch)
    serial = serial_contestants(pair, draft, shared)
    own = paced_division(profile, pair.target_units, pair.draft_units, stretch)
    splits = dict.fromkeys((pair.target_units, *USUAL_SPLITS))
    found = [
        contest(
            "table",
            "Plain decoding, the serial tree on all GPUs, the parallel tree by split",
            [*serial, *map(parallel, splits)],
        ),
        contest(
            "ablations",
            f"Parts of the method left out, {pair.target_units} + {pair.draft_units} GPUs",
            ablation_contestants(pair, draft, own),
        ),
    ]
    if chosen is not None and chosen not in splits:
        title = "The paper's split and the planner's choice"
        found.insert(1, contest("planner", title, [serial[0], parallel(pair.target_units), parallel(chosen)]))
    return tuple(found)


def measured_contests(pair: Pair, draft: str, settings: Mapping[str, Any], draft_ranks: int) -> tuple[Contest, ...]:
    """The same on this machine, at its own speed, where kernels can be exchanged too."""
    here = Division(target=Pace(steps=((1, 1.0),)), draft=Pace(steps=((1, 1.0),)), settings=settings)
    parallel = Parallel(draft=tree(pair, draft), ranks=draft_ranks)
    contestants = (
        *serial_contestants(pair, draft, here),
        contestant("parallel", "tree in parallel, 8 rows", parallel, here, published_parallel(pair)),
        contestant(
            "torch_kernels",
            "the same without our kernels and fusion",
            parallel,
            Division(target=here.target, draft=here.draft, settings={**settings, "kernels": "torch"}),
            Published(note=WITHOUT_FUSION),
        ),
        *ablation_contestants(pair, draft, here, draft_ranks)[2:],
    )
    return (
        Contest(
            name="here",
            title="The same contestants at the speed of this machine",
            source="measured",
            contestants=tuple(without_pace(contestants)),
        ),
    )


def without_pace(contestants: Sequence[Variant]) -> list[Variant]:
    return [replace(each, pace=None) for each in contestants]


def serial_contestants(pair: Pair, draft: str, division: Division) -> tuple[Variant, ...]:
    """Plain decoding and the serial tree, SpecExec's, of 8 rows."""
    serial = Published(
        tokens_per_s=pair.serial_tokens_per_s,
        tokens_per_round=SERIAL_LENGTHS if pair.name == OF_TABLE_7 else {},
    )
    trees = [
        contestant(
            f"serial_depth{depth}",
            f"tree in turn, 8 rows, depth {depth}",
            tree(pair, draft, depth),
            division,
            serial if depth == pair.depth else Published(),
        )
        for depth in DEPTHS
    ]
    own = DraftModel(model=draft)
    return (
        contestant("none", "plain decoding", NoDrafter(), division, Published()),
        *trees,
        contestant("serial_adaptive", "tree in turn, forerun's adaptive widths", own, division, Published()),
    )


def ablation_contestants(pair: Pair, draft: str, division: Division, ranks: int = 1) -> tuple[Variant, ...]:
    """Plain decoding, the whole method, and the method without one part of it."""
    fixed = tree(pair, draft)
    without_lookup = Parallel(draft=fixed, ranks=ranks, without=("lookup",))
    drafters: tuple[tuple[str, str, DrafterConfig, Published], ...] = (
        ("none", "plain decoding", NoDrafter(), Published()),
        ("parallel", "tree in parallel, 8 rows", Parallel(draft=fixed, ranks=ranks), published_parallel(pair)),
        ("no_asynchrony", "the same tree in turn", tree(pair, draft, pair.depth), Published(note=WITHOUT_ASYNCHRONY)),
        ("no_lookup", "in parallel without looking up earlier text", without_lookup, Published()),
        ("paper_scheme", "in parallel without any of forerun's additions", replace(paper_parallel(draft), ranks=ranks),
         Published()),
        ("adaptive", "in parallel with forerun's adaptive rows", Parallel(draft=DraftModel(model=draft), ranks=ranks),
         Published()),
    )  # fmt: skip
    return tuple(contestant(label, words, drafter, division, said) for label, words, drafter, said in drafters)


def contestant(label: str, words: str, drafter: DrafterConfig, division: Division, published: Published) -> Variant:
    return Variant(
        label=label, words=words, drafter=drafter, settings=division.settings, published=published, pace=division.target
    )


def tree(pair: Pair, draft: str, depth: int | None = None) -> DraftModel:
    """The paper's tree; in parallel its depth has no effect, since it grows until the verdict arrives."""
    return DraftModel(
        model=draft,
        verify_width=pair.verify_width,
        draft_width=pair.draft_width,
        depth=depth or pair.depth,
        adaptive=False,
    )


def published_parallel(pair: Pair) -> Published:
    lengths = PARALLEL_LENGTHS if pair.name == OF_TABLE_7 else {}
    return Published(tokens_per_s=pair.tokens_per_s, tokens_per_round=lengths)


def split_words(units: int, pair: Pair, chosen: int | None) -> str:
    """Who chose a split."""
    is_papers = units == pair.target_units
    if units == chosen:
        return " (the paper's split and the planner's)" if is_papers else " (the planner's choice)"
    return " (the paper's split)" if is_papers else ""
