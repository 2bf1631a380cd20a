"""A little of every part of scripts/test_server, which has the full counts."""

from typing import Any

import pytest

from tests.server.serving import Served
from tests.server.strain import crowd, description, endurance, leaving, malformed, raw_http
from tests.server.strain.growth import theil_sen
from tests.server.strain.process import serving
from tests.server.strain.wire import Outcome


def fine(outcome: Outcome) -> dict[str, float]:
    assert outcome.faults == []
    return outcome.figures


def test_malformed_requests_are_refused(server: Served) -> None:
    assert fine(malformed.run(server.address, 150, seed=1))["refused"] >= 150


def test_bytes_that_are_no_http_are_refused(server: Served, caplog: pytest.LogCaptureFixture) -> None:
    assert fine(raw_http.run(server.address, 150, seed=1))["refused"] > 0
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_slope_is_that_of_most_samples() -> None:
    samples = [(float(second), second / 3600 * 5 + (100 if second == 40 else 0)) for second in range(80)]
    slope, bound = theil_sen(samples)
    assert slope == pytest.approx(5.0)
    assert bound == pytest.approx(5.0)


@pytest.mark.soak
def test_more_of_both(server: Served) -> None:
    fine(malformed.run(server.address, 5000, seed=2))
    fine(raw_http.run(server.address, 2000, seed=2))


@pytest.mark.soak
def test_nothing_depends_on_asserts_or_on_warnings_being_silent() -> None:
    with serving("--fixed-widths", PYTHONOPTIMIZE="1", PYTHONDEVMODE="1") as server:
        fine(malformed.run(server.address, 1000, seed=3))
        fine(raw_http.run(server.address, 1000, seed=3))
        assert "Traceback" not in server.said()
        assert "Warning" not in server.said()


@pytest.mark.soak
@pytest.mark.skipif(description.program() is None, reason="schemathesis is not installed")
def test_the_description_holds() -> None:
    fine(description.run(20))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("strain", "arguments", "figure"),
    [(leaving.run, (200,), "disconnects"), (crowd.run, (10.0,), "right"), (endurance.run, (500,), "rechecked")],
)
def test_a_little_of_what_takes_long(strain: Any, arguments: tuple[float, ...], figure: str) -> None:
    outcome = strain(*arguments)
    timed = ("ms p99", "refusals take longer")  # of a machine that has nothing else to do, which a test cannot ask for
    outcome.faults = [fault for fault in outcome.faults if not any(words in fault for words in timed)]
    assert fine(outcome)[figure] > 0
