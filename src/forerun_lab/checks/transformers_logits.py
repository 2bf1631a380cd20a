"""Logits of a folder's model beside those of transformers, both in float32: the test of a family that is new here.

    python -m forerun_lab.checks.transformers_logits MODEL [--tokens 300]

It reads random tokens in parts and in a tree, prints the largest difference of logits relative to the largest logit and
how many rows have the same best token, and exits with 1 if a difference is too large for rounding.
"""

import argparse
import random
import sys
from typing import Final

import torch
import transformers
from torch import Tensor

from forerun.backends.torch.backend import FUSED
from forerun.checkpoints.open import open_source
from forerun.model.executor import ForwardInput
from forerun.model.runner import Runner
from forerun.speculation.tree import ancestry_matrix

NUM_TREE: Final = 16  # nodes: a chain, with a wrong sibling of each of its nodes
MOST_PART: Final = 200  # rows that are read at once
CLOSE: Final = 1e-3  # float32 rounds logits of deep models by up to 1e-4 of the largest


def our_logits(runner: Runner, text: list[int], rng: random.Random) -> Tensor:
    """Of all tokens: the last NUM_TREE / 2 in a tree, the others in parts of random sizes."""
    rows = []
    rest = text[: -NUM_TREE // 2]
    while rest:
        part = rest[: rng.randint(1, MOST_PART)]
        rows.append(runner.extend(part, num_logit_rows=len(part)))
        rest = rest[len(part) :]
    token_ids = [token for pair in ((0, token) for token in text[-NUM_TREE // 2 :]) for token in pair][1:]
    parents = [-1, *(max(0, 2 * ((node - 1) // 2)) for node in range(1, len(token_ids)))]
    ancestry = ancestry_matrix(parents)
    length = runner.cache.committed_len
    inputs = ForwardInput(
        token_ids=token_ids,
        positions=[length + int(row.sum()) - 1 for row in ancestry],
        first_slot=runner.cache.end,
        prefix_len=length,
        ancestry=ancestry,
        num_logit_rows=len(token_ids),
    )
    return torch.cat([*rows, runner.forward(inputs).logits[::2]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a checkpoint folder")
    parser.add_argument("--tokens", type=int, default=300, help="of the random text")
    arguments = parser.parse_args()
    source = open_source(arguments.model)
    spec = source.spec().for_length(2 * arguments.tokens)
    rng = random.Random(1)
    text = [rng.randrange(spec.vocab_size) for _ in range(max(NUM_TREE, arguments.tokens))]
    weights = source.weights(dtype=torch.float32)
    capacity = len(text) + 2 * NUM_TREE
    runner = Runner(spec, weights, backend=FUSED, capacity=capacity, dtype=torch.float32, device="cpu")
    ours = our_logits(runner, text, rng)
    del runner, weights
    model = transformers.AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    with torch.inference_mode():
        theirs = model(torch.tensor([text]), use_cache=False).logits[0]
    difference = float((ours - theirs).abs().max() / theirs.abs().max())
    num_same = int((ours.argmax(-1) == theirs.argmax(-1)).sum())
    print(f"{len(text)} rows, {num_same} with the same best token; largest difference {difference:.1e} of a logit")
    sys.exit(difference > CLOSE)


if __name__ == "__main__":
    main()
