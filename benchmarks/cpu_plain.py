"""Plain decoding on a CPU: drafter `none` against llama.cpp and transformers, the same weights, in one run.

python benchmarks/cpu_plain.py [--model builtin 125m 1b] [--dtype bfloat16 int8 int4]

Every pair of model and format is a `forerun bench run`: all answer every question in turn, each in a separate
process or engine. llama.cpp gets BF16 for bfloat16, Q8_0 for int8 and Q4_0 for int4; transformers has no such formats.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from common import ASSETS, standard_arguments, write_results
from random_pair import random_llama, save

from forerun.bench.report.summary import Row, summarise

NUM_QUESTIONS = {"builtin": (12, 128), "125m": (8, 48), "1b": (5, 16)}  # questions, tokens of an answer
FORMATS = {"float32": "F32", "bfloat16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
PEERS = {"llama_cpp": "llama.cpp", "transformers": "transformers"}
LAYERS = {"125m": 12, "1b": 22}
SHAPES = {
    "125m": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 2048},
    "1b": {"hidden_size": 2048, "num_attention_heads": 32, "intermediate_size": 5632},
}


def measure(place: Path, dtype: str, num_questions: int, num_new: int, arguments: argparse.Namespace) -> dict[str, Row]:
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "forerun", "bench", "run", "--out", folder, "--target", str(place), "--dtype", dtype,
            "--drafters", "none", "--peers", ",".join(PEERS), "--num-prompts", str(num_questions), "-n", str(num_new),
            "--ignore-eos", "--threads", str(arguments.threads), "--repeats", str(arguments.repeats),
            "--max-length", "1024",
        ]  # fmt: skip
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return {row.contestant: row for row in summarise(Path(folder)).over_all(0.0)}


def row_of(name: str, dtype: str, place: Path, arguments: argparse.Namespace) -> dict[str, object]:
    num_questions, num_new = NUM_QUESTIONS[name]
    rows = measure(place, dtype, num_questions, num_new, arguments)
    found: dict[str, object] = {"model": name, "format": f"{dtype} / {FORMATS[dtype]}"}
    found["forerun none tok/s"] = f"{rows['none'].speed.value:.1f}" if rows["none"].speed else "-"
    for peer, title in PEERS.items():
        row = rows.get(peer)
        found[f"{title} tok/s"] = f"{row.speed.value:.1f}" if row and row.speed else "-"
        found[f"over {title}"] = f"{1 / row.ratio.value:.2f}" if row and row.ratio else "-"
    found["questions x tokens x repeats"] = f"{num_questions} x {num_new} x {arguments.repeats}"
    return found


def main() -> None:
    parser = standard_arguments(__doc__ or "", "cpu_plain")
    parser.add_argument("--model", nargs="+", default=["builtin", "125m", "1b"])
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "int8", "int4"])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.model:
            place = ASSETS / "target"
            if name != "builtin":
                model = random_llama(LAYERS[name], **SHAPES[name], num_key_value_heads=4, vocab_size=32000)
                place = save(model, Path(folder) / name)
            for dtype in arguments.dtype:
                rows.append(row_of(name, dtype, place, arguments))
                print(rows[-1], flush=True)
    notes = [
        "Greedy, whole answers without prefill, all in turn question by question; the built-in questions. "
        "Random-weight models: 125m is 12 layers x 768, 1b is 22 x 2048, untied heads of 32,000 tokens.",
    ]
    write_results(arguments, "Plain decoding against llama.cpp and transformers", rows, notes)


if __name__ == "__main__":
    main()
