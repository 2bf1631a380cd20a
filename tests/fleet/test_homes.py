"""Which replica answers a conversation, and how a machine is shared among them."""

from pathlib import Path

import pytest

from forerun.fleet import shares
from forerun.fleet.homes import MAX_REMEMBERED, Homes, by_hash
from forerun.fleet.shares import claimed_cores, cores_each, cores_of, gpu_share


def test_a_conversation_stays_where_it_was() -> None:
    homes = Homes()
    home = homes.choose("a", {0: 0, 1: 0, 2: 0})
    for _ in range(5):
        assert homes.choose("a", {index: int(index == home) for index in range(3)}) == home


def test_a_new_conversation_goes_where_least_is_to_be_done() -> None:
    assert {Homes().choose(str(number), {0: 1, 1: 0, 2: 2}) for number in range(20)} == {1}


def test_a_conversation_moves_where_it_would_wait_for_two_more_and_stays_there() -> None:
    homes = Homes()
    home = homes.choose("a", {0: 0, 1: 0})
    assert homes.choose("a", {home: 2, 1 - home: 1}) == home
    assert homes.choose("a", {home: 2, 1 - home: 0}) == 1 - home
    assert homes.choose("a", {0: 0, 1: 0}) == 1 - home


def test_a_conversation_whose_replica_is_lost_moves() -> None:
    homes = Homes()
    home = homes.choose("a", {0: 0, 1: 0})
    assert homes.choose("a", {1 - home: 3}) == 1 - home


def test_the_hash_spreads_and_moves_only_what_was_lost() -> None:
    names = [str(number) for number in range(300)]
    before = {name: by_hash(name, [0, 1, 2]) for name in names}
    assert all(60 < list(before.values()).count(index) < 140 for index in range(3))
    assert all(by_hash(name, [0, 2]) == before[name] for name in names if before[name] != 1)


def test_a_number_of_conversations_is_remembered() -> None:
    homes = Homes()
    for number in range(MAX_REMEMBERED + 10):
        homes.choose(str(number), {0: 0, 1: 0})
    assert len(homes._homes) == MAX_REMEMBERED


def test_fronts_that_do_not_know_of_each_other_find_the_same_home() -> None:
    names = [str(number) for number in range(100)]
    left = Homes(are_shared=True)
    right = Homes(are_shared=True)
    busy = {0: 1, 1: 0, 2: 1}
    assert [left.choose(name, busy) for name in names] == [right.choose(name, {0: 0, 1: 1, 2: 0}) for name in names]
    homes = [left.choose(name, {0: 2, 1: 0, 2: 2}) for name in names]
    assert set(homes) == {1}  # they would wait for two more
    late = Homes(are_shared=True)
    assert [late.choose(name, {0: 0}) for name in names] == [0] * 100  # the others are not ready yet
    assert [late.choose(name, {0: 0, 1: 0, 2: 0}) for name in names] == [by_hash(name, [0, 1, 2]) for name in names]


def test_cores_are_shared_and_none_is_left_over() -> None:
    assert cores_of([0, 1, 2, 3, 4], 2) == [[0, 1], [2, 3, 4]]
    assert cores_of([4, 9], 2) == [[4], [9]]
    assert cores_each([5], 2) == 2
    assert cores_each([2], 3) == 0  # all share both
    assert cores_each([8, 8, 2], 3) == 4
    assert cores_each([8, 8, 2], 2) == 8
    assert cores_each([], 2) == 0


def test_replicas_of_a_machine_take_cores_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "own_cores", lambda: [0, 1, 2, 3, 4])
    monkeypatch.setattr(shares, "usable_cores", lambda: 5)
    assert claimed_cores(2, tmp_path) == [0, 1]
    assert claimed_cores(2, tmp_path) == [2, 3, 4]
    assert claimed_cores(2, tmp_path) == claimed_cores(0, tmp_path) == []
    monkeypatch.setattr(shares, "usable_cores", lambda: 3)
    assert claimed_cores(2, tmp_path / "of a container with a quota") == []


def test_gpus_are_shared_so_that_all_replicas_find_room() -> None:
    assert gpu_share(0, 2) == 0
    assert gpu_share(2, 2) == gpu_share(4, 2) == 1
    assert gpu_share(2, 3) == gpu_share(1, 2) == 0.5
