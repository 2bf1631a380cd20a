"""How far is drafted, and whether at all: by thresholds, by what passes cost, and not where the text repeats itself."""

import math

import pytest

from forerun.core.config import SamplingParams
from forerun.core.sublayers import SkipSet
from forerun.decoding import drafters
from forerun.drafting.layer_skip.drafter import LayerSkipDrafter
from forerun.model.runner import Runner
from forerun.speculation.referee.budget import ProposedTree, RowBudget
from forerun.speculation.referee.referee import DraftTurn
from forerun.speculation.tree import TokenTree
from tests.drafting.layer_skip.playing import (
    AT_WORK,
    GREEDY,
    PROMPT,
    SAMPLED,
    SKIP_SETS,
    Passes,
    drafter_on,
    ids_of,
    num_accepted,
    plain_ids,
    play,
    put_to_work,
    target_for,
    weights_of,
)
from tests.drafting.layer_skip.skip_costs import flat_pace, made_up_costs
from tests.varied import Varied, layer_skip

PARAMS = pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
WEIGHTS = weights_of()
WEIGHTS["head.weight"] = 4.0 * WEIGHTS["head.weight"]  # a target that is often sure of what comes next, not always
CHAIN = {"draft_width": 1, "depth": 5, "num_children": 1, "verify_width": 6, "search": "off"}
FIXED = {"adaptive": False, "looks_up": False, "min_mass": 0.0}
REPEATING = SamplingParams(logit_bias={11: 40.0})


def pair(config: Varied, skipped: SkipSet = SKIP_SETS["only MLPs"]) -> tuple[Runner, LayerSkipDrafter]:
    target = target_for(config, WEIGHTS)
    return target, drafter_on(target, config, skipped=skipped)


def proposals_of(drafter: LayerSkipDrafter, monkeypatch: pytest.MonkeyPatch) -> list[TokenTree]:
    """The list into which all proposals go from here on."""
    proposals: list[TokenTree] = []
    propose = drafter.propose

    def note(budget: RowBudget) -> ProposedTree:
        proposed = propose(budget)
        proposals.append(proposed.tree.select(proposed.tree.best(budget.verify_width)))
        return proposed

    monkeypatch.setattr(drafter, "propose", note)
    return proposals


def confidence(tree: TokenTree, node: int) -> float:
    """What the draft gave a node behind its parent."""
    return math.exp(tree.log_probs[node] - tree.log_probs[tree.parents[node]])


@pytest.mark.parametrize("least", [0.5, 0.8, 0.95])
def test_a_chain_ends_just_behind_the_first_token_the_draft_is_not_sure_of(
    least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, drafter = pair(layer_skip(**CHAIN, **FIXED, min_confidence=least))
    proposals = proposals_of(drafter, monkeypatch)
    play(target, drafter)
    for tree in proposals:
        unsure = [node for node in range(1, len(tree)) if confidence(tree, node) < least]
        assert unsure in ([], [len(tree) - 1])
        assert unsure or len(tree) == 6
    depths = {max(tree.depths) for tree in proposals}
    assert len(depths) > 1, "it ended none, or all at once"


@PARAMS
def test_a_plain_round_makes_no_draft_pass_and_drafting_goes_on_after_it_as_if_there_had_been_none(
    params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draft is the target itself, so that all of every chain is accepted as long as it knows all of the text."""
    target, drafter = pair(layer_skip(**CHAIN, looks_up=False), SKIP_SETS["nothing"])
    put_to_work(drafter, flat_pace(1.0), made_up_costs(6, pass_s=0.1))
    passes = Passes(target, drafter, monkeypatch)
    drafts = DraftTurn(drafter="layer_skip", max_rows=6)
    pattern = iter([drafts, DraftTurn(), drafts, drafts, DraftTurn(), DraftTurn(), DraftTurn()] * 9)
    monkeypatch.setattr(AT_WORK[drafter].referee, "_next_turn", lambda: next(pattern))
    monkeypatch.setattr(drafters, "TOGETHER", 1)
    proposals = proposals_of(drafter, monkeypatch)
    rounds = play(target, drafter, params=params, num_tokens=60)
    assert ids_of(rounds, 60) == plain_ids(WEIGHTS, params=params, num_tokens=60)
    num_plain = sum(step.stats.num_drafted == 0 for step in rounds)
    assert num_plain > 3
    assert all(step.stats.num_accepted == step.stats.num_drafted for step in rounds)
    assert sum(len(tree) > 1 for tree in proposals) == len(rounds) - num_plain
    roots = [inputs for inputs in passes.drafts if inputs.first_slot == inputs.prefix_len]
    assert len(roots) == len(rounds) - num_plain, "a plain round made a draft pass"
    assert len(passes.verifications) == len(rounds)


def test_where_drafts_are_dear_the_text_is_written_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    target, drafter = pair(layer_skip(**CHAIN, looks_up=False), SKIP_SETS["nothing"])
    put_to_work(drafter, flat_pace(1.0), made_up_costs(6, pass_s=0.1))  # which is wrong, as the first rounds show
    passes = Passes(target, drafter, monkeypatch, draft_s=6.0)
    play(target, drafter, num_tokens=100)
    late = [step.stats.num_drafted for step in play(target, drafter, num_tokens=100)]
    assert late.count(0) > 0.7 * len(late), "dear drafts went on"
    began = passes.now
    assert ids_of(play(target, drafter, num_tokens=100), 100) == plain_ids(WEIGHTS, num_tokens=100)
    assert passes.now - began <= 102.0, "slower than plain decoding"


@pytest.mark.parametrize("has_lookup", [True, False])
def test_where_the_text_repeats_itself_what_followed_before_is_taken_and_nothing_is_expanded(
    has_lookup: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, drafter = pair(layer_skip(**CHAIN, looks_up=has_lookup))
    put_to_work(drafter, flat_pace(1.0), made_up_costs(6, pass_s=0.3))
    passes = Passes(target, drafter, monkeypatch, draft_s=0.2)
    play(target, drafter, params=REPEATING, num_tokens=60)
    num_before = len(passes.drafts)
    rounds = play(target, drafter, [*PROMPT, *[11] * 6], params=REPEATING, num_tokens=60)
    assert ids_of(rounds, 60) == [11] * 60
    assert num_accepted(rounds) >= 45
    num_passes = len(passes.drafts) - num_before
    assert num_passes == 0 if has_lookup else num_passes >= len(rounds)
