"""Do a row's bits depend on anything but its own text? Random rows alone, among siblings, on one thread and on two.

Counts, not times: runs anywhere. python benchmarks/bit_identity.py --num-checks 50000
"""

import random
from collections.abc import Iterator

import torch
from common import standard_arguments, write_results

from forerun import EngineConfig
from forerun.backends.cpu.backend import NATIVE
from forerun.backends.torch.backend import FUSED
from forerun.checkpoints.open import open_source
from forerun.engine.loading import Checkpoint
from forerun.model.backend import ModelBackend
from forerun.model.inputs import ForwardInput
from forerun.model.runner import Runner
from forerun.speculation.ancestry import ancestry_matrix

CAPACITY = 768
LENGTH = 600  # beyond one chunk of attention


def tree_of(rng: random.Random, path: list[int], vocab_size: int) -> tuple[list[int], list[int], list[int]]:
    """Token ids and parents of a tree that holds `path` among siblings, and the path's nodes."""
    token_ids, parents, on_path = [path[0]], [-1], [0]
    for token in path[1:]:
        for _ in range(rng.randint(0, 3)):
            token_ids.append(rng.randrange(vocab_size))
            parents.append(rng.randrange(len(parents)))
        token_ids.append(token)
        parents.append(on_path[-1])
        on_path.append(len(parents) - 1)
    return token_ids, parents, on_path


def verified(runner: Runner, rng: random.Random, start: int, path: list[int]) -> torch.Tensor:
    """Logits of `path` in a random tree behind `start` committed tokens."""
    token_ids, parents, on_path = tree_of(rng, path, runner.spec.vocab_size)
    ancestry = ancestry_matrix(parents)
    inputs = ForwardInput(
        token_ids=token_ids,
        positions=[start + int(row.sum()) - 1 for row in ancestry],
        first_slot=runner.cache.reserve(len(token_ids)),
        prefix_len=start,
        ancestry=ancestry,
        num_logit_rows=len(token_ids),
    )
    return runner.forward(inputs)[on_path]


def comparisons(runner: Runner, seed: int, num_threads: int) -> Iterator[bool]:
    """Whether each row of a text has the bits it has in a pass of its own: from a prefill cut anywhere, then trees."""
    rng = random.Random(seed)
    length = rng.choice([20, 60, LENGTH])
    text = [rng.randrange(runner.spec.vocab_size) for _ in range(length)]
    first = max(1, length - 40)
    torch.set_num_threads(1)
    runner.forget()
    runner.sync(text[:first])
    alone = [runner.extend([token], num_logit_rows=1)[0] for token in text[first:]]
    for threads in {1, num_threads}:
        torch.set_num_threads(threads)
        runner.forget()
        cut = rng.randrange(first + 1)
        runner.sync(text[:cut])
        runner.sync(text[:first])
        place = first
        while place < length:
            path = text[place : place + rng.randint(1, 8)]
            rows = verified(runner, rng, place, path)
            yield from (bool(torch.equal(row, alone[place - first + i])) for i, row in enumerate(rows))
            runner.cache.truncate(place)
            runner.extend(path, num_logit_rows=0)
            place += len(path)


def count(kernels: ModelBackend, dtype: str, num_checks: int, num_threads: int) -> tuple[int, int]:
    """Rows compared, rows that differ."""
    found = Checkpoint.open(open_source("builtin"), EngineConfig(dtype=dtype))  # type: ignore[arg-type]
    runner = Runner(
        found.spec,
        found.source.weights(dtype=found.dtype, weight_format=found.weight_format),
        backend=kernels,
        capacity=CAPACITY,
        dtype=found.dtype,
        device="cpu",
    )
    num_done = num_different = seed = 0
    while num_done < num_checks:
        for is_equal in comparisons(runner, seed, num_threads):
            num_done += 1
            num_different += not is_equal
        seed += 1
    return num_done, num_different


def main() -> None:
    parser = standard_arguments(__doc__, "bit_identity")
    parser.add_argument("--num-checks", type=int, default=50_000, help="rows compared in each dtype")
    arguments = parser.parse_args()
    rows = []
    for kernels, share in ((NATIVE, 1.0), (FUSED, 0.02)):
        for dtype in ("float32", "bfloat16", "int8", "int4"):
            num_checks = int(share * arguments.num_checks)
            done, different = count(kernels, dtype, num_checks, max(2, arguments.threads))
            rows.append({
                "kernels": kernels.name, "dtype": dtype,
                "rows compared": f"{done:,}", "rows with other bits": different,
            })  # fmt: skip
            print(rows[-1], flush=True)
    notes = [
        "Built-in target, random texts of 20, 60 and 600 tokens. A row alone on one thread, after one prefill, against "
        "the same row in a verified tree, among siblings, after a prefill cut elsewhere, on one thread and on several.",
        "`fused` are torch's kernels, which promise nothing: if nothing differed with them either, nothing was tested.",
    ]
    write_results(arguments, "Bits of a row in any company", rows, notes)


if __name__ == "__main__":
    main()
