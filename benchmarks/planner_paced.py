"""The planner's predictions against measured runs on paced devices.

python benchmarks/planner_paced.py [--num-prompts 7] [--num-new 128]

A trace of the built-in pair is recorded for some prompts. What rounds take beside their passes is measured on other
prompts. From these and the paces alone the planner predicts the speed of the engine's own drafters on the prompts of
the trace; then it is measured. Every number is *paced*.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise

from common import policies_with, read_prompts, standard_arguments, write_results
from widths import PAIRS

from forerun import DraftModel, Engine, EngineConfig, Parallel, SamplingParams
from forerun.bench.run.draft_traces import Recorder
from forerun.core.pace import read_device
from forerun.core.steps import GenerationStats, StepStats
from forerun.engine.trace import AnswerTrace
from forerun.planner.simulate import Costs, simulate

NUM_OTHERS = 3  # prompts for the overheads
BACK_TO_BACK = 1.6  # of a draft pass: expansions that begin within that time of each other had no pause between


@dataclass(frozen=True, kw_only=True)
class Answer:
    token_ids: tuple[int, ...]
    stats: GenerationStats
    steps: list[StepStats]


def write_answers(engine: Engine, prompts: Sequence[str], params: SamplingParams) -> list[Answer]:
    answers = []
    for prompt in prompts:
        stream = engine.stream(prompt, params)
        steps = [step.stats for step in stream]
        result = stream.result()
        answers.append(Answer(token_ids=result.token_ids, stats=result.stats, steps=steps))
    return answers


def rest_s(answers: Sequence[Answer]) -> float:
    """What a round takes beside drafting and verifying."""
    within_s = sum(step.draft_s + step.verify_s for answer in answers for step in answer.steps)
    return (sum(answer.stats.decode_s for answer in answers) - within_s) / sum(len(item.steps) for item in answers)


def serial_costs(answers: Sequence[Answer], costs: Costs) -> Costs:
    """With the overheads of these answers: every expansion's, and every round's."""
    assert costs.draft is not None, "a paced draft"
    draft_s = costs.draft.step_s(1)
    steps = [step for answer in answers for step in answer.steps]
    nums = [int(step.draft_s / draft_s) for step in steps]
    expansion_s = mean(step.draft_s / num - draft_s for step, num in zip(steps, nums, strict=True) if num)
    round_s = mean(
        step.draft_s - num * (draft_s + expansion_s) + step.verify_s - costs.target.step_s(step.num_verified)
        for step, num in zip(steps, nums, strict=True)
    )
    return replace(costs, expansion_overhead_s=expansion_s, serial_overhead_s=round_s + rest_s(answers))


def parallel_costs(answers: Sequence[Answer], costs: Costs) -> Costs:
    """With the overheads of these answers: of expansions one after the other, and of rounds that waited for none."""
    assert costs.draft is not None, "a paced draft"
    draft_s = costs.draft.step_s(1)
    starts = [[span.start_s for step in item.steps for span in step.spans if span.lane == "draft"] for item in answers]
    gaps = [later - earlier for times in starts for earlier, later in pairwise(sorted(times))]
    expansion_s = mean(gap - draft_s for gap in gaps if gap < BACK_TO_BACK * draft_s)
    round_s = mean(
        step.draft_s + step.verify_s - costs.target.step_s(step.num_verified)
        for answer in answers
        for step in answer.steps
        if step.draft_s < draft_s / 4
    )
    return replace(costs, worker_expansion_overhead_s=expansion_s, parallel_overhead_s=round_s + rest_s(answers))


def mean(values: Iterator[float]) -> float:
    known = list(values)
    return sum(known) / len(known)


# The default of each kind, and the serial one with the widths of the parallel one.
DRAFTERS: dict[str, DraftModel | Parallel] = {
    "serial, adaptive": DraftModel(),
    "serial, 8 rows": DraftModel(adaptive=False, verify_width=8, draft_width=8, depth=6),
    "parallel": Parallel(),
}


def overheads(config: DraftModel | Parallel, costs: Costs) -> tuple[float, float]:
    """A round's and an expansion's."""
    if isinstance(config, DraftModel):
        return costs.serial_overhead_s, costs.expansion_overhead_s
    return costs.parallel_overhead_s, costs.worker_expansion_overhead_s


def compare(
    pair: str, traces: Sequence[AnswerTrace], prompts: tuple[list[str], list[str]], params: SamplingParams, lookup: bool
) -> Iterator[dict[str, object]]:
    """A row for each drafter, which knows nothing yet when it is measured, nor when it is simulated."""
    placement = read_device(PAIRS[pair])
    assert placement.target is not None, "a paced target"
    paces = Costs(target=placement.target, draft=placement.draft)
    policies = policies_with(lookup)
    traced = replace(policies, remote=replace(policies.remote, is_traced=True))
    for name, config in DRAFTERS.items():
        is_serial = isinstance(config, DraftModel)
        written = []
        for some in prompts:
            with Engine(EngineConfig(drafter=config, device=PAIRS[pair], num_threads=1), policies=traced) as engine:
                written.append(write_answers(engine, some, params))
        answers, others = written
        costs = (serial_costs if is_serial else parallel_costs)(others, paces)
        predicted = simulate(traces, config, costs, policies)
        num_rounds = sum(answer.stats.num_rounds for answer in answers)
        decode_s = sum(answer.stats.decode_s for answer in answers)
        num_tokens = sum(answer.stats.num_new_tokens for answer in answers)
        low, high = predicted.interval()
        round_s, expansion_s = overheads(config, costs)
        yield {
            "paced as": pair,
            "T": params.temperature,
            "lookup": "on" if lookup else "off",
            "drafter": name,
            "predicted tok/s": f"{predicted.tokens_per_s:.0f}",
            "95 %": f"{low:.0f}-{high:.0f}",
            "measured tok/s": f"{num_tokens / decode_s:.0f}",
            "error %": f"{100 * (predicted.tokens_per_s * decode_s / num_tokens - 1):+.1f}",
            "tokens/round, predicted / measured": f"{predicted.tokens_per_round:.2f} / {num_tokens / num_rounds:.2f}",
            "round ms, predicted / measured": f"{1e3 * predicted.round_s:.2f} / {1e3 * decode_s / num_rounds:.2f}",
            "overhead ms, round + expansion": f"{1e3 * round_s:.2f} + {1e3 * expansion_s:.2f}",
            "texts as trace": f"{sum(a.token_ids == t.token_ids for a, t in zip(answers, traces, strict=True))}"
            f"/{len(traces)}",
        }


def summary(rows: Sequence[dict[str, object]]) -> str:
    parts = []
    for name in DRAFTERS:
        errors = [abs(float(str(row["error %"]))) for row in rows if row["drafter"] == name]
        within = sum(error <= 5.0 for error in errors)
        parts.append(
            f"{name}: mean {sum(errors) / len(errors):.1f} %, largest {max(errors):.1f} %, "
            f"{within} of {len(errors)} within 5 %"
        )
    return f"Absolute errors of the predicted tokens/s. {'; '.join(parts)}."


def main() -> None:
    parser = standard_arguments(__doc__, "planner_paced", num_prompts=7, num_new=128)
    parser.add_argument("--skip", type=int, default=1, help="leave out so many prompts at the start")
    arguments = parser.parse_args()
    shown = read_prompts(arguments.num_prompts + NUM_OTHERS, arguments.skip)
    prompts = shown[: arguments.num_prompts], shown[arguments.num_prompts :]
    greedy = SamplingParams(max_new_tokens=arguments.num_new, seed=1, ignore_eos=True)
    rows: list[dict[str, object]] = []
    for params in (greedy, replace(greedy, temperature=1.0)):
        with closing(Recorder(EngineConfig(num_threads=1), "builtin-draft")) as recorder:
            traces = list(recorder.record(prompts[0], params))
        for pair in PAIRS:
            for lookup in (True, False):
                for row in compare(pair, traces, prompts, params, lookup):
                    rows.append(row)
                    print(row, flush=True)
    notes = [
        summary(rows),
        f"{arguments.num_prompts} held-out prompts x {arguments.num_new} tokens, decoding only. The planner knows the "
        "trace of these prompts without a drafter, the paces, and the overheads, which were measured with an engine of "
        f"the same kind on {NUM_OTHERS} other prompts. Drafters: the defaults (serial, with adaptive widths up to 16 "
        "rows; parallel), and the serial one with fixed widths of 8.",
        "The interval is that of other answers of this kind, by bootstrap over the predicted ones; the error is "
        "against these very answers.",
    ]
    write_results(arguments, "The planner's predictions, paced", rows, notes)


if __name__ == "__main__":
    main()
