"""What the page says of a speed-up: one function decides it, and these are its cases, run in the page itself."""

import pytest

pytest.importorskip("playwright")
pytest.importorskip("forerun.server.app")

from playwright.sync_api import Page

from tests.server.page.browsing import CHROMIUM

pytestmark = [pytest.mark.page, pytest.mark.skipif(CHROMIUM is None, reason="no browser is installed")]

# What a race says of speeds: of the drafted run, of the plain runs, and the drafted tokens of a round.
RACE = """([drafted, plain, perRound]) => import("./page/claim.js").then(({ claim, measured, raceInWords }) => {
  const found = measured({ tokensPerSecond: drafted, tokensPerRound: perRound },
    plain.map((tokensPerSecond) => ({ tokensPerSecond })));
  return { ...(found && claim(found)), words: raceInWords(found) };
})"""
ANSWER = """(forerun) => import("./page/claim.js").then(({ answerInWords }) => answerInWords(forerun))"""


@pytest.mark.parametrize(
    ("drafted", "plain", "per_round", "kind", "ratio"),
    [
        (15.0, [10.0, 10.0], 2.0, "faster", 1.5),
        (15.0, [10.0, 10.0], 1.49, "faster", 1.49),  # within the noise of what a round brings, and told as that
        (15.0, [10.0, 10.0], 1.1, "beyond", 1.5),  # drafting cannot have brought it
        (15.0, [10.0, 10.0], None, "faster", 1.5),
        (15.0, [6.0, 14.0], 2.0, "close", 1.5),  # as much as the plain runs differ by
        (10.1, [10.0, 10.0], 2.0, "close", 1.01),
        (10.1, [10.0, 10.0], 1.0, "close", 1.0),  # no guess was kept
        (12.0, [None, 10.0], 2.0, "faster", 1.2),  # the short run was too short to compare
        (10.8, [None, 10.0], 2.0, "close", 1.08),
        (8.0, [10.0, 10.0], 2.0, "slower", 0.8),
        (9.9, [10.0, 10.0], 2.0, "close", 0.99),
    ],
)
def test_a_race_tells_a_gain_only_outside_its_noise_and_never_one_that_drafting_cannot_bring(
    page: Page, drafted: float, plain: list[float | None], per_round: float | None, kind: str, ratio: float
) -> None:
    found = page.evaluate(RACE, [drafted, plain, per_round])
    assert found["kind"] == kind
    assert found["ratio"] == pytest.approx(ratio)
    tells_gain = "as fast with the drafter" in found["words"]
    assert tells_gain == (kind == "faster")
    assert ("Too close to tell" in found["words"]) == (kind == "close")
    assert ("No gain is shown" in found["words"]) == (kind == "beyond")


def test_too_short_a_race_says_so(page: Page) -> None:
    assert page.evaluate(RACE, [None, [10.0], 2.0])["words"] == "Too short to compare speeds."


@pytest.mark.parametrize(
    ("low", "value", "high", "per_round", "words"),
    [
        (1.6, 1.73, 1.86, 2.5, "1.73\u00d7 as fast as without drafter (1.60\u20131.86)"),
        (0.95, 1.02, 1.1, 2.5, "too close to tell whether drafting helped (0.95\u20131.10)"),
        (1.6, 1.73, 1.86, 1.2, "too close to tell whether drafting helped (1.60\u20131.86)"),
        (0.7, 0.8, 0.9, 2.5, "0.80\u00d7 as fast as without drafter (0.70\u20130.90)"),
    ],
)
def test_the_line_under_an_answer_keeps_to_the_same_rules(
    page: Page, low: float, value: float, high: float, per_round: float, words: str
) -> None:
    speedup = {"low": low, "value": value, "high": high}
    assert page.evaluate(ANSWER, {"speedup": speedup, "tokens_per_round": per_round}) == words
    assert page.evaluate(ANSWER, {"speedup": None, "tokens_per_round": per_round}) == ""
