"""Several drafters over one target: whoever has the turn, the text is the same, and nobody loses the thread."""

import random
from collections.abc import Sequence

import pytest
import torch

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import LayerSkip, PromptLookup, TokenRecycling
from forerun.core.pace import Pace
from forerun.decoding.decoder import Request, Round
from forerun.decoding.drafters import Drafters
from forerun.drafting.draft_model import DraftModelDrafter
from forerun.drafting.layer_skip.drafter import LayerSkipDrafter, rows_behind_text
from forerun.drafting.prompt_lookup import PromptLookupDrafter
from forerun.drafting.token_recycling import TokenRecyclingDrafter
from forerun.model.runner import Runner
from forerun.model.self_drafting import SharedCacheRunner
from forerun.speculation.walk import Acceptance
from tests.drafting.layer_skip.skip_costs import adapt_to_slow_passes
from tests.marks import rest_slow
from tests.random_settings import random_params
from tests.tiny import CAPACITY, Weights, decode_rounds, plain_spec, random_weights, tiny_runner
from tests.varied import draft_model

SPEC = plain_spec(num_layers=4)
PROMPT = [3, 1, 4, 1, 5]
NUM_TOKENS = 40


def weights_of(seed: int) -> Weights:
    return random_weights(SPEC, torch.Generator().manual_seed(seed))


def drafter_on(target: Runner, draft_seed: int) -> Drafters:
    """A draft of its own, the target's own layers, and lookup."""
    shape = draft_model(num_children=1, looks_up=False)
    draft = DraftModelDrafter(
        tiny_runner(SPEC, weights_of(draft_seed)), shape.config, shape.policies.tree, target_vocab_size=SPEC.vocab_size
    )
    skip = LayerSkipDrafter(SharedCacheRunner(target), LayerSkip(search="off", depth=4, verify_width=8))
    adapt_to_slow_passes(skip)
    return Drafters(
        is_adaptive=True,
        held={
            "recycling": TokenRecyclingDrafter(TokenRecycling(), target_vocab_size=SPEC.vocab_size),
            "prompt_lookup": PromptLookupDrafter(PromptLookup()),
            "draft": draft,
            "skip": skip,
        },
    )


def same_time(widths: Sequence[int], *, budget_s: float = 0.0) -> Pace:
    return Pace(steps=((16, 1.0),))


def rounds_of(drafter: Drafters, target: Runner, params: SamplingParams, seed: int, prompt: list[int]) -> list[Round]:
    return decode_rounds(target, drafter, prompt, params, seed=seed, num_tokens=NUM_TOKENS)


def ids_of(rounds: list[Round]) -> list[int]:
    return [token for step in rounds for token in step.token_ids][:NUM_TOKENS]


def target_of(seed: int) -> Runner:
    return tiny_runner(SPEC, weights_of(seed), capacity=CAPACITY + rows_behind_text(LayerSkip()))


@pytest.mark.usefixtures("random_turns")
@pytest.mark.parametrize("seed", rest_slow(range(24), 2))
def test_changing_drafters_within_a_request_costs_no_token(seed: int) -> None:
    """Several requests, the later ones beginning with a part of the text before, with random parameters."""
    rng = random.Random(seed)
    target = target_of(1)
    plain_target = target_of(1)
    drafter = drafter_on(target, draft_seed=rng.choice([1, 2]))
    prompt = PROMPT
    who = set()
    for number in range(3):
        params = random_params(rng, SPEC.vocab_size, seed=seed)
        expected = ids_of(rounds_of(Drafters(), plain_target, params, number, prompt))
        rounds = rounds_of(drafter, target, params, number, prompt)
        assert ids_of(rounds) == expected
        who |= {step.stats.drafted_by for step in rounds}
        prompt = [*prompt, *expected[: rng.randint(0, 12)]]
    assert len(who) > 1


