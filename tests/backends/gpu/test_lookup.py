"""The looked-up chain against the index on the host."""

import random

import pytest
import torch

from forerun.backends.gpu.tree import prompt_lookup
from forerun.backends.gpu.tree.device_tree import DeviceTree
from forerun.backends.gpu.tree.prompt_lookup import add_lookup_chain, chain_costs
from forerun.core.drafter_config import MAX_MATCH, MIN_MATCH
from forerun.drafting.prompt_lookup import MATCHES, Continuation, LookupChain, LookupRecord, PromptIndex
from forerun.speculation.tree import TokenTree

WIDTH = 9


def hang(text: list[int], costs_AN: torch.Tensor) -> DeviceTree:
    """A tree with what was found for this text."""
    tree = DeviceTree(verify_width=WIDTH, draft_width=1, num_children=1, min_mass=0.0, device="cpu")
    tree.reset(root=text[-1], committed=len(text) - 1, draft_committed=0)
    text_P = torch.full((len(text) + 9,), text[-1], dtype=torch.int32)  # what lies behind the text is not read
    text_P[: len(text)] = torch.tensor(text)
    add_lookup_chain(tree, text_P, costs_AN)
    return tree


def chain_of(tree: DeviceTree) -> Continuation:
    """The chain's tokens; the match length shows in the costs."""
    num_nodes = int((tree.nodes.costs < torch.inf).sum())
    assert tree.nodes.depths[:num_nodes].tolist() == list(range(num_nodes))
    assert tree.nodes.ancestors[:num_nodes].tolist() == [2 ** (node + 1) - 1 for node in range(num_nodes)]
    assert (tree.nodes.draft_rows == -1).all()
    match_length = round(tree.nodes.costs[1].item()) if num_nodes > 1 else 0
    return Continuation(token_ids=tree.nodes.tokens[1:num_nodes].tolist(), match_length=match_length)


@pytest.mark.parametrize("seed", range(3))
def test_the_longest_and_latest_match_goes_on(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_lookup, "BLOCK", 16)  # several steps over a short text
    rng = random.Random(seed)
    costs_AN = chain_costs([[-float(length)] * (WIDTH - 1) for length in range(MIN_MATCH, MAX_MATCH + 1)])
    for _ in range(12):
        text = [rng.randrange(rng.choice([1, 2, 3, 9])) for _ in range(rng.randint(1, 70))]
        index = PromptIndex(MATCHES)
        index.extend(text)
        assert chain_of(hang(text, costs_AN)) == index.continuation(WIDTH - 1), text


def test_costs_are_sums_of_the_records_log_probabilities() -> None:
    record = LookupRecord()
    record.count(3, range(2), is_broken=True)
    log_probs = [record.log_probs(length, WIDTH - 1) for length in range(MIN_MATCH, MAX_MATCH + 1)]
    tree = hang([5, 1, 2, 3, 7, 1, 2, 3], chain_costs(log_probs))
    wanted = [0.0] + [-sum(log_probs[3 - MIN_MATCH][: place + 1]) for place in range(WIDTH - 1)]
    assert tree.nodes.costs[:WIDTH].tolist() == pytest.approx(wanted)


def test_the_chain_is_the_one_that_the_host_hangs() -> None:
    rng = random.Random(8)
    text = [rng.randrange(2) for _ in range(120)]
    chain = LookupChain(num_tokens=WIDTH - 1)
    chain.read_prompt(text[:40])
    for token in text[40:]:  # until chains of different match lengths are worth different chances
        chain.follow()
        chain.accept([token])
    written = text
    for ending in ([0, 1], [1, 1, 0], [0, 0, 0, 1]):
        written = [*written, *ending]
        chain.accept(ending)
        ours = hang(written, chain_costs(chain.log_probs()))
        theirs = TokenTree(written[-1])
        chain.hang_into(theirs)
        assert ours.nodes.tokens[: len(theirs)].tolist() == theirs.token_ids
        assert (-ours.nodes.costs[: len(theirs)]).tolist() == pytest.approx(theirs.log_probs, abs=1e-5)
