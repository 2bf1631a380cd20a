"""What every benchmark here shares: engines that answer in turn, the machine described, results written once."""

import argparse
import gc
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import torch

from forerun import Engine, GenerationStream, SamplingParams
from forerun.bench.run.machine import describe_machine
from forerun.core.drafter_config import DrafterConfig
from forerun.core.steps import Generation
from forerun.drafting.policies import Policies
from forerun.drafting.remote.policy import RemotePolicy
from forerun.drafting.tree_policy import TreePolicy

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "src" / "forerun" / "assets"


WITHOUT_LOOKUP = Policies(tree=TreePolicy(looks_up=False), remote=RemotePolicy(looks_up=False))
Choice = tuple[DrafterConfig, Policies | None]  # None: the policies that suit the drafter


def policies_with(lookup: bool) -> Policies:
    """What drafts, with or without what followed the last tokens earlier in the text."""
    return Policies() if lookup else WITHOUT_LOOKUP


@dataclass(kw_only=True)
class Run:
    """One drafter over all prompts."""

    name: str
    engine: Engine
    num_threads: int
    results: list[Generation] = field(default_factory=list)

    def start(self, prompt: str, params: SamplingParams) -> GenerationStream:
        torch.set_num_threads(self.num_threads)  # of the process, so that every turn sets its own
        return self.engine.stream(prompt, params)

    def write(self, prompt: str, params: SamplingParams) -> None:
        self.results.append(self.start(prompt, params).result())

    def total(self, statistic: str, first: int | None = None) -> float:
        """The sum of a number of `GenerationStats` over all answers, or over the first ones."""
        return float(sum(getattr(result.stats, statistic) for result in self.results[:first]))

    @property
    def tokens_per_s(self) -> float:
        """Of decoding alone."""
        return self.total("num_new_tokens") / self.total("decode_s")

    @property
    def tokens_per_round(self) -> float:
        return self.total("num_new_tokens") / self.total("num_rounds")

    def same_texts(self, other: "Run") -> str:
        pairs = zip(self.results, other.results, strict=True)
        return f"{sum(mine.token_ids == theirs.token_ids for mine, theirs in pairs)}/{len(self.results)}"


def answer_in_turn(runs: Sequence[Run], prompts: Iterable[str], params: SamplingParams) -> None:
    """A B C A B C ...: every run answers a prompt before the next one is put; then all engines close."""
    gc.collect()  # engines of the runs before
    for prompt in prompts:
        for run in runs:
            run.write(prompt, params)
    for run in runs:
        run.engine.close()


def numbers(name: str) -> dict[str, Any]:
    """The settings of an engine for a dtype, or for weights of 8 or 4 bits."""
    return {"weights" if name in ("int8", "int4") else "dtype": name}


def read_prompts(num_prompts: int, skip: int = 0) -> list[str]:
    """Held-out function headers: the first turn of each record of the built-in set."""
    lines = (ASSETS / "prompts.jsonl").read_text().splitlines()
    return [json.loads(line)["turns"][0] for line in lines[skip : skip + num_prompts]]


def standard_arguments(
    description: str, theme: str, *, num_prompts: int | None = None, num_new: int | None = None
) -> argparse.ArgumentParser:
    """A parser with the flags of most scripts; those of prompts and new tokens only where their defaults are given."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--hardware", default="2core", help="short name of this machine for the result files")
    parser.add_argument("--theme", default=theme, help="name of the result files")
    for flag, default in (("--num-prompts", num_prompts), ("--num-new", num_new)):
        if default is not None:
            parser.add_argument(flag, type=int, default=default)
    return parser


def write_results(
    arguments: argparse.Namespace, title: str, rows: Sequence[dict[str, object]], notes: Sequence[str]
) -> None:
    """Print a Markdown table and write it, with its JSON, to results/<theme>_<hardware>_<yyyymm>."""
    machine = describe_machine()
    header = list(rows[0])
    lines = [f"# {title}", "", ", ".join(f"{key} {value}" for key, value in machine.items()), ""]
    lines += ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(str(row[key]) for key in header) + " |" for row in rows]
    lines += ["", *notes, ""]
    place = ROOT / "benchmarks" / "results" / f"{arguments.theme}_{arguments.hardware}_{date.today():%Y%m}"
    place.with_suffix(".md").write_text("\n".join(lines))
    record = {
        "title": title, "machine": machine, "arguments": vars(arguments), "rows": list(rows), "notes": list(notes),
    }  # fmt: skip
    place.with_suffix(".json").write_text(json.dumps(record, indent=2, default=str) + "\n")
    print("\n".join(lines))
