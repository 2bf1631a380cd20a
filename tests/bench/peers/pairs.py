"""What every installed peer has to show on the built-in pair."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest

from forerun import SamplingParams
from forerun_lab.bench.peers.catalogue import find_absence, open_peer
from forerun_lab.bench.peers.messages import PeerPlan
from forerun_lab.bench.records.answers import Contestant

PROMPTS = (
    "def is_even(number):\n    return",
    "class Stack:\n    def push(self, item):\n",
    "for i in range(10):\n    for i",
)
MAX_LENGTH = 256
GREEDY = SamplingParams(max_new_tokens=32, ignore_eos=True)
SAMPLED = SamplingParams(max_new_tokens=24, ignore_eos=True, temperature=1.0, seed=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A plan, prompts, and the greedy ids of drafter `none` with the end of text ignored."""

    plan: PeerPlan
    prompts: tuple[tuple[int, ...], ...]
    expected: tuple[tuple[int, ...], ...]
    eos_id: int


def skip_if_absent(name: str, plan: PeerPlan) -> None:
    """Skip the test, without importing anything into this process."""
    reason = find_absence(name, plan)
    if reason is not None:
        pytest.skip(f"{name}: {reason}")


@contextmanager
def opened(name: str, plan: PeerPlan, **settings: object) -> Iterator[Contestant]:
    """The peer, or a skipped test where it is not installed."""
    skip_if_absent(name, plan)
    peer = open_peer(name, plan, settings)
    try:
        yield peer
    finally:
        peer.close()


def check_peer(peer: Contestant, pair: Pair) -> list[int]:
    """Check everything that a start of the peer's process is good for; return the tokens of every round."""
    emitted = check_greedy(peer, pair)
    check_end_of_text(peer, pair)
    check_sampling(peer, pair)
    return emitted


def check_greedy(peer: Contestant, pair: Pair) -> list[int]:
    """The ids are ours, also from a cache that was emptied, and the columns fit together."""
    emitted: list[int] = []
    for prompt, expected in zip(pair.prompts, pair.expected, strict=True):
        turn = peer.write(prompt, GREEDY)
        assert turn.token_ids == expected
        assert turn.num_new_tokens == sum(turn.emitted) == len(expected)
        assert turn.num_prompt_tokens == len(prompt)
        assert len(turn.emitted) == len(turn.emitted_at_s)
        assert list(turn.emitted_at_s) == sorted(turn.emitted_at_s)
        assert 0.0 < turn.emitted_at_s[0] <= turn.emitted_at_s[-1] == turn.wall_s
        emitted += turn.emitted
    peer.forget()
    assert peer.write(pair.prompts[0], GREEDY).token_ids == pair.expected[0]
    longer = (*pair.prompts[0], *pair.expected[0][:8])  # as a chat's next turn begins with the one before
    assert peer.write(longer, replace(GREEDY, max_new_tokens=24)).token_ids == pair.expected[0][8:]
    return emitted


def check_end_of_text(peer: Contestant, pair: Pair) -> None:
    """The token that ends a text is the last one, as in our own ids, wherever in a round it stands."""
    whole = pair.expected[0][: pair.expected[0].index(pair.eos_id) + 1]
    for num_given in range(len(whole) - 1):
        prompt = (*pair.prompts[0], *whole[:num_given])
        assert peer.write(prompt, SamplingParams(max_new_tokens=32)).token_ids == whole[num_given:]


def check_sampling(peer: Contestant, pair: Pair) -> None:
    """Seeds are heeded, and so are filters: of one token only, the likeliest is drawn."""
    prompt = pair.prompts[1]
    texts = [peer.write(prompt, replace(SAMPLED, seed=seed)).token_ids for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert peer.write(prompt, replace(SAMPLED, top_k=1)).token_ids == pair.expected[1][:24]
    assert peer.write(prompt, replace(SAMPLED, top_p=1e-6)).token_ids == pair.expected[1][:24]
