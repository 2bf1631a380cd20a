"""A drafter in a process of its own changes no text, is really heard, and leaves no process behind.

The target is paced, so that it leaves the drafter time even where both share one core.
"""

import gc
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from forerun import CheckpointError, DraftModel, Engine, EngineConfig, Generation, NoDrafter, Parallel, SamplingParams
from forerun.engine.model_loading import Checkpoint
from forerun.engine.threads_and_cores import CorePlacement
from forerun.wires.children import process_state
from tests.marks import rest_slow
from tests.varied import NO_FILLING

HANG_S = 150.0
PROMPT = "def read_lines(path):\n    "
GREEDY = SamplingParams(max_new_tokens=40, ignore_eos=True)
SAMPLED = SamplingParams(
    temperature=0.9,
    seed=11,
    top_k=40,
    top_p=0.95,
    repetition_penalty=1.1,
    presence_penalty=0.3,
    frequency_penalty=0.2,
    logit_bias={40: 1.5, 41: float("-inf")},
    max_new_tokens=40,
    ignore_eos=True,
)
PARAMS = pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc which processes there are")


def parallel_engine() -> Engine:
    # Without what looking up the text could fill in, every drafted token is the process's own.
    # In float32 no kernel's rounding reaches the text.
    config = EngineConfig(drafter=Parallel(), dtype="float32", device="paced:target=5ms", num_threads=1)
    return Engine(config, policies=NO_FILLING)


@pytest.fixture(scope="module")
def plain_engine() -> Iterator[Engine]:
    with Engine(EngineConfig(drafter=NoDrafter(), dtype="float32", num_threads=1)) as engine:
        yield engine


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with parallel_engine() as engine:
        yield engine


def assert_same(ours: Generation, plain: Generation) -> None:
    assert (ours.token_ids, ours.text, ours.finish_reason) == (plain.token_ids, plain.text, plain.finish_reason)


@PARAMS
def test_the_text_is_the_plain_one(engine: Engine, plain_engine: Engine, params: SamplingParams) -> None:
    assert_same(engine.generate(PROMPT, params), plain_engine.generate(PROMPT, params))


def test_requests_follow_each_other_and_the_process_drafts_for_them(engine: Engine, plain_engine: Engine) -> None:
    results = []
    for prompt in (PROMPT, "class Tree:\n", PROMPT * 3, "import os\n"):
        results.append(engine.generate(prompt, GREEDY))
        assert_same(results[-1], plain_engine.generate(prompt, GREEDY))
    assert sum(result.stats.num_accepted for result in results) > 0
    assert sum(result.stats.hit_rate for result in results) > 0
    assert all(0 <= result.stats.wait_s <= result.stats.draft_s for result in results)


def children_of(parent: int) -> set[int]:
    """The processes below this one, of any generation."""
    found = set()
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            parents[int(folder.name)] = int(fields[1])
    generation = {parent}
    while generation := {pid for pid, above in parents.items() if above in generation}:
        found |= generation
    return found


def assert_all_end(pids: set[int]) -> None:
    end = time.monotonic() + HANG_S
    while alive := {pid for pid in pids if process_state(pid)[0] not in ("", "Z")}:  # Z: ended, and not yet waited for
        assert time.monotonic() < end, f"processes {alive} are still there"
        time.sleep(0.02)


@needs_proc
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # rightly so, for the forgotten one
@pytest.mark.parametrize("is_closed", rest_slow([False, True], 1), ids=["forgotten", "closed"])
def test_an_engine_that_is_gone_leaves_no_process(is_closed: bool) -> None:
    before = children_of(os.getpid())
    engine = parallel_engine()
    ours = children_of(os.getpid()) - before
    assert len(ours) == 2, "the forkserver and its worker"
    engine.generate(PROMPT, GREEDY)
    if is_closed:
        engine.close()
        assert children_of(os.getpid()) <= before
    del engine
    gc.collect()
    assert_all_end(ours)


@needs_proc
@pytest.mark.slow
def test_an_engine_that_fails_to_start_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise CheckpointError("the target's weights are damaged")

    monkeypatch.setattr(Checkpoint, "load", fail)  # the process, which exists by then, loads its own
    before = children_of(os.getpid())
    with pytest.raises(CheckpointError):
        parallel_engine()
    gc.collect()
    assert_all_end(children_of(os.getpid()) - before)


def test_what_the_small_files_say_is_read_before_anything_slow_is_begun(
    tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(target, folder)
    (folder / "generation_config.json").write_text("{broken")
    monkeypatch.setattr(Checkpoint, "load", lambda *_, **__: pytest.fail("the weights are read"))
    for drafter in (NoDrafter(), Parallel(draft=DraftModel(model=target))):
        with pytest.raises(CheckpointError, match=r"generation_config\.json is not valid JSON"):
            Engine(EngineConfig(target=str(folder), drafter=drafter))


@needs_proc
def test_the_target_leaves_the_drafters_process_its_cores() -> None:
    cores = sorted(os.sched_getaffinity(0))
    own = CorePlacement.of(EngineConfig(drafter=Parallel(cores=(cores[-1],))))
    assert (own.target, own.draft) == (tuple(cores[:-1]), (cores[-1],))
    automatic = CorePlacement.of(EngineConfig(drafter=Parallel()))
    assert automatic == (own if len(cores) > 1 else CorePlacement())
    for untouched in (NoDrafter(), Parallel(address="127.0.0.1:1"), Parallel(device="cuda:0")):
        assert CorePlacement.of(EngineConfig(drafter=untouched)) == CorePlacement()