@pytest.mark.usefixtures("random_turns")
@pytest.mark.parametrize(
    "changes",
    [{}, {"temperature": 1.0}, {"temperature": 1.0, "presence_penalty": 2.0, "frequency_penalty": 1.0}],
    ids=str,
)
def test_a_drafter_that_was_idle_guesses_as_well_as_before(changes: dict[str, float]) -> None:
    """The draft equals the target, so all that it proposes is right as long as it has been told everything."""
    target = target_of(1)
    rounds = rounds_of(drafter_on(target, draft_seed=1), target, SamplingParams(**changes), 5, PROMPT)  # type: ignore[arg-type]
    of_draft = [step.stats for step in rounds if step.stats.drafted_by == "draft"]
    assert len(of_draft) > 1
    assert len(of_draft) < len(rounds)
    assert all(item.num_accepted == item.num_drafted > 0 for item in of_draft)


@pytest.mark.usefixtures("random_turns")
def test_a_request_may_end_while_any_of_them_has_the_turn() -> None:
    target = target_of(1)
    drafter = drafter_on(target, draft_seed=2)
    params = SamplingParams()
    expected = ids_of(rounds_of(Drafters(), target_of(1), params, 0, PROMPT))
    for num_tokens in range(1, 12):
        decode_rounds(target, drafter, PROMPT, params, seed=0, num_tokens=num_tokens)
    assert ids_of(rounds_of(drafter, target, params, 0, PROMPT)) == expected


def test_what_was_found_is_told_by_temperature_and_believed_at_the_next_start() -> None:
    target = target_of(1)
    drafter = drafter_on(target, draft_seed=1)
    drafter.calibrate(same_time)
    for number in range(4):
        rounds_of(drafter, target, SamplingParams(), number, PROMPT)
    speeds = drafter.referee.speeds()
    assert set(speeds) == {"greedy"}
    known = {"greedy": dict.fromkeys(drafter.held, 1.1) | {"draft": 100.0}}
    later = Drafters(drafter.held, is_adaptive=True, known=known)  # type: ignore[arg-type]
    target.forget()
    later.calibrate(same_time)
    assert rounds_of(later, target, SamplingParams(), 0, PROMPT)[0].stats.drafted_by in ("draft", "none")


def test_recycling_among_several_sees_what_the_target_names() -> None:
    recycling = TokenRecyclingDrafter(TokenRecycling(), target_vocab_size=SPEC.vocab_size)
    drafter = Drafters({"recycling": recycling, "prompt_lookup": PromptLookupDrafter(PromptLookup())}, is_adaptive=True)
    decode_rounds(target_of(1), drafter, PROMPT, SamplingParams(), seed=0, num_tokens=NUM_TOKENS)
    assert recycling.table.num_known >= 5


def test_plain_rounds_are_told_together_and_none_is_forgotten() -> None:
    recycling = TokenRecyclingDrafter(TokenRecycling(), target_vocab_size=SPEC.vocab_size)
    lookup = PromptLookupDrafter(PromptLookup())
    drafter = Drafters({"recycling": recycling, "prompt_lookup": lookup}, is_adaptive=True)
    drafter.calibrate(lambda widths, *, budget_s=0.0: Pace(steps=((1, 1e-3), (16, 16.0))))
    told: list[tuple[int, ...]] = []
    hear = lookup.told
    lookup.told = lambda outcome: (told.append(outcome.tokens), hear(outcome))[1]  # type: ignore[method-assign]
    drafter.start_text(Request(prompt_ids=PROMPT, params=SamplingParams(), noise=None))
    for token_id in range(10):
        assert len(drafter.propose()) == 1
        drafter.told(Acceptance(path=(), tokens=(token_id,)))
    drafter.end()
    assert [token_id for tokens in told for token_id in tokens] == list(range(10))
    assert len(told) <= 4


def test_a_drafter_by_its_name_shares_what_is_known_of_the_machine() -> None:
    drafter = drafter_on(target_of(1), draft_seed=1)
    drafter.calibrate(same_time)
    single = drafter.alone("recycling")
    assert list(single.held) == ["recycling"]
    assert single.referee.costs is drafter.referee.costs
    assert drafter.round_plan is None
    assert drafter.alone("draft").round_plan is not None
