"""Texts on disk: a new process reads none of them again, and writes what it would have written."""

import os
import random
from dataclasses import replace
from pathlib import Path
from time import time

import pytest
import torch

from forerun import Engine, EngineConfig, NoDrafter, PromptLookup, SamplingParams
from forerun.core.model_spec import CacheFormat
from forerun.model import saved_prompts
from forerun.model.runner import Runner
from forerun.model.saved_prompts import BLOCK, PromptFolder
from tests.tiny import random_weights, tiny_runner
from tests.tiny_families import family_spec

TEXT = "".join(f"def f{number}(x):\n    return x + {number}\n\n" for number in range(120))
CONFIG = EngineConfig(drafter=NoDrafter(), num_threads=1, device="cpu", saved_prompt_bytes=10**9, cache_bytes=0)
GREEDY = SamplingParams(max_new_tokens=16)
CACHES = pytest.mark.parametrize("cache_format", ["model", "int8"])
MANY = [*range(1, 91)] * 20  # 1,800 tokens


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    return tmp_path / "prompts"


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*/*"))


def test_a_new_engine_reads_only_what_is_new(folder: Path) -> None:
    with Engine(CONFIG) as engine:
        first = engine.generate(TEXT, GREEDY, owner="a")
        engine.save_prompts()
        num_tokens = len(engine.encode(TEXT))
    assert first.stats.num_reused_tokens == 0
    assert len(files_in(folder)) == (num_tokens + 15) // BLOCK
    for drafter in (NoDrafter(), PromptLookup()):
        with Engine(EngineConfig(drafter=drafter, num_threads=1, saved_prompt_bytes=10**9)) as engine:
            again = engine.generate(TEXT, GREEDY, owner="a")
            assert again.token_ids == first.token_ids
            assert num_tokens - again.stats.num_reused_tokens <= BLOCK
            other = engine.generate(TEXT[: len(TEXT) // 2] + "class A:", GREEDY, owner="a")
            assert num_tokens // 2 - other.stats.num_reused_tokens < 2 * BLOCK, "its beginning is shared"
            assert engine.generate(TEXT, GREEDY, owner="b").stats.num_reused_tokens == 0, "another user's"


def test_only_the_user_may_read_the_files(folder: Path) -> None:
    with Engine(CONFIG) as engine:
        engine.generate(TEXT, GREEDY)
        engine.save_prompts()
    assert {file.stat().st_mode & 0o777 for file in files_in(folder)} == {0o600}
    assert folder.stat().st_mode & 0o077 == 0


def test_short_texts_are_not_saved(folder: Path) -> None:
    with Engine(CONFIG) as engine:
        engine.generate("x = 1", GREEDY)
        engine.save_prompts()
    assert files_in(folder) == []


def test_saving_stops_when_it_is_told_to(folder: Path) -> None:
    with Engine(CONFIG) as engine:
        engine.generate(TEXT, GREEDY)
        answers = iter([True, True, False])
        engine.save_prompts(lambda: next(answers))
        assert len(files_in(folder)) == 2
        engine.save_prompts()
        assert len(files_in(folder)) > 4


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return opened("smollm3", tmp_path / "prompts")


def opened(family: str, path: Path, *, max_bytes: int = 10**9, cache_format: CacheFormat = "model") -> Runner:
    rng = random.Random(3)
    spec = family_spec(rng, family, vocab_size=96, max_positions=4096)
    weights = random_weights(spec, torch.Generator().manual_seed(1))
    runner = tiny_runner(spec, weights, capacity=2200, cache_format=cache_format)
    runner.save_on_disk(PromptFolder(path=path, model=family, max_bytes=max_bytes))
    return runner


def read(runner: Runner, token_ids: list[int], owner: str = "") -> int:
    """Read a text, and return how many of its tokens were there."""
    runner.recall(token_ids, owner)
    return runner.sync(token_ids)


def saved(runner: Runner, token_ids: list[int]) -> None:
    read(runner, token_ids)
    for _ in runner.save_text():
        pass


def next_logits(runner: Runner) -> torch.Tensor:
    return runner.extend([1], num_logit_rows=1)


@CACHES
def test_rows_are_the_same_to_the_bit(folder: Path, cache_format: CacheFormat) -> None:
    first = opened("smollm3", folder, cache_format=cache_format)
    saved(first, MANY)
    expected = next_logits(first)
    second = opened("smollm3", folder, cache_format=cache_format)
    assert read(second, MANY) == len(MANY) // BLOCK * BLOCK
    assert torch.equal(next_logits(second), expected)
    rows = second.cache.storage_2LSKD[:, :, : len(MANY)]
    assert torch.equal(rows, first.cache.storage_2LSKD[:, :, : len(MANY)])


@pytest.mark.parametrize("damage", ["cut", "byte", "empty", "other", "gone"])
def test_a_damaged_file_is_dropped(folder: Path, damage: str) -> None:
    first = opened("smollm3", folder)
    saved(first, MANY)
    expected = next_logits(first)
    second = opened("smollm3", folder)
    files = second._on_disk._files(MANY, "")  # type: ignore[union-attr]
    victim = files[3].with_suffix(".kv")
    content = victim.read_bytes()
    match damage:
        case "cut":
            victim.write_bytes(content[:-1])
        case "byte":
            victim.write_bytes(content[:-100] + bytes([content[-100] ^ 1]) + content[-99:])
        case "empty":
            victim.write_bytes(b"")
        case "other":
            victim.write_bytes(files[4].with_suffix(".kv").read_bytes())
        case "gone":
            victim.unlink()
    assert read(second, MANY) == 3 * BLOCK
    assert torch.equal(next_logits(second), expected)
    assert not victim.exists()
    saved(second, MANY)
    assert read(opened("smollm3", folder), MANY) == len(MANY) // BLOCK * BLOCK


def test_the_limit_holds_and_the_ends_of_old_texts_go_first(folder: Path) -> None:
    runner = opened("smollm3", folder)
    saved(runner, MANY)
    size = files_in(folder)[0].stat().st_size
    small = opened("smollm3", folder, max_bytes=10 * size)
    other = [5, *MANY[1:1200]]
    saved(small, other)
    assert sum(file.stat().st_size for file in files_in(folder)) <= 10 * size
    assert read(opened("smollm3", folder), other) == len(other) // BLOCK * BLOCK
    assert read(opened("smollm3", folder), MANY) >= 5 * BLOCK, "its beginning stays"


def test_a_full_disk_ends_the_saving_with_one_warning(
    folder: Path, runner: Runner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(saved_prompts, "FREE_BYTES", 2**60)
    saved(runner, MANY)
    saved(runner, MANY[5:])
    assert files_in(folder) == []
    assert caplog.text.count("texts are no longer saved") == 1
    assert "--no-saved-prompts" in caplog.text


def test_texts_in_a_folder_of_another_user_are_read_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    saved(opened("smollm3", folder), MANY)

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError("Permission denied")

    for name in ("stat", "open", "mkdir", "unlink"):
        monkeypatch.setattr(Path, name, refuse)
    second = opened("smollm3", folder)
    assert read(second, MANY) == 0
    saved(second, MANY)
    second.forget("", on_disk=True)
    assert caplog.text.count("texts are no longer saved") == 1


def test_a_file_that_another_process_is_writing_stays(folder: Path) -> None:
    runner = opened("smollm3", folder, max_bytes=10**6)
    saved(runner, MANY)
    begun = files_in(folder)[0].with_suffix(".kv.0" + saved_prompts.NEW)
    begun.write_bytes(bytes(10**6))
    os.utime(begun, (time() - 60, time() - 60))
    saved(runner, MANY[5:])
    runner.forget("", on_disk=True)
    assert files_in(folder) == [begun]


def test_without_memory_to_save_a_text_the_engine_goes_on(
    folder: Path, runner: Runner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(rows: torch.Tensor) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(saved_prompts, "bytes_of", fail)
    saved(runner, MANY)
    assert "CUDA out of memory" in caplog.text
    assert files_in(folder) == []


@CACHES
@pytest.mark.parametrize("family", ["smollm3", "gemma4_text"])  # the second has layers with other heads
def test_rows_that_are_no_numbers_are_not_saved(folder: Path, family: str, cache_format: CacheFormat) -> None:
    runner = opened(family, folder, cache_format=cache_format)
    read(runner, MANY)
    layer = next(layer for layer in range(runner.spec.num_layers) if runner.spec.window_of(layer) is None)
    keys, values = runner.cache.read(layer, 1)
    runner.cache.write(layer, 300, keys, torch.full_like(values, float("nan")))
    for _ in runner.save_text():
        pass
    found = read(opened(family, folder, cache_format=cache_format), MANY)
    assert found == (BLOCK if family == "smollm3" else 0), "the windows of the first file are lost"


def test_texts_of_another_cache_are_not_found() -> None:
    found = []
    for cache in ("model", "int8", "int8", "model"):
        with Engine(replace(CONFIG, cache=cache)) as engine:  # type: ignore[arg-type]
            found.append(engine.generate(TEXT, GREEDY, owner="a").stats.num_reused_tokens > 0)
            engine.save_prompts()
    assert found == [False, False, True, True]


def test_a_text_with_windows_is_resumed_where_they_were_saved(folder: Path) -> None:
    first = opened("gemma3_text", folder)
    saved(first, MANY)
    expected = next_logits(first)
    second = opened("gemma3_text", folder)
    assert read(second, MANY) == len(MANY) // BLOCK * BLOCK
    assert torch.equal(next_logits(second), expected)


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 300), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("family", ["smollm3", "gemma3_text", "mistral"])
def test_random_texts_and_starts(folder: Path, family: str, seeds: range) -> None:
    """Texts that go on, part and come again, with a new process between any two: rows equal those of a fresh one."""
    for seed in seeds:
        rng = random.Random(seed)
        form: CacheFormat = "int8" if seed % 3 == 1 else "model"
        path = folder / form
        runner = opened(family, path, max_bytes=rng.choice([10**9, 60 * 10**4]), cache_format=form)
        fresh = opened(family, folder / "none", max_bytes=0, cache_format=form)
        text = [rng.randrange(90) for _ in range(1100)]
        for _ in range(3):
            cut = rng.choice([len(text), rng.randrange(len(text))])
            text = text[:cut] + [rng.randrange(90) for _ in range(rng.randrange(1, 500))]
            text = text[:2000]
            read(runner, text)
            read(fresh, text)
            assert torch.equal(next_logits(runner), next_logits(fresh)), f"seed {seed}"
            for number, _ in enumerate(runner.save_text()):
                if number == rng.randrange(8):
                    break
            if rng.random() < 0.5:
                runner = opened(family, path, cache_format=form)
        for file in rng.sample(files_in(path), min(2, len(files_in(path)))):
            file.write_bytes(file.read_bytes()[: rng.randrange(200)])
    assert not any(file.suffix == saved_prompts.NEW for file in folder.glob("*/*/*/*"))
