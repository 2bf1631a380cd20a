"""What is said of an answer: first what drafting gained, then the speed; all that is known only where it is wanted."""

from dataclasses import replace
from typing import Any

import pytest

from forerun import (
    Automatic,
    DraftModel,
    FinishReason,
    Generation,
    GenerationStats,
    LayerSkip,
    NoDrafter,
    PromptLookup,
    TokenRecycling,
)
from forerun.cli.answer_statistics import advice, all_numbers, short_numbers
from forerun.core.drafter_config import DrafterConfig
from forerun.core.steps import SkipReport, Speedup
from forerun.server.protocols.openai_writer import speculation
from tests.cli.conftest import Run

SPEED = "50.0 tokens/s · 60 tokens · first token after 0.25 s"


def answered(low: float | None, high: float = 0.0, **known: Any) -> Generation:
    """An answer of 60 tokens with a speed-up between these bounds."""
    gain = None if low is None else Speedup(
        value=(low + high) / 2, low=low, high=high, plain_token_s=0.007, num_plain_rounds=16
    )  # fmt: skip
    usual = {"num_new_tokens": 60, "num_rounds": 50, "num_drafted": 90, "tokens_per_s": 50.0, "first_token_s": 0.25}
    stats: dict[str, Any] = dict.fromkeys(GenerationStats.__dataclass_fields__, 0)
    stats |= {"rounds_by": {}, "skips": None, "speedup": gain, **usual, **known}
    return Generation(
        text="", token_ids=(), finish_reason=FinishReason.STOP, seed=7, stats=GenerationStats(**stats)
    )  # fmt: skip


RESTED: dict[str, Any] = {"rounds_by": {"none": 48, "recycling": 2}}


@pytest.mark.parametrize(
    ("drafter", "result", "gain"),
    [
        (Automatic(), answered(1.25, 1.37), "1.31x as fast as plain decoding · "),
        (Automatic(), answered(0.97, 1.05), "as fast as plain decoding · "),
        (PromptLookup(), answered(0.7, 0.8), "0.75x as fast as plain decoding · "),
        (Automatic(), answered(None), ""),
        (Automatic(), answered(0.95, 1.01, **RESTED), "decoded plainly: drafting does not pay here · "),
        (Automatic(), answered(None, **RESTED), "decoded plainly: drafting does not pay here · "),
        (Automatic(), answered(1.2, 1.3, **RESTED), "1.25x as fast as plain decoding · "),
        (DraftModel(model="x"), answered(None, num_drafted=0), "decoded plainly: drafting does not pay here · "),
        (DraftModel(model="x"), answered(None, num_drafted=0, num_rounds=20), ""),
        (NoDrafter(), answered(None, num_drafted=0), ""),
    ],
)
def test_the_gain_comes_first_where_it_is_known(drafter: DrafterConfig, result: Generation, gain: str) -> None:
    assert short_numbers(result, drafter) == gain + SPEED


@pytest.mark.parametrize(
    ("result", "gained"),
    [
        (answered(1.01, 1.2), True),
        (answered(0.97, 1.05), None),  # within the noise
        (answered(0.97, 1.01), False),
        (answered(0.7, 0.8), False),
        (answered(None), None),  # not measured
        (answered(None, **RESTED), False),
        (answered(0.95, 1.1, **RESTED), False),
        (answered(None, num_drafted=0, num_rounds=20), None),  # too short to tell
        (answered(1.2, 1.3, **RESTED), True),
    ],
)
def test_an_answer_gained_only_outside_the_noise(result: Generation, gained: bool | None) -> None:
    assert result.stats.gained is gained


def test_the_long_line_begins_with_the_short_one_and_explains_itself() -> None:
    result = answered(
        1.25, 1.37, accepted_per_round=0.18, hit_rate=0.5, num_outside=3, rounds_by={"recycling": 40, "none": 10},
        num_near_ties=1, num_prompt_tokens=9, prompt_tokens_per_s=80.0,
    )  # fmt: skip
    assert all_numbers(result, Automatic(), is_greedy=True) == (
        f"{short_numbers(result, Automatic())} · 1.25x to 1.37x; plain decoding takes 7.00 ms a token · "
        "0.18 drafted tokens accepted per pass of the model · drafted by recycling in 40 of 50 passes · "
        "the drafter's tree had the next token after 50% of passes · 3 of 60 tokens that the draft does not have · "
        "prompt of 9 tokens, read at 80 tokens/s · 1 token that rounding may have decided"
    )
    assert all_numbers(result, Automatic(), is_greedy=False).count("seed 7") == 1
    plain = answered(None, num_drafted=0, rounds_by={"none": 50})
    assert " · nothing drafted · " in all_numbers(plain, Automatic(), is_greedy=True)


def test_advice_is_given_only_where_a_drafter_chosen_by_hand_was_surely_slower() -> None:
    slow = answered(0.7, 0.9)
    for drafter in (DraftModel(model="x"), TokenRecycling()):
        assert advice(slow, drafter) == "this drafter costs more than it saves here; --drafter auto is faster"
    assert advice(slow, Automatic()) is advice(slow, NoDrafter()) is None
    assert advice(answered(0.9, 0.98), TokenRecycling()) is advice(answered(None), TokenRecycling()) is None


@pytest.mark.parametrize("arguments", [("generate", "-p", "x"), ("chat", "-q", "x")])
def test_a_draft_that_was_measured_to_be_slower_is_told_of_once(
    run: Run, target: str, draft: str, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr("forerun.engine.speedup.speedup_of", lambda *_: answered(0.4, 0.5).stats.speedup)
    name, *flags = arguments
    shown = run(name, target, *flags, "--draft", draft, "--fixed-widths", "-n", "8", "--ignore-eos", "--temp", "0")
    assert shown.exit_code == 0, shown.output
    assert shown.stderr.count("this drafter costs more than it saves here") == 1
    assert "costs more" not in run(name, target, *flags, "-n", "8", "--ignore-eos", "--temp", "0").stderr


def test_what_is_skipped_and_how_the_search_goes_is_said_of_a_target_that_drafts_for_itself() -> None:
    skips = SkipReport(
        is_searching=True, attention=(1, 3), mlp=(4,), matchness=0.84, hit_rate=0.7, num_scored=37, search_s=2.14
    )
    words = (
        "drafts skip attention of layers 1,3 and MLP of layers 4, their first token was right 70% of the time, "
        "matchness 84%, the search goes on after 37 sets and 2.1 s"
    )
    assert words in all_numbers(answered(None, skips=skips), LayerSkip(), is_greedy=True)
    nothing = replace(skips, attention=(), mlp=(), matchness=None, hit_rate=None, num_scored=0)
    assert "drafts skip nothing · " in all_numbers(answered(None, skips=nothing), LayerSkip(), is_greedy=True)
    assert body_of(skips)["skips"]["attention"] == (1, 3)
    assert "skips" not in body_of(None)


def body_of(skips: SkipReport | None) -> dict[str, Any]:
    """What a server says of such an answer."""
    return speculation(answered(None, skips=skips).stats, "layer_skip", None)
