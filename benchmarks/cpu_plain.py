"""Plain decoding on a CPU: drafter `none` against llama.cpp, the same weights in the same kind of format, in one run.

python benchmarks/cpu_plain.py [--model builtin 125m 1b] [--dtype bfloat16 int8 int4]

Every pair of model and format is a `forerun bench run`: the contestants answer every question in turn, each in a
process of its own or its own engine. llama.cpp gets BF16 for bfloat16, Q8_0 for int8 and Q4_0 for int4.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from common import ASSETS, standard_arguments, write_results
from plain_speed import random_llama

from forerun.bench.report.summary import summarise

NUM_QUESTIONS = {"builtin": (12, 128), "125m": (8, 48), "1b": (5, 16)}  # questions, tokens of an answer
FORMATS = {"float32": "F32", "bfloat16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}


def run(name: str, dtype: str, place: Path, arguments) -> dict[str, object]:
    num_questions, num_new = NUM_QUESTIONS[name]
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "forerun", "bench", "run", "--out", folder, "--target", str(place), "--dtype", dtype,
            "--drafters", "none", "--peers", "llama_cpp", "--num-prompts", str(num_questions), "-n", str(num_new),
            "--ignore-eos", "--threads", str(arguments.threads), "--repeats", str(arguments.repeats),
            "--max-length", "1024",
        ]  # fmt: skip
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows = {row.contestant: row for row in summarise(Path(folder)).over_all(0.0)}
    ours, theirs, ratio = rows["none"].speed, rows["llama_cpp"].speed, rows["llama_cpp"].ratio
    return {
        "model": name, "format": f"{dtype} / {FORMATS[dtype]}", "forerun none tok/s": f"{ours.value:.1f}",
        "llama.cpp tok/s": f"{theirs.value:.1f}", "ratio": f"{1 / ratio.value:.2f}",
        "questions x tokens x repeats": f"{num_questions} x {num_new} x {arguments.repeats}",
    }  # fmt: skip


def main() -> None:
    parser = standard_arguments(__doc__, "cpu_plain")
    parser.add_argument("--model", nargs="+", default=["builtin", "125m", "1b"])
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "int8", "int4"])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.model:
            if name == "builtin":
                place = ASSETS / "target"
            else:
                place = Path(folder) / name
                place.mkdir()
                random_llama(name, place)
            for dtype in arguments.dtype:
                rows.append(run(name, dtype, place, arguments))
                print(rows[-1], flush=True)
    notes = [
        "Greedy, whole answers without prefill, contestants in turn question by question; the built-in questions. "
        "Random-weight models: 125m is 12 layers x 768, 1b is 22 x 2048, untied heads of 32,000 tokens.",
    ]
    write_results(arguments, "Plain decoding against llama.cpp", rows, notes)


if __name__ == "__main__":
    main()
