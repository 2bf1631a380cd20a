"""Random settings from their whole ranges: how often does a text depend on who drafted, or a row on its company?

Counts, not times; a run that was stopped goes on where it ended.

python -m tests.count_random_settings rows --number 100000 --record rows.jsonl
python -m tests.count_random_settings requests --number 20000 --record requests.jsonl
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path

from tests.random_requests import DRAFTERS, MACHINES, Contest
from tests.row_company import count_rows

REQUESTS_PER_CHUNK = 500
TORCH_SHARE, THREADS_SHARE = 20, 10  # torch's kernels and several threads, which may have to wait, get one of so many
PASSES_PER_CHUNK = 200
NUM_ASKED = 1  # drafters that every request is put to


def play_requests(chunk: int) -> Counter[str]:
    machine = MACHINES[chunk % len(MACHINES)]
    is_torch = machine.kernels == "torch" or machine.dtype == "float64"
    share = TORCH_SHARE if is_torch else THREADS_SHARE if machine.num_threads > 1 else 1
    contest = Contest(machine, list(DRAFTERS), num_asked=NUM_ASKED)
    try:
        first = chunk * REQUESTS_PER_CHUNK
        for number in range(first, first + REQUESTS_PER_CHUNK, share):
            contest.play(number)
    finally:
        contest.close()
    found, where = Counter(contest.totals), f"{' '.join(map(str, astuple(machine)))}, chunk {chunk}"
    for name, count in contest.totals.items():
        if name.endswith(("differ", "near-ties")) and count:
            found[f"{name} ({where})"] += count
    return found


def compare_rows(chunk: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for number in range(chunk * PASSES_PER_CHUNK, (chunk + 1) * PASSES_PER_CHUNK):
        count_rows(number, found)
    return found


KINDS: dict[str, tuple[str, Callable[[int], Counter[str]]]] = {
    "requests": ("none: requests", play_requests),
    "rows": ("all: rows", compare_rows),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("--number", type=int, required=True, help="of requests or rows, at least")
    parser.add_argument("--record", type=Path, required=True, help="a line of counts for every chunk done")
    arguments = parser.parse_args()
    counted, play = KINDS[arguments.kind]
    record: Path = arguments.record
    lines = record.read_text().splitlines() if record.exists() else []
    totals: Counter[str] = Counter()
    for line in lines:
        totals.update(json.loads(line))
    chunk = len(lines)
    while totals[counted] < arguments.number:
        found = play(chunk)
        totals.update(found)
        with record.open("a") as file:
            file.write(json.dumps(found) + "\n")
        num_different = sum(count for name, count in totals.items() if name.endswith("differ") and "all" not in name)
        print(f"{totals[counted]} {counted.split()[-1]}, {num_different} differ", flush=True)
        chunk += 1
    for name in sorted(totals):
        print(f"{name}: {totals[name]}")


if __name__ == "__main__":
    main()
