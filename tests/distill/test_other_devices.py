"""Processes that write texts on further devices while the first one trains."""

import multiprocessing
import time
from dataclasses import replace
from pathlib import Path

import pytest

from forerun.core.config import EngineConfig
from forerun_lab.distill.config import DistillConfig
from forerun_lab.distill.gathering import others, writing_elsewhere
from forerun_lab.distill.run import write_texts
from forerun_lab.distill.text_store import TextStore

WAIT_S = 120.0


@pytest.mark.slow
def test_every_device_writes_under_a_name_of_its_own_until_it_is_not_wanted(tmp_path: Path, target: str) -> None:
    config = DistillConfig(
        engine=EngineConfig(target=target, num_threads=1),
        out=tmp_path,
        time=60.0,
        other_devices=("cpu", "cpu"),
        save_every_s=0.5,
    )
    store = TextStore(tmp_path / "distill" / "texts")
    until = time.monotonic() + WAIT_S
    writers: set[str] = set()
    with writing_elsewhere(config, write_texts):
        while len(writers) < 2:
            assert time.monotonic() < until
            writers |= {path.stem.split("_")[2] for path in store.find_new()}
            time.sleep(0.05)
    assert multiprocessing.active_children() == []
    assert store.seconds == 0.0  # the time is that of the process that trains
    assert all(text.num_rows > 0 for text in store.read())


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_a_device_that_is_named_is_the_only_one(tmp_path: Path, device: str) -> None:
    config = DistillConfig(engine=EngineConfig(target="builtin", device=device), out=tmp_path, time=60.0)
    assert others(config) == ()
    assert others(replace(config, other_devices=("cuda:3",))) == ("cuda:3",)
