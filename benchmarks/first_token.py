"""Seconds from a command to the first byte of its answer, and its peak memory.

python benchmarks/first_token.py [--command forerun] [--repeats 3] NAME=MODEL...

Each model starts twice in turn: with an empty cache of forerun's own, and again. The model's own file should be in the
system's cache; models that have a short name are found in the usual place.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from forerun.core.places import cache_folder

ANSWER = ("Say hello in French.", "--max-new-tokens", "8")


def start(command: str, model: str, cache: Path) -> tuple[float, int]:
    """Seconds to the first byte, and the peak of resident memory in bytes (Linux)."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [command, "run", model, *ANSWER], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=os.environ | {"FORERUN_CACHE": str(cache)},
    )  # fmt: skip
    assert process.stdout is not None
    first = os.read(process.stdout.fileno(), 1)
    seconds = time.perf_counter() - began
    process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    assert first, f"{model} wrote nothing"
    assert status == 0, f"{model} ended with status {status}"
    return seconds, usage.ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="NAME=MODEL")
    parser.add_argument("--command", default=str(Path(sys.executable).with_name("forerun")))
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    print("| model | first start, s | second start, s | peak MB, first | peak MB, second |\n|---|---|---|---|---|")
    for name, _, model in (given.partition("=") for given in arguments.models):
        starts: dict[str, list[tuple[float, int]]] = {"first": [], "second": []}
        for _ in range(arguments.repeats):
            with tempfile.TemporaryDirectory() as folder:
                if (cache_folder() / "models").exists():
                    Path(folder, "models").symlink_to(cache_folder() / "models")
                for kind in starts:
                    starts[kind].append(start(arguments.command, model, Path(folder)))
        times = [" ".join(f"{seconds:.2f}" for seconds, _ in found) for found in starts.values()]
        peaks = [f"{median(peak for _, peak in found) / 1e6:.0f}" for found in starts.values()]
        print(f"| {name} | {' | '.join([*times, *peaks])} |", flush=True)


if __name__ == "__main__":
    main()
