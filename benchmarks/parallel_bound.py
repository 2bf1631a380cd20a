"""Parallel drafting on paced devices against its bound: measured over bound, and where the rest of a round goes.

python benchmarks/parallel_bound.py [--target smollm2 --draft FOLDER --data mt_bench,gsm8k --scale 3] [--repeats 5]

A trace of the pair is recorded for every temperature. Drafters `none`, the serial tree of 8 rows and 6 levels, the
parallel one of 8 rows and both with adaptive widths up to 16 rows then write the same answers in turn, prompt by
prompt, several times over, paced as SwiftSpec's two pairs of models. Beside them: the parallel drafters as the planner
projects them with what rounds and draft passes of this machine take beside their passes, and their bounds, without any
of that. It fails where a text is another than without drafting. Every speed is *paced*.
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from statistics import median

from common import Prompt, Run, answer_in_turn, ask, config_of, policies_with, standard_arguments, write_results
from widths import AHEAD, FIXED, PAIRS

from forerun import DraftModel, Engine, GenerationStream, NoDrafter, Parallel, SamplingParams
from forerun.bench.run.draft_traces import Recorder
from forerun.core.drafter_config import DrafterConfig
from forerun.core.pace import Pace, read_device
from forerun.core.steps import DecodeStep
from forerun.engine.calibrate import calibrate
from forerun.engine.profile import Profile
from forerun.engine.trace import AnswerTrace
from forerun.planner.bound import Bound, bound_of
from forerun.planner.outcome import AnswerOutcome, Outcome, speed
from forerun.planner.simulate import Costs, simulate

SERIAL = {"serial": FIXED, "serial, adaptive": DraftModel()}
PARALLEL = {"parallel": AHEAD, "parallel, adaptive": DraftModel()}


@dataclass(kw_only=True)
class SplitRun(Run):
    """A run that also records every round."""

    target: Pace
    num_prompts: int
    answers: list[AnswerOutcome] = field(default_factory=list)

    def start(self, prompt: Prompt, params: SamplingParams) -> GenerationStream:
        """Start an answer. Each repeat has its own owner, so that it cannot reuse cached texts."""
        return self.engine.stream(prompt, params, owner=f"repeat {len(self.answers) // self.num_prompts}")

    def write(self, prompt: Prompt, params: SamplingParams) -> None:
        stream = self.start(prompt, params)
        steps = list(stream)
        self.results.append(stream.result())
        self.answers.append(measured(steps, self.results[-1].stats.decode_s, self.target))

    def speeds(self, num_prompts: int) -> list[float]:
        """Tokens/s of every repeat, slowest first."""
        starts = range(0, len(self.answers), num_prompts)
        return sorted(speed(self.answers[start : start + num_prompts]) for start in starts)


def measured(steps: Sequence[DecodeStep], decode_s: float, target: Pace) -> AnswerOutcome:
    """A measured answer in the simulation's fields; those known only to the drafter's process are 0."""
    stats = [step.stats for step in steps]
    was_missed = [True, *(not item.was_hit for item in stats[:-1])]
    waits_s = [(item.wait_s, missed) for item, missed in zip(stats, was_missed, strict=True)]
    return AnswerOutcome(
        num_tokens=sum(len(step.token_ids) for step in steps),
        num_rounds=len(steps),
        num_accepted=sum(item.num_accepted for item in stats),
        num_misses=sum(was_missed[1:]),
        num_expansions=0,
        decode_s=decode_s,
        num_rows=sum(item.num_verified for item in stats),
        num_bare=sum(item.num_verified == 1 for item in stats),
        pass_s=sum(target.step_s(item.num_verified) for item in stats),
        miss_wait_s=sum(wait_s for wait_s, missed in waits_s if missed),
        hit_wait_s=sum(wait_s for wait_s, missed in waits_s if not missed),
    )


def scaled(pair: str, scale: float) -> tuple[Pace, Pace]:
    """The paces of target and draft, multiplied by `scale`."""
    device = read_device(PAIRS[pair])
    assert device.target is not None
    assert device.draft is not None
    target, draft = (
        Pace(steps=tuple((rows, scale * seconds) for rows, seconds in pace.steps))
        for pace in (device.target, device.draft)
    )
    return target, draft


def play(
    target: Pace, draft: Pace, traces: Sequence[AnswerTrace], params: SamplingParams, arguments: argparse.Namespace
) -> list[SplitRun]:
    """All drafters, having written every answer.

    Raises:
        SystemExit: a text is another than that of the trace.
    """
    drafters: dict[str, DrafterConfig] = {"none": NoDrafter()}
    drafters |= {name: replace(tree, model=arguments.draft) for name, tree in SERIAL.items()}
    drafters |= {name: Parallel(draft=replace(tree, model=arguments.draft)) for name, tree in PARALLEL.items()}
    device = f"paced:target={spelled(target)};draft={spelled(draft)}"
    runs = [
        SplitRun(
            name=name, num_threads=1, target=target, num_prompts=len(traces),
            engine=Engine(
                config_of(arguments, device=device, num_threads=1, drafter=drafter, weights=arguments.weights),
                policies=policies_with(bool(arguments.lookup)),
            ),
        )
        for name, drafter in drafters.items()
    ]  # fmt: skip
    prompts: list[Prompt] = [list(trace.prompt_ids) for trace in traces]
    for run in runs:
        run.engine.generate(prompts[0], replace(params, max_new_tokens=16))  # warm-up
    answer_in_turn(runs, prompts * arguments.repeats, params)
    texts = [trace.token_ids for trace in traces] * arguments.repeats
    for run in runs:
        num_other = sum(result.token_ids != text for result, text in zip(run.results, texts, strict=True))
        if num_other:
            raise SystemExit(f"{num_other} of {len(texts)} texts of {run.name} are not those without drafting")
    return runs


def spelled(pace: Pace) -> str:
    """The pace in the notation of a paced device."""
    return ",".join(f"{1e3 * seconds}ms@{rows}" for rows, seconds in pace.steps)


def rows_of(
    pair: str, known: Profile, traces: Sequence[AnswerTrace], params: SamplingParams, arguments: argparse.Namespace
) -> Iterator[dict[str, object]]:
    target, draft = scaled(pair, arguments.scale)
    runs = play(target, draft, traces, params, arguments)
    policies = policies_with(bool(arguments.lookup))
    costs = Costs.of(replace(known, target={1: target}, draft={1: draft}), target_units=1, draft_units=1)
    speeds = {run.name: run.speeds(len(traces)) for run in runs}
    verify_ms = {run.name: 1e3 * run.total("verify_s") / run.total("num_rounds") for run in runs}
    circumstances = {"paced as": pair, "T": params.temperature}
    rows: list[tuple[str, list[float], Outcome, Bound | None]] = []
    for run in runs:
        bound = None
        if run.name in PARALLEL:
            drafter = Parallel(draft=PARALLEL[run.name])
            bound, projected = bound_of(traces, drafter, costs, policies), simulate(traces, drafter, costs, policies)
            rows += [
                (f"{run.name}: projected", [projected.tokens_per_s], projected, bound),
                (f"{run.name}: bound", [bound.outcome.tokens_per_s], bound.outcome, bound),
            ]
        rows.append((run.name, speeds[run.name], Outcome(answers=tuple(run.answers)), bound))
    for name, found, outcome, bound in rows:
        is_parallel, is_simulated = bound is not None, ":" in name
        yield circumstances | {
            "drafter": name, "tokens/s": f"{median(found):.0f}",
            "slowest-fastest": "" if is_simulated else f"{found[0]:.0f}-{found[-1]:.0f}",
            "over serial": f"{median(found) / median(speeds['serial']):.2f}",
            "over adaptive": f"{median(found) / median(speeds['serial, adaptive']):.2f}",
            "of bound": "" if bound is None else f"{median(found) / bound.outcome.tokens_per_s:.2f}",
            "tokens/round": f"{outcome.tokens_per_round:.2f}", "round ms": f"{1e3 * outcome.round_s:.2f}",
            "pass": f"{1e3 * outcome.per_round('pass_s'):.2f}",
            "verify": f"{verify_ms[name]:.2f}" if name in verify_ms else "",
            "miss wait": f"{1e3 * outcome.per_round('miss_wait_s'):.2f}" if is_parallel else "",
            "hit wait": f"{1e3 * outcome.per_round('hit_wait_s'):.2f}" if is_parallel else "",
            "beside": f"{1e3 * max(0.0, outcome.overhead_s):.2f}",
            "misses": f"{outcome.miss_rate:.2f}" if is_parallel else "",
            "bare": f"{outcome.per_round('num_bare'):.2f}", "rows lost": f"{outcome.wasted_rows_per_round:.2f}",
            "late": f"{outcome.per_round('num_late'):.2f}" if is_simulated else "",
            "draft passes": f"{outcome.expansions_per_round:.2f}" if is_simulated else "",
            "passes lost": f"{outcome.useless_expansions:.2f}" if is_simulated else "",
            "levels": f"{outcome.levels_per_useful_expansion:.2f}" if is_simulated else "",
            "lost to": ", ".join(f"{part} {lost:.0f}" for part, lost in bound.lost_to.items())
            if bound is not None and "projected" in name else "",
        }  # fmt: skip


def main() -> None:
    parser = standard_arguments(__doc__, "parallel_bound", num_prompts=8, num_new=128)
    parser.add_argument("--skip", type=int, default=0, help="leave out so many prompts at the start")
    parser.add_argument("--repeats", type=int, default=5, help="how often each prompt is answered; medians are taken")
    parser.add_argument("--weights", default="stored", help="int8 or int4 where passes take too long for the paces")
    parser.add_argument("--scale", type=float, default=1.0, help="passes take so many times as long as stated")
    parser.add_argument("--only", choices=list(PAIRS), help="one of the paces")
    parser.add_argument("--lookup", type=int, default=1, help="1 with earlier text in trees, 0 without")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.6, 1.0])
    arguments = parser.parse_args()
    prompts = [ids for _, ids in ask(arguments, arguments.num_prompts, arguments.skip)]
    config = config_of(arguments, drafter=NoDrafter(), weights=arguments.weights)
    known = calibrate(config, arguments.draft, print)
    kinds = [
        SamplingParams(max_new_tokens=arguments.num_new, temperature=temperature, seed=1)
        for temperature in arguments.temperatures
    ]
    with closing(Recorder(config, arguments.draft)) as recorder:
        recorded = [(params, list(recorder.record(prompts, params))) for params in kinds]
    rows: list[dict[str, object]] = []
    for pair in [arguments.only] if arguments.only else PAIRS:
        for params, traces in recorded:
            for row in rows_of(pair, known, traces, params, arguments):
                rows.append(row)
                print(row, flush=True)
    notes = [
        f"{len(prompts)} questions x {arguments.num_new} tokens at most, {arguments.repeats} times over, decoding "
        "only, all in turn prompt by prompt; tokens/s is the median of the repeats. All texts are those without "
        "drafting.",
        "Projected: what the planner foretells from the recorded guesses with this machine's overheads. Bound: the "
        "same without overheads and latency. Lost to: tokens/s from bound to projection.",
        "Of a round, in ms: the target's passes at their stated times; what they took with choosing from them (where "
        "that is much more, this machine is too slow for the pair, and nothing can be compared with the bound); waits "
        "for the tree after a miss and with a tree; and what is beside (of the serial drafter: its draft passes too).",
        "Bare: rounds of the root alone. Rows lost: verified rows that gave no token, a round. Late: rounds that began "
        "before the answer to the verdict. Passes lost: share of the draft passes that put no token of the text into "
        "the tree. Levels: tokens of the text that each of the others put there.",
        *([f"Passes take {arguments.scale:g} times as long as stated."] if arguments.scale != 1.0 else []),
    ]
    write_results(arguments, "Parallel drafting against its bound, paced", rows, notes)


if __name__ == "__main__":
    main()
