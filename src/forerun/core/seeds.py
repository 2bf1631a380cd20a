"""Derives the seeds of several texts from one seed."""

from hashlib import blake2b
from typing import Final

NUM_SEEDS: Final = 2**63  # as SamplingParams takes them
SEED_BYTES: Final = 8


def seed_of_text(seed: int, number: int) -> int:
    """The seed of one of several texts: the seed itself for the first, a hash of seed and number for the others.

    With seed + number, text 1 of seed 5 would be text 0 of seed 6, so that two requests would share texts.
    """
    if number == 0:
        return seed
    digest = blake2b(f"{seed}:{number}".encode(), digest_size=SEED_BYTES).digest()
    return int.from_bytes(digest, "little") % NUM_SEEDS
