"""Tokens per round of a draft model, by data set; nothing is timed.

python benchmarks/draft_acceptance.py [--target smollm2 --draft FOLDER --data mt_bench,gsm8k] [--texts FILE]

The text does not depend on the drafter, so the target writes each answer once; then the draft alone is simulated on it,
with trees of 16 rows and without prompt lookup. At temperature 1 this is repeated with children ranked without the
target's noise, as in other tree drafters.
"""

import argparse
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import torch
from common import ask, config_of, standard_arguments, write_results

from forerun import DraftModel, Engine, NoDrafter, SamplingParams
from forerun.drafting.policies import Policies
from forerun.drafting.tree_policy import TreePolicy
from forerun.engine.trace import AnswerTrace, read_traces, write_traces
from forerun.planner.outcome import AnswerOutcome, Outcome, Tally

SEED = 1
Texts = dict[tuple[tuple[int, ...], float], AnswerTrace]  # by prompt and temperature
KINDS = {  # temperature, whether children are ranked with the noise, and how many of a node
    "greedy": (0.0, True, 4), "T=1": (1.0, True, 4), "T=1, log q": (1.0, False, 4),
    "T=1, 2 children": (1.0, True, 2), "T=1, 2 children, log q": (1.0, False, 2),
}  # fmt: skip


def written(engine: Engine, prompt_ids: list[int], temperature: float, num_new: int) -> AnswerTrace:
    """The target's answer, as a trace without a draft's guesses."""
    params = SamplingParams(max_new_tokens=num_new, temperature=temperature, seed=SEED)
    token_ids = engine.generate(prompt_ids, params).token_ids
    none: tuple[tuple[()], ...] = ((),) * len(token_ids)
    return AnswerTrace(
        prompt_ids=tuple(prompt_ids), token_ids=token_ids, children=none, log_probs=none,
        temperature=temperature, seed=SEED,
    )  # fmt: skip


def texts_of(arguments: argparse.Namespace, prompts: list[list[int]]) -> Texts:
    """An answer to every prompt at both temperatures, from the file if given, else newly written."""
    path: Path | None = arguments.texts
    known = read_traces(path) if path is not None and path.exists() else []
    found = {(trace.prompt_ids, trace.temperature): trace for trace in known}
    wanted = [(ids, temperature) for ids in prompts for temperature in (0.0, 1.0)]
    lacking = [(ids, temperature) for ids, temperature in wanted if (tuple(ids), temperature) not in found]
    if lacking:
        with Engine(config_of(arguments, drafter=NoDrafter())) as engine:
            new = (written(engine, ids, temperature, arguments.num_new) for ids, temperature in lacking)
            found |= {(trace.prompt_ids, trace.temperature): trace for trace in new}
        if path is not None:
            write_traces(path, found.values())
    return found


@torch.inference_mode()
def played(engine: Engine, trace: AnswerTrace) -> AnswerOutcome:
    """Simulate the drafter's rounds on a known answer."""
    drafter, tally = engine.drafter, Tally(trace)
    params = SamplingParams(temperature=trace.temperature, seed=trace.seed)
    drafter.begin(trace.prompt_ids, params, engine._noise(params, SEED))
    while drafter.prefill():
        pass
    while tally.num_left:
        acceptance = tally.verify(drafter.propose(), pass_s=0.0)
        tally.add(acceptance, is_hit=drafter.accept(acceptance).was_hit)
    tally.outcome.decode_s = 1.0  # only tokens per round are read
    return tally.outcome


def outcomes(
    arguments: argparse.Namespace, kind: str, questions: list[tuple[str, list[int]]], texts: Texts
) -> dict[str, list[AnswerOutcome]]:
    """The answers of every data set."""
    temperature, knows_noise, num_children = KINDS[kind]
    tree = TreePolicy(knows_noise=knows_noise, num_children=num_children, looks_up=False, min_mass=0.0)
    drafter = DraftModel(model=arguments.draft, adaptive=False)
    found: dict[str, list[AnswerOutcome]] = {}
    with Engine(config_of(arguments, drafter=drafter), policies=Policies(tree=tree)) as engine:
        for name, ids in questions:
            found.setdefault(name, []).append(played(engine, texts[tuple(ids), temperature]))
    return found


def rows_of(found: dict[str, dict[str, list[AnswerOutcome]]], names: list[str]) -> Iterator[dict[str, object]]:
    """A row for each data set, and one over all."""
    for name in (*names, "all"):
        row: dict[str, object] = {"data": name}
        rounds = {}
        for kind, sets in found.items():
            answers = tuple(chain(*sets.values())) if name == "all" else tuple(sets[name])
            rounds[kind] = Outcome(answers=answers).tokens_per_round
            row[kind] = f"{rounds[kind]:.3f}"
        row |= {
            f"over {kind}": f"{rounds[kind.removesuffix(', log q')] / rounds[kind]:.3f}"
            for kind in found if kind.endswith("log q")
        }  # fmt: skip
        yield row


def main() -> None:
    parser = standard_arguments(__doc__, "draft_acceptance", num_prompts=8, num_new=128)
    parser.add_argument("--texts", type=Path, help="keep the target's answers here; of one target and length alone")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    questions = ask(arguments, arguments.num_prompts)
    texts = texts_of(arguments, [ids for _, ids in questions])
    found = {kind: outcomes(arguments, kind, questions, texts) for kind in arguments.kinds}
    rows = list(rows_of(found, list(dict.fromkeys(name for name, _ in questions))))
    notes = [
        f"{arguments.num_prompts} questions of each set x {arguments.num_new} tokens at most; trees of 16 rows, 8 "
        "levels of 8 nodes, nothing looked up. 4 children of a node, ranked by log q + g with the target's noise g; "
        "log q: without it.",
    ]
    write_results(arguments, "Tokens per round of the draft", rows, notes)


if __name__ == "__main__":
    main()
