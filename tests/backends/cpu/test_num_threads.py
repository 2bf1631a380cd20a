"""The number of threads a pass gets, played on a virtual machine."""

from collections.abc import Callable

from forerun.backends.cpu.num_threads import ThreadChooser

Machine = Callable[[int], tuple[float, bool]]  # of threads: a pass's seconds, and whether a thread lost its core


def quiet(num_threads: int) -> tuple[float, bool]:
    return 0.004 / num_threads, False


def busy(num_threads: int) -> tuple[float, bool]:
    """Two cores, one of them wanted by another program."""
    return (0.004, False) if num_threads == 1 else (0.008, True)


def play(chooser: ThreadChooser, machine: Machine, seconds: float, most: int = 2) -> tuple[list[int], float]:
    """The threads of each pass, and the passes a second."""
    elapsed_s = 0.0
    threads = list[int]()
    while elapsed_s < seconds:
        threads.append(chooser.threads(most))
        pass_s, is_stopped = machine(threads[-1])
        chooser.told(1, pass_s, is_stopped=is_stopped)
        elapsed_s += pass_s
    return threads, len(threads) / elapsed_s


def test_a_quiet_machine_gives_every_pass_all_threads() -> None:
    assert set(play(ThreadChooser(), quiet, 10.0)[0]) == {2}
    assert set(play(ThreadChooser(), quiet, 10.0, most=64)[0]) == {64}


def test_a_core_lost_now_and_then_changes_nothing() -> None:
    chooser = ThreadChooser()
    passes = 0

    def machine(num_threads: int) -> tuple[float, bool]:
        nonlocal passes
        passes += 1
        return 0.004 / num_threads, passes % 20 == 0

    assert set(play(chooser, machine, 10.0)[0]) == {2}


def test_a_machine_that_is_quiet_again_gets_all_threads_within_a_second() -> None:
    chooser = ThreadChooser()
    play(chooser, busy, 5.0)
    play(chooser, quiet, 1.0)
    assert set(play(chooser, quiet, 5.0)[0]) == {2}


def test_more_threads_stay_where_they_are_faster_though_they_lose_cores() -> None:
    def machine(num_threads: int) -> tuple[float, bool]:
        return 0.008 / num_threads, True

    threads, speed = play(ThreadChooser(), machine, 20.0)
    assert speed > 0.95 * 2 / 0.008
    assert threads.count(2) > threads.count(1)


def test_of_many_threads_as_many_stay_as_there_are_cores_left() -> None:
    def machine(num_threads: int) -> tuple[float, bool]:
        return (0.02 / num_threads, False) if num_threads <= 20 else (0.00016 * num_threads, True)

    chooser = ThreadChooser()
    play(chooser, machine, 5.0, most=64)
    threads, _ = play(chooser, machine, 10.0, most=64)
    assert max(set(threads), key=threads.count) == 16


def test_another_number_asked_for_is_taken_at_once() -> None:
    chooser = ThreadChooser()
    play(chooser, busy, 1.0)
    assert chooser.threads(3) == 3
    assert chooser.threads(1) == 1


def test_a_process_that_was_stopped_is_no_reason_for_fewer_threads() -> None:
    chooser = ThreadChooser()
    play(chooser, quiet, 1.0)
    chooser.threads(2)
    chooser.told(1, 3600.0, is_stopped=True)
    assert set(play(chooser, quiet, 5.0)[0]) == {2}
