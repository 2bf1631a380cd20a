"""The cost of saving and restoring a text, compared with reading it again.

python benchmarks/warm_texts.py [--target smollm2] [--repeats 5]

Texts are random and all different. `read` is a prefill; `save` copies a text's keys and values into new memory, which
the system clears page by page; `save again` copies into memory that other texts used before; `restore` copies them
back. Times are CPU seconds of all threads together, so that other load on the machine has little effect.
"""

import random
from collections.abc import Callable
from statistics import median
from time import process_time

from common import config_of, standard_arguments, write_results

from forerun import Engine, NoDrafter
from forerun.model.runner import Runner
from forerun.model.warm_texts import BLOCK, WarmTexts
from forerun.runtime.inference import inference

LENGTHS = (100, 1000)  # tokens


def cpu_ms(work: Callable[[], object]) -> float:
    """Milliseconds of processor time."""
    began = process_time()
    work()
    return 1e3 * (process_time() - began)


def times_of(runner: Runner, length: int, repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each kind of work on texts of so many tokens."""
    rng, found = random.Random(length), {"read": [], "save": [], "save again": [], "restore": []}
    room = repeats * -(-length // BLOCK) * BLOCK * runner.cache.bytes_per_slot
    warm = WarmTexts(runner.cache, room)
    for number in range(2 * repeats):
        text = [rng.randrange(runner.spec.vocab_size) for _ in range(length)]
        if number < repeats:
            found["read"].append(cpu_ms(lambda text=text: (runner.forget(), runner.sync(text))))
        warm.find([], "")
        saves = found["save"] if number < repeats else found["save again"]
        saves.append(cpu_ms(lambda text=text: warm.save(text, "")))
        found["restore"].append(cpu_ms(lambda text=text: (warm.find(text, ""), warm.restore(text, "", 0))))
    return found


def main() -> None:
    parser = standard_arguments(__doc__, "warm_texts")
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    rows = []
    with Engine(config_of(arguments, drafter=NoDrafter())) as engine, inference():
        runner = engine._target
        for length in LENGTHS:
            times = times_of(runner, length, arguments.repeats)
            num_bytes = length * runner.cache.bytes_per_slot
            middles = {f"{name} ms": f"{median(values):.2f}" for name, values in times.items()}
            rows.append({"tokens": length, "MB": f"{num_bytes / 1e6:.1f}", **middles})
    notes = [f"{arguments.target}, {arguments.threads} threads: processor time, middle of {arguments.repeats}."]
    write_results(arguments, "Saved texts: saving, restoring, reading", rows, notes)


if __name__ == "__main__":
    main()
