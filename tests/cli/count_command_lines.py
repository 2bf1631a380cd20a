"""Do random command lines end in a right run or in one clear line? Right and wrong flags, input and variables.

Counts, not times: runs anywhere. python -m tests.cli.count_command_lines --num-lines 10000
"""

import argparse
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.cli.random_command_lines import Lines, fault_of, run_here, run_process, tiny_models


def count() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-lines", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=0, help="of these, as processes of their own")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    codes: Counter[int] = Counter()
    faults: Counter[str] = Counter()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["FORERUN_CACHE"] = str(folder / "cache")
        os.chdir(folder)
        lines = Lines(asked.seed, folder, tiny_models(folder))
        for number in range(asked.num_lines):
            line = lines.make()
            code, stdout, stderr = (run_process if number < asked.processes else run_here)(line)
            codes[code] += 1
            if fault := fault_of(line, code, stdout, stderr):
                faults[fault] += 1
                print(
                    f"{fault}: forerun {' '.join(map(ascii, line.words))} {line.variables}\n    {stderr[-400:]!a}",
                    flush=True,
                )
    print(f"{asked.num_lines} command lines, {asked.processes} of them as processes, {time.monotonic() - began:.0f} s")
    print(f"exit codes {dict(sorted(codes.items()))}; faults {dict(faults) or 'none'}")


if __name__ == "__main__":
    count()
