"""Helpers of all checks: read questions, describe the machine, write results."""

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from forerun import Engine, EngineConfig, SamplingParams
from forerun.checkpoints.open import open_source
from forerun.core.drafter_config import BUILTIN_DRAFT, BUILTIN_TARGET
from forerun.core.paths import cache_folder
from forerun_lab.bench.data.datasets import load_dataset
from forerun_lab.bench.data.prompts import Reader
from forerun_lab.bench.data.questions import Question
from forerun_lab.bench.run.machine import describe_machine

ROOT = Path(__file__).resolve().parents[3]
ASSETS = ROOT / "src" / "forerun" / "assets"
MAX_LENGTH = 2048  # tokens of a question and its answer


def numbers(name: str) -> dict[str, Any]:
    """The engine settings for a dtype, or for weights of 8 or 4 bits."""
    return {"weights" if name in ("int8", "int4") else "dtype": name}


def read_prompts(num_prompts: int) -> list[str]:
    """Held-out function headers: the first turn of each record of the built-in set."""
    lines = (ASSETS / "prompts.jsonl").read_text().splitlines()
    return [json.loads(line)["turns"][0] for line in lines[:num_prompts]]


def config_of(arguments: argparse.Namespace, **settings: Any) -> EngineConfig:
    """The config of the target in the arguments, with these settings."""
    usual = {"target": arguments.target, "num_threads": arguments.threads, "max_length": MAX_LENGTH}
    return EngineConfig(**usual | settings)


def questions_of(arguments: argparse.Namespace, number: int) -> list[tuple[Question, list[int]]]:
    """`number` questions that fit from every data set, alternating between sets, each with the target's token ids."""
    reader = Reader(tokenizer=open_source(arguments.target).tokenizer(), max_length=MAX_LENGTH)
    sets = list[list[Question]]()
    for name in arguments.data.split(","):
        rows = load_dataset(name, folder=arguments.data_folder, cache=cache_folder() / "data").questions
        fitting = list(reader.choose(rows, len(rows), arguments.num_new).measured)
        random.Random(0).shuffle(fitting)
        sets.append(fitting[:number])
    chosen = [rows[place] for place in range(number) for rows in sets if place < len(rows)]
    return [(question, reader.prompt_after(question, ())) for question in chosen]


def tokens_per_round(engine: Engine, prompts: Sequence[list[int]], temperature: float, num_new: int) -> float:
    """New tokens over rounds, of all answers."""
    num_tokens = num_rounds = 0
    for number, prompt in enumerate(prompts):
        params = SamplingParams(max_new_tokens=num_new, temperature=temperature, seed=number, ignore_eos=True)
        stats = engine.generate(prompt, params).stats
        num_tokens = num_tokens + stats.num_new_tokens
        num_rounds = num_rounds + stats.num_rounds
    return num_tokens / num_rounds


def standard_arguments(
    description: str, theme: str, *, num_prompts: int | None = None, num_new: int | None = None
) -> argparse.ArgumentParser:
    """A parser with the flags of most scripts; those of a pair of models and what it answers where that is told."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--hardware", default="2core", help="short name of this machine for the result files")
    parser.add_argument("--theme", default=theme, help="name of the result files")
    if num_prompts is None:
        return parser
    parser.add_argument("--num-prompts", type=int, default=num_prompts, help="questions of each data set")
    parser.add_argument("--num-new", type=int, default=num_new, help="tokens of an answer at most")
    parser.add_argument("--target", default=BUILTIN_TARGET)
    parser.add_argument("--draft", default=BUILTIN_DRAFT)
    parser.add_argument("--data", default="builtin", help="data sets, with commas; as in forerun bench run")
    parser.add_argument("--data-folder", type=Path)
    return parser


def without_folders(value: Any) -> Any:
    """An argument without this machine's folders."""
    if isinstance(value, list):
        return [without_folders(item) for item in value]
    return Path(value).name if isinstance(value, str | Path) and "/" in str(value) else value


def write_results(
    arguments: argparse.Namespace, title: str, rows: Sequence[Mapping[str, object]], notes: Sequence[str]
) -> None:
    """Print a Markdown table and write it, with its JSON, to results/<theme>_<hardware>_<yyyymm>; no theme: print."""
    machine = describe_machine()
    header = list(rows[0])
    lines = [f"# {title}", "", ", ".join(f"{key} {value}" for key, value in machine.items()), ""]
    lines += ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(str(row[key]) for key in header) + " |" for row in rows]
    lines += ["", *notes, ""]
    print("\n".join(lines))
    if not arguments.theme:
        return
    place = ROOT / "benchmarks" / "results" / f"{arguments.theme}_{arguments.hardware}_{date.today():%Y%m}"
    place.with_suffix(".md").write_text("\n".join(lines))
    record = {
        "title": title, "machine": machine, "rows": list(rows), "notes": list(notes),
        "arguments": {name: without_folders(value) for name, value in vars(arguments).items()},
    }  # fmt: skip
    place.with_suffix(".json").write_text(json.dumps(record, indent=2, default=str) + "\n")
