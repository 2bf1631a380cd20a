"""What every benchmark here shares: contestants measured in turn, the machine described, results written once."""

import argparse
import json
import platform
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from importlib import metadata
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "src" / "forerun" / "assets"


@dataclass(kw_only=True)
class Contestant:
    """Something that writes tokens: `write(prompt index)` returns how many it wrote."""

    name: str
    write: Callable[[int], int]
    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        return sum(self.tokens) / sum(self.seconds)

    @property
    def ms_per_token(self) -> list[float]:
        return [1e3 * s / n for s, n in zip(self.seconds, self.tokens, strict=True)]


def measure_in_turn(contestants: Sequence[Contestant], num_prompts: int) -> None:
    """A B C A B C ...: every contestant writes prompt 0 to warm up, then prompt 1, prompt 2, and so on, which count."""
    for contestant in contestants:
        contestant.write(0)
    for number in range(1, num_prompts + 1):
        for contestant in contestants:
            began = perf_counter()
            count = contestant.write(number)
            contestant.seconds.append(perf_counter() - began)
            contestant.tokens.append(count)


def ratio(faster: Contestant, slower: Contestant) -> tuple[float, float]:
    """(overall, median over prompts) of the speed of one over that of the other."""
    pairs = zip(slower.ms_per_token, faster.ms_per_token, strict=True)
    return faster.tokens_per_s / slower.tokens_per_s, median(left / right for left, right in pairs)


def read_prompts(num_prompts: int, skip: int = 0) -> list[str]:
    """Held-out function headers: the first turn of each record of the built-in set."""
    lines = (ASSETS / "prompts.jsonl").read_text().splitlines()
    return [json.loads(line)["turns"][0] for line in lines[skip : skip + num_prompts]]


def describe_machine() -> dict[str, object]:
    """Hardware, versions, commit."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        "",
    )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {
        "cpu": model or platform.processor(),
        "threads": torch.get_num_threads(),
        "isa": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": metadata.version("transformers"),
        "commit": commit.stdout.strip(),
        "date": date.today().isoformat(),
    }


def standard_arguments(description: str, theme: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--hardware", default="2core", help="short name of this machine for the result files")
    parser.add_argument("--theme", default=theme, help="name of the result files")
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
        "title": title,
        "machine": machine,
        "arguments": vars(arguments),
        "rows": list(rows),
        "notes": list(notes),
    }
    place.with_suffix(".json").write_text(json.dumps(record, indent=2, default=str) + "\n")
    print("\n".join(lines))
