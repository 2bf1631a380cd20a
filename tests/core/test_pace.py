"""The device text: a torch device, or how long passes take on a device that is not here."""

import pytest

from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError
from forerun.core.pace import EXAMPLE, Pace, Placement, read_device

DRAFT = Pace(steps=((64, 0.002),))


def test_the_example_is_read_as_it_says() -> None:
    placement = read_device(EXAMPLE)
    assert (placement.torch_device, placement.is_paced) == ("cpu", True)
    assert placement.target is not None
    assert placement.draft is not None
    assert [rows for rows, _ in placement.target.steps] == [8, 16]
    assert [seconds for _, seconds in placement.target.steps] == pytest.approx([0.0104, 0.0133])
    assert [rows for rows, _ in placement.draft.steps] == [64]
    assert [seconds for _, seconds in placement.draft.steps] == pytest.approx([0.0019])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("paced:draft=2ms", Placement(torch_device="cpu", draft=DRAFT)),
        ("paced:target=2ms", Placement(torch_device="cpu", target=DRAFT)),
        ("paced:on=cuda:0;draft=2ms", Placement(torch_device="cuda:0", draft=DRAFT)),
        ("paced: draft = 2ms ; on = cuda:1", Placement(torch_device="cuda:1", draft=DRAFT)),
        ("paced:draft=0.5s@3", Placement(torch_device="cpu", draft=Pace(steps=((3, 0.5),)))),
        (
            "paced:draft=1s@9, 0.25s@3, 0.25s@1",
            Placement(torch_device="cpu", draft=Pace(steps=((1, 0.25), (3, 0.25), (9, 1.0)))),
        ),
    ],
)
def test_sides_and_entries_come_in_any_order_and_may_be_left_out(text: str, expected: Placement) -> None:
    assert read_device(text) == expected
    assert expected.is_paced


@pytest.mark.parametrize(
    ("num_rows", "seconds"), [(1, 1.0), (8, 1.0), (9, 1.5), (16, 1.5), (17, 3.0), (32, 3.0), (33, 4.5), (256, 24.0)]
)
def test_a_pass_takes_the_smallest_size_that_holds_it_or_several_of_the_largest(num_rows: int, seconds: float) -> None:
    assert Pace(steps=((8, 1.0), (16, 1.5))).step_s(num_rows) == seconds


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("paced", "'' in device 'paced'"),
        ("paced:", "''"),
        ("paced:fast", "'fast'"),
        ("paced:target", "'target'"),
        ("paced:target=", "'target='"),
        ("paced:target=1ms;", "''"),
        ("paced:verify=1ms", "'verify=1ms'"),
        ("paced:target=1ms;target=2ms", "target= twice"),
        ("paced:on=cpu;on=cpu;target=1ms", "on= twice"),
        ("paced:on=cuda:0", "without target= or draft="),
        ("paced:on=paced:target=1ms;draft=1ms", "on=paced:target=1ms"),
        ("paced:target=1", "needs a unit"),
        ("paced:target=1min", "needs a unit"),
        ("paced:target=1ms@8,", "''"),
        ("paced:target=ms", "'ms'"),
        ("paced:target=fastms", "'fastms'"),
        ("paced:target=1.2.3ms", r"'1\.2\.3ms'"),
        ("paced:target=0ms", "0.0 s"),
        ("paced:target=-1s", "-1.0 s"),
        ("paced:target=nanms", "nan s"),
        ("paced:target=infs", "inf s"),
        ("paced:target=1ms@0", "0 rows"),
        ("paced:target=1ms@-8", "-8 rows"),
        ("paced:target=1ms@", "'1ms@'"),
        ("paced:target=1ms@eight", "'1ms@eight'"),
        ("paced:target=1ms@8.5", r"'1ms@8\.5'"),
        ("paced:target=1ms@8@9", "'1ms@8@9'"),
        ("paced:target=1s@8,2s@8", "8 rows after 8"),
        ("paced:target=2s@8,1s@16", "1.0 s for 16 rows, less than the 2.0 s for 8 rows"),
        ("paced:target=1ms,2ms@8", "without @ROWS"),
        ("paced:target=1ms,2ms", "without @ROWS"),
    ],
)
def test_a_paced_device_that_cannot_be_read_is_refused_with_an_example(text: str, seen: str) -> None:
    with pytest.raises(ConfigError, match=f"{seen}.*: write it like {EXAMPLE}"):
        read_device(text)
    with pytest.raises(ConfigError, match=EXAMPLE):
        EngineConfig(device=text)
