"""Successors that the target named once are proposed again, and kept for another process."""

import random

import numpy as np
import pytest
import torch

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import TokenRecycling
from forerun.core.pace import Pace
from forerun.decoding.decoder import Round
from forerun.decoding.drafters import Drafters
from forerun.drafting.policies import BEST_TREE, TreePolicy
from forerun.drafting.token_recycling import MOST_OWNERS, NUM_KEPT, SuccessorTable, TokenRecyclingDrafter
from forerun.speculation.referee.costs import RoundCosts
from tests.tiny import Weights, decode_rounds, plain_spec, random_weights, tiny_runner, weighed

SPEC = plain_spec()
WEIGHTS: Weights = random_weights(SPEC, torch.Generator().manual_seed(1))
GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=1.0)
PARAMS = pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
NO_CHAIN = TreePolicy(looks_up=False)
NUM_TOKENS = 60


def drafter_of(config: TokenRecycling | None = None, policy: TreePolicy = BEST_TREE) -> TokenRecyclingDrafter:
    return TokenRecyclingDrafter(config or TokenRecycling(), policy, target_vocab_size=SPEC.vocab_size)


def rounds_of(
    drafter: Drafters | TokenRecyclingDrafter,
    params: SamplingParams,
    *,
    seed: int = 7,
    weights: Weights = WEIGHTS,
    owner: str = "",
) -> list[Round]:
    runner = tiny_runner(SPEC, weights)
    return decode_rounds(runner, drafter, [3, 1, 4, 1, 5], params, seed=seed, num_tokens=NUM_TOKENS, owner=owner)


def ids_of(rounds: list[Round]) -> list[int]:
    return [token for done in rounds for token in done.token_ids][:NUM_TOKENS]


@PARAMS
def test_a_second_text_is_guessed_from_what_the_first_left(params: SamplingParams) -> None:
    drafter = drafter_of(policy=NO_CHAIN)
    first = rounds_of(drafter, params)
    second = rounds_of(drafter, params)
    assert ids_of(first) == ids_of(second) == ids_of(rounds_of(Drafters(), params))
    assert sum(done.stats.num_accepted for done in second) > 0.3 * NUM_TOKENS
    assert len(second) < len(first)


def test_an_owner_begins_with_nothing_and_finds_its_own_table_again() -> None:
    drafter = drafter_of(policy=NO_CHAIN)
    rounds_of(drafter, GREEDY)
    kept = drafter.state()
    num_known = drafter.table.num_known
    tables = {}
    for owner in map(str, range(MOST_OWNERS + 1)):
        drafter.begin([1], GREEDY, None, owner)
        assert drafter.table.num_known == 0 < num_known
        rounds_of(drafter, GREEDY, owner=owner)
        tables[owner] = drafter.table
    drafter.begin([1], GREEDY, None, "1")
    assert drafter.table is tables["1"]
    drafter.begin([1], GREEDY, None, "0")
    assert drafter.table.num_known == 0, "the one used least recently went"
    drafter.begin([1], GREEDY, None, "2")
    assert drafter.table.num_known == 0
    drafter.begin([1], GREEDY, None, "1")
    assert drafter.table is tables["1"]
    assert drafter.state() == kept, "of an owner's text nothing is kept for the next start"
    drafter.begin([1], GREEDY, None)
    assert drafter.table.num_known == num_known


@PARAMS
def test_a_restarted_drafter_knows_what_the_last_one_learnt(params: SamplingParams) -> None:
    drafter = drafter_of(policy=NO_CHAIN)
    restarted = drafter_of(policy=NO_CHAIN)
    first = rounds_of(drafter, params)
    assert restarted.restore(drafter.state())
    rounds = rounds_of(restarted, params)
    assert len(rounds) < len(first)
    assert ids_of(rounds) == ids_of(first)
    assert not restarted.restore(b"")


def test_nothing_is_drafted_where_a_row_costs_as_much_as_a_pass() -> None:
    drafter = drafter_of(policy=NO_CHAIN)
    adaptive = weighed(drafter, RoundCosts(Pace(steps=((1, 1.0), (16, 16.0)))))
    num_drafted = [done.stats.num_drafted for seed in range(4) for done in rounds_of(adaptive, SAMPLED, seed=seed)]
    assert sum(num_drafted[-60:]) <= 0.1 * 60


def filled_table(vocab_size: int = 500) -> SuccessorTable:
    rng = np.random.default_rng(1)
    table = SuccessorTable(vocab_size)
    tokens = rng.permutation(vocab_size)[:90].tolist()
    log_probs = np.sort(-rng.exponential(2.0, (90, NUM_KEPT)), -1)[:, ::-1]
    table.store(tokens, rng.integers(0, vocab_size, (90, NUM_KEPT)).tolist(), log_probs.tolist())
    return table


def test_a_table_comes_back_as_it_was() -> None:
    table = filled_table()
    other = SuccessorTable(500)
    assert other.restore(table.to_bytes())
    assert other.num_known == 90
    for left, right in zip(table.rows(list(range(500))), other.rows(list(range(500))), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-3)  # log-probabilities are halved to float16


def test_a_damaged_table_or_another_models_is_refused_and_nothing_is_known() -> None:
    data = filled_table().to_bytes()
    rng = random.Random(1)
    damaged = [data[:place] for place in range(0, len(data), 97)]
    for _ in range(200):
        place = rng.randrange(len(data))
        damaged.append(data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :])
    for wrong in damaged:
        table = filled_table()
        assert not table.restore(wrong)
        assert table.num_known == 0
    assert not SuccessorTable(501).restore(data)
