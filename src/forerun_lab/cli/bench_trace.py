"""forerun bench trace: record how often drafters are right, for forerun plan."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

from forerun.cli.failures import find_draft_model, find_model, say
from forerun.cli.flags import option, output, with_options
from forerun.cli.options import MachineOptions, engine_config
from forerun.cli.progress import progress
from forerun.core.config import SamplingParams
from forerun.core.drafter_config import BUILTIN_TARGET
from forerun.core.errors import require
from forerun.core.output_file import require_writable
from forerun_lab.cli.bench_run import names
from forerun_lab.cli.plan_bound import print_table
from forerun_lab.planner.trace import DRAFT_MODEL, RECORDED, read_traces, write_traces


@with_options(MachineOptions)
def trace(
    machine: MachineOptions,
    out: Annotated[Path, output("--out", help="The file to write, one line per answer.")],
    target: Annotated[str, option("--target", help="Target model: folder, file or hub name.")] = BUILTIN_TARGET,
    draft: Annotated[
        str | None, option("--draft", help="The same for the draft model; auto: the known one [auto].")
    ] = None,
    data: Annotated[Path | None, option("--data", help="A question file; default: the built-in prompts.")] = None,
    num_prompts: Annotated[int, option("--num-prompts", help="Questions to answer, spread over the file.")] = 16,
    max_new_tokens: Annotated[int, option("--max-new-tokens", help="Maximum tokens per answer.")] = 128,
    temperature: Annotated[float, option("--temperature", help="0 is greedy.")] = 0.0,
    seed: Annotated[int, option("--seed", help="Seed for sampling.")] = 1,
    drafters: Annotated[
        str, option("--drafters", help=f"Drafters to record, separated by commas, of {', '.join(RECORDED)}.")
    ] = DRAFT_MODEL,
) -> None:
    """Let the target answer questions, and record the drafters' guesses at every token."""
    require_writable(out)
    wanted = read_names(drafters)
    require(num_prompts >= 1, f"num_prompts {num_prompts} must be >= 1")
    params = SamplingParams(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    config = engine_config(machine, target=target)
    find_model(target)
    model = None
    if DRAFT_MODEL in wanted:
        from forerun.engine.known_draft import draft_for

        model = draft_for(target, draft)
        find_draft_model(model)
    from forerun_lab.bench.data.datasets import questions_in
    from forerun_lab.bench.data.prompts import Reader
    from forerun_lab.bench.run.draft_traces import Recorder  # imports torch

    questions = questions_in(data)
    num_answers = min(num_prompts, len(questions))
    others = [name for name in wanted if name != DRAFT_MODEL]
    with closing(Recorder(config, model, others)) as recorder, progress("answering") as show:
        reader = Reader(tokenizer=recorder.engine.tokenizer, max_length=recorder.engine.max_length)
        chosen = reader.choose(questions, num_prompts, max_new_tokens).measured
        prompts = [reader.prompt_after(question, ()) for question in chosen]
        num_written = write_traces(out, recorder.record(prompts, params, lambda done: show(done, num_answers)))
    if num_written:
        show_tokens_per_round(out)
    say(f"wrote {num_written} answers to {out}; use them with: forerun plan --trace {out}")


def read_names(text: str) -> tuple[str, ...]:
    """The drafters to record."""
    wanted = tuple(dict.fromkeys(names(text)))
    unknown = [name for name in wanted if name not in RECORDED]
    require(bool(wanted) and not unknown, f"--drafters {text!r} must be names among {', '.join(RECORDED)}")
    return wanted


def show_tokens_per_round(path: Path) -> None:
    """Print how many tokens a round of each recorded drafter gives."""
    from forerun_lab.planner.drafters import tokens_per_round

    found = tokens_per_round(read_traces(path))
    print_table(
        ["drafter", "rows", "tokens/round"],
        [(name, str(num_rows), f"{mean:.2f}") for name, (num_rows, mean) in found.items()],
    )
