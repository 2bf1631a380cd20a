"""A prediction beside every kind of drafter: it brings its tokens, and the drafter loses nothing by it."""

from dataclasses import replace

import pytest
import torch

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import LayerSkip, PromptLookup, TokenRecycling
from forerun.core.pace import Pace
from forerun.decoding.decoder import Request, Round
from forerun.decoding.drafters import Drafters
from forerun.drafting.draft_model import DraftModelDrafter
from forerun.drafting.drafter import Drafter
from forerun.drafting.layer_skip.drafter import LayerSkipDrafter, rows_behind_text
from forerun.drafting.prompt_lookup import PromptLookupDrafter
from forerun.drafting.token_recycling import TokenRecyclingDrafter
from forerun.model.runner import Runner
from forerun.model.self_drafting import SharedCacheRunner
from forerun.speculation.referee.costs import RoundCosts
from tests.drafting.layer_skip.skip_costs import adapt_to_slow_passes
from tests.tiny import CAPACITY, Weights, decode_rounds, plain_spec, random_weights, tiny_runner, weighed
from tests.varied import draft_model

SPEC = plain_spec(num_layers=4)
PROMPT = [3, 1, 4, 1, 5]
NUM_TOKENS = 48
WIDTH = 8
SAMPLED = SamplingParams(temperature=1.0, presence_penalty=0.5)
KINDS = ("prompt_lookup", "recycling", "draft_model", "layer_skip", "auto")


def weights_of(seed: int) -> Weights:
    return random_weights(SPEC, torch.Generator().manual_seed(seed))


def target() -> Runner:
    return tiny_runner(SPEC, weights_of(1), capacity=CAPACITY + rows_behind_text(LayerSkip()))


def draft_of(seed: int) -> DraftModelDrafter:
    """Draft number 1 is the target itself, so that all it proposes is right as long as it has been told everything."""
    shape = draft_model(verify_width=WIDTH, num_children=1, looks_up=False)
    return DraftModelDrafter(
        tiny_runner(SPEC, weights_of(seed)), shape.config, shape.policies.tree, target_vocab_size=SPEC.vocab_size
    )


def drafter_of(kind: str, runner: Runner) -> Drafter:
    match kind:
        case "prompt_lookup":
            return PromptLookupDrafter(PromptLookup(verify_width=WIDTH))
        case "recycling":
            return TokenRecyclingDrafter(TokenRecycling(verify_width=WIDTH), target_vocab_size=SPEC.vocab_size)
        case "draft_model":
            return draft_of(2)
        case _:
            drafter = LayerSkipDrafter(SharedCacheRunner(runner), LayerSkip(search="off", depth=4, verify_width=WIDTH))
            adapt_to_slow_passes(drafter)
            return drafter


def drafters_of(kind: str, runner: Runner) -> Drafters:
    names = KINDS[:4] if kind == "auto" else (kind,)
    return Drafters({name: drafter_of(name, runner) for name in names}, is_adaptive=kind == "auto")


def rounds_with(drafters: Drafters, runner: Runner, prediction: list[int]) -> list[Round]:
    return decode_rounds(runner, drafters, PROMPT, SAMPLED, seed=5, num_tokens=NUM_TOKENS, prediction=prediction)


def ids_of(rounds: list[Round]) -> list[int]:
    return [token for step in rounds for token in step.token_ids][:NUM_TOKENS]


@pytest.fixture(scope="module")
def text() -> list[int]:
    return ids_of(decode_rounds(target(), Drafters(), PROMPT, SAMPLED, seed=5, num_tokens=NUM_TOKENS))


@pytest.mark.parametrize("kind", KINDS)
def test_a_perfect_prediction_brings_as_many_tokens_a_round_as_there_are_rows(kind: str, text: list[int]) -> None:
    runner = target()
    rounds = rounds_with(drafters_of(kind, runner), runner, text)
    assert ids_of(rounds) == text
    assert [len(step.token_ids) for step in rounds] == [WIDTH] * (NUM_TOKENS // WIDTH)
    assert {step.stats.drafted_by for step in rounds} == {"prediction"}
    assert all(set(step.stats.tree.sources) == {"", "prediction"} for step in rounds if step.stats.tree)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prediction_that_is_wrong_at_places_costs_no_token_and_is_found_back(kind: str, text: list[int]) -> None:
    edited = [*text[:10], 28, 27, *text[10:20], *text[24:30], (text[30] + 1) % SPEC.vocab_size, *text[31:]]
    runner = target()
    rounds = rounds_with(drafters_of(kind, runner), runner, edited)
    assert ids_of(rounds) == text
    followed = [step.stats for step in rounds if step.stats.drafted_by == "prediction"]
    assert sum(item.num_accepted for item in followed) >= 24
    assert len(followed) < len(rounds), "the other drafter must have had rounds too"


def test_a_request_that_goes_on_after_plain_rounds_stands_where_it_stood(text: list[int]) -> None:
    """As after a stretch of plain rounds that are timed: the drafter begins again on the text so far."""
    drafters = Drafters({"prompt_lookup": PromptLookupDrafter(PromptLookup(verify_width=WIDTH))})
    request = Request(prompt_ids=PROMPT, params=SAMPLED, noise=None, prediction=[*text[:8], 0, *text[8:]])
    drafters.start_text(request)
    for num_written, expected in {0: text[:7], 5: [*text[5:8], 0, *text[8:11]], 20: text[20:27]}.items():
        drafters.resume([*PROMPT, *text[:num_written]])
        assert drafters.propose().token_ids[1:] == expected
    drafters.start_text(replace(request, prompt_ids=[9, 9], prediction=text))
    assert drafters.propose().token_ids == [9, *text[:7]], "another request begins at the begin of its prediction"


def test_a_prediction_that_never_comes_true_is_soon_no_longer_followed(
    text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pairs of the text, each followed by a token that is wrong."""
    misleading = [token for at in range(len(text) - 2) for token in (*text[at : at + 2], (text[at + 2] + 1) % 29)]
    pace = Pace(steps=tuple((rows, 1.0 + 0.2 * rows) for rows in range(1, WIDTH + 1)))
    drafters = weighed(PromptLookupDrafter(PromptLookup(verify_width=WIDTH)), RoundCosts(pace))
    monkeypatch.setattr(RoundCosts, "measure", lambda *_: None)  # rows cost what the pace says
    runner = target()
    num_followed = []
    for _ in range(3):
        rounds = rounds_with(drafters, runner, misleading)
        assert ids_of(rounds) == text
        num_followed.append(sum(step.stats.num_drafted for step in rounds if step.stats.drafted_by == "prediction"))
    assert num_followed[0] > 0
    assert num_followed[2] < num_followed[0] / 4
