"""Who works on which cores."""

import pytest
import torch

from forerun import ConfigError, EngineConfig, NoDrafter, Parallel
from forerun.core.pace import Pace
from forerun.engine import threads_and_cores
from forerun.engine.drafters import draft_device
from forerun.engine.threads_and_cores import CorePlacement


def pace(milliseconds: float) -> Pace:
    return Pace(steps=((64, milliseconds * 1e-3),))


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads_and_cores, "own_cores", lambda: list(range(8)))
    monkeypatch.setattr(threads_and_cores, "usable_cores", lambda: 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)


@pytest.mark.usefixtures("eight_cores")
def test_target_and_draft_share_no_core_and_leave_none() -> None:
    found = CorePlacement.of(EngineConfig(drafter=Parallel(num_threads=3)))
    assert (found.target, found.draft, found.every) == ((0, 1, 2, 3, 4), (5, 6, 7), tuple(range(8)))
    assert (found.num_threads, found.draft_threads, found.plain_threads) == (5, 3, 8)


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("num_target", "num_draft", "threads", "draft_threads", "draft"),
    [
        (2, 1, 3, 1, (7,)),
        (2, 2, 3, 1, (6, 7)),
        (4, 4, 1, 1, (4, 5, 6, 7)),
        (7, 1, 1, 1, (7,)),
        (5, 3, 1, 1, (5, 6, 7)),
        (8, 1, 1, 1, ()),  # every core has a rank of the target
        (1, 6, 8, 1, ()),  # a draft that would leave the target fewer cores than it takes has none of its own
    ],
)
def test_ranks_of_target_and_draft_share_no_core_as_far_as_there_are_any(
    num_target: int, num_draft: int, threads: int, draft_threads: int, draft: tuple[int, ...]
) -> None:
    found = CorePlacement.of(EngineConfig(target_ranks=num_target, drafter=Parallel(ranks=num_draft)))
    assert (found.num_threads, found.draft_threads, found.draft) == (threads, draft_threads, draft)
    assert found.target == (tuple(range(8 - len(draft))) if draft else ())


@pytest.mark.parametrize(
    ("device", "num_target", "num_remote", "drafter", "expected"),
    [
        ("cuda:0", 1, 0, Parallel(), "cuda:0"),
        ("cuda", 1, 0, Parallel(ranks=2), "cuda:1"),
        ("cuda:0", 4, 0, Parallel(ranks=4), "cuda:4"),
        ("cuda:1", 5, 0, Parallel(ranks=2), "cuda:6"),
        ("cuda:0", 8, 4, Parallel(ranks=2), "cuda:4"),
        ("cuda:0", 4, 0, Parallel(ranks=2, device="cuda:0"), "cuda:0"),
        ("cpu", 4, 0, Parallel(ranks=2), "cpu"),
        ("paced:target=5ms;on=cuda:0", 2, 0, Parallel(ranks=2), "paced:target=5ms;on=cuda:0"),
    ],
)
def test_a_draft_shared_by_gpus_takes_those_behind_the_targets(
    device: str, num_target: int, num_remote: int, drafter: Parallel, expected: str
) -> None:
    address = "127.0.0.1:0" if num_remote else None
    config = EngineConfig(
        device=device, target_ranks=num_target, remote_ranks=num_remote, rank_address=address, drafter=drafter
    )
    assert draft_device(drafter, config) == expected


@pytest.mark.usefixtures("eight_cores")
def test_cores_that_are_not_this_processs_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="this process may not use core 9"):
        CorePlacement.of(EngineConfig(drafter=Parallel(cores=(7, 9))))


def test_a_serial_drafter_and_one_elsewhere_keep_nobody_from_any_core() -> None:
    for drafter in (NoDrafter(), Parallel(address="127.0.0.1:1"), Parallel(device="cuda:0")):
        found = CorePlacement.of(EngineConfig(drafter=drafter))
        assert (found.target, found.draft, found.every) == ((), (), ())


def cores(monkeypatch: pytest.MonkeyPatch, *, usable: int, of: int) -> None:
    """A process that may run on so many cores, and whose quota pays for less."""
    monkeypatch.setattr(threads_and_cores, "own_cores", lambda: list(range(of)))
    monkeypatch.setattr(threads_and_cores, "usable_cores", lambda: usable)
    monkeypatch.setattr(torch, "get_num_threads", lambda: of)


@pytest.mark.parametrize(("usable", "of", "expected"), [(1, 64, 1), (2, 64, 2), (64, 64, 64), (1, 1, 1)])
def test_by_default_there_are_as_many_threads_as_the_quota_pays_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, usable: int, of: int, expected: int
) -> None:
    cores(monkeypatch, usable=usable, of=of)
    assert CorePlacement.of(EngineConfig(drafter=NoDrafter())).num_threads == expected
    assert CorePlacement.of(EngineConfig(drafter=NoDrafter(), num_threads=1)).num_threads == 1
    assert caplog.records == []


@pytest.mark.parametrize(
    ("usable", "of", "threads", "told"),
    [
        (2, 2, None, "takes 1 of 2 cores from the target"),
        (2, 64, None, "takes 1 of 2 cores from the target"),
        (2, 2, 2, "takes 1 of 2 cores from the target"),
        (1, 1, None, "shares the only core"),
        (1, 64, 1, "shares the only core"),
        (2, 2, 1, None),
        (3, 3, None, None),
        (8, 8, None, None),
    ],
)
def test_a_drafters_process_that_takes_what_the_target_needs_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    usable: int,
    of: int,
    threads: int | None,
    told: str | None,
) -> None:
    cores(monkeypatch, usable=usable, of=of)
    found = CorePlacement.of(EngineConfig(drafter=Parallel(), num_threads=threads))
    assert found.num_threads + found.draft_threads <= max(2, usable)
    assert [record.getMessage().count(told or "?") for record in caplog.records] == ([] if told is None else [1])
    caplog.clear()
    CorePlacement.of(EngineConfig(drafter=Parallel(), num_threads=threads, device="paced:target=5ms"))
    assert not any("process" in record.getMessage() for record in caplog.records), "an emulated target waits"


def test_torchs_threads_are_an_engines_own_while_it_works_and_the_hosts_again_afterwards() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        one, other = (CorePlacement(num_threads=number, plain_threads=number) for number in (1, 2))
        for _ in range(2):
            assert [place.run(torch.get_num_threads) for place in (one, other)] == [1, 2]
            assert torch.get_num_threads() == 3
        assert one.run(lambda: (other.everywhere(torch.get_num_threads), torch.get_num_threads())) == (2, 1)
        with pytest.raises(KeyError):
            one.everywhere(lambda: {}["nothing"])
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
