"""Skip sets found offline, kept for a model, and found again by its engines."""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from forerun import ConfigError, DraftModel, Engine, EngineConfig, LayerSkip, NoDrafter, PromptLookup, SamplingParams
from forerun.core.drafter_config import BUILTIN_TARGET
from forerun.core.sublayers import ATTENTION, MLP, SkipSet, every_other_layer, skippable
from forerun.drafting.layer_skip.drafter import LayerSkipDrafter
from forerun.drafting.layer_skip.gated_strategy import GatedStrategy
from forerun.drafting.layer_skip.search import SkipSearch
from forerun.drafting.layer_skip.set_files import NamedSet, read_sets, sets_beside, sets_in_cache
from forerun_lab import skip_finder
from forerun_lab.skip_finder import Findings, find_skip_sets, keep_sets, place_for_sets
from tests.checkpoints.folders import model_identity

BUILTIN = EngineConfig(num_threads=1, max_length=192)
PROMPTS = ("def read_lines(path):\n    ", "x = [1, 2, 3]\ny = [1, 2", "class Stack:\n    def push(self")
PARAMS = SamplingParams(max_new_tokens=80, ignore_eos=True)
FIXED = LayerSkip(search="off", adaptive=False)
# Nobody would come upon these by themselves.
BEST = NamedSet(name="best", skipped=frozenset({(1, ATTENTION), (1, MLP)}), num_hits=900.0, num_rows=1000.0)
WORSE = NamedSet(name="worse", skipped=frozenset({(1, ATTENTION)}), num_hits=300.0, num_rows=1000.0)


def search_of(engine: Engine) -> SkipSearch | None:
    own = engine.drafting.held.get("layer_skip")
    return own.search if isinstance(own, LayerSkipDrafter) else None


def prompts(engine: Engine) -> Iterable[Sequence[int]]:
    return [engine.encode(prompt) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def found() -> Findings:
    """What a short search finds for the built-in target."""
    return find_skip_sets(BUILTIN, LayerSkip(), prompts, PARAMS)


@pytest.fixture
def folder(target: str, tmp_path: Path) -> Path:
    """A tiny model of three layers that may be written beside."""
    return Path(shutil.copytree(target, tmp_path / "model"))


def config_for(folder: Path, drafter: LayerSkip = FIXED) -> EngineConfig:
    return EngineConfig(target=str(folder), drafter=drafter, num_threads=1, max_length=64)


def kept(
    target: str | Path, sets: Sequence[NamedSet], *, num_layers: int = 3, out: Path | None = None,
    cache_folder: Path | None = None,
) -> Path:  # fmt: skip
    """Where the sets were written to."""
    place = place_for_sets(str(target), out, cache_folder)
    keep_sets(str(target), sets, num_layers, place)
    return place


def first_skipped(config: EngineConfig) -> SkipSet:
    """What an engine skips at first."""
    with Engine(config) as engine:
        search = search_of(engine)
        assert search is not None
        return search.strategy.skipped


def test_what_is_found_can_be_used(found: Findings) -> None:
    assert found.num_layers == 12
    assert len(found.sets) > 0
    assert len({named.skipped for named in found.sets}) == len(found.sets)
    for named in found.sets:
        assert named.skipped <= set(skippable(12))
        assert 0.0 <= named.num_hits <= named.num_rows
    assert sum(named.num_rows for named in found.sets) >= 32.0
    assert 0.0 < found.chance < 1.0
    assert found.speedup > 0.0


def test_every_answer_is_told_and_the_texts_are_the_prompts_own() -> None:
    """A search that takes all the time it wants, whatever the drafter was to do."""
    asked: list[str] = []
    told: list[int] = []

    def listen(engine: Engine) -> Iterable[Sequence[int]]:
        skips = search_of(engine)
        assert isinstance(skips.strategy, GatedStrategy)
        before = skips.strategy.num_scored
        for prompt in PROMPTS[:2]:
            asked.append(prompt)
            yield engine.encode(prompt)
        assert skips.strategy.num_scored >= before + 2 * 16 // 32

    drafter = LayerSkip(search="off")
    find_skip_sets(BUILTIN, drafter, listen, SamplingParams(max_new_tokens=16, ignore_eos=True), told.append)
    assert (asked, told) == (list(PROMPTS[:2]), [1, 2])


def test_sets_lie_beside_their_model(folder: Path, tmp_path: Path) -> None:
    assert kept(folder, [BEST, WORSE], cache_folder=tmp_path / "cache") == sets_beside(folder)
    assert read_sets(sets_beside(folder), 3, model_identity(folder)) == [BEST, WORSE]
    assert not (tmp_path / "cache").exists()


def test_a_folder_that_cannot_be_written_to_leaves_the_cache(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbidden = sets_beside(folder)

    def refuse_one(path: Path) -> None:
        if path == forbidden:
            raise ConfigError(f"{path} is read-only")

    monkeypatch.setattr(skip_finder, "require_writable", refuse_one)
    cache_folder = tmp_path / "cache"
    path = kept(folder, [BEST], cache_folder=cache_folder)
    assert path == sets_in_cache(cache_folder, model_identity(folder))
    with pytest.raises(
        ConfigError, match=r"the sets of .* cannot be saved, because neither .* can be written: name a file"
    ):
        kept(folder, [BEST])


@pytest.mark.parametrize("search", ["gated", "off"])
def test_an_engine_starts_with_the_best_set_that_was_kept(folder: Path, search: str) -> None:
    drafter = replace(FIXED, search=search)  # type: ignore[arg-type]
    unknown = first_skipped(config_for(folder))
    assert unknown == every_other_layer(3)
    best = replace(BEST, skipped=frozenset({(1, MLP)}))
    # Without a search, the set that was in use: the first. A search weighs all of them.
    kept(folder, [best, WORSE] if search == "off" else [WORSE, best])
    assert first_skipped(config_for(folder, drafter)) == {(1, MLP)}


def test_what_a_search_found_is_what_the_next_engine_begins_with(found: Findings, tmp_path: Path) -> None:
    sets = str(kept(BUILTIN_TARGET, found.sets, num_layers=found.num_layers, cache_folder=tmp_path))
    with Engine(replace(BUILTIN, drafter=LayerSkip(sets=sets))) as engine:
        skips = search_of(engine)
        assert isinstance(skips.strategy, GatedStrategy)
        known = {named.skipped for named in skips.strategy.known()}
        missing = [named.name for named in found.sets if named.skipped not in known]
        assert len(missing) <= 1, "one may have made room for SWIFT's first set"
        assert skips.strategy.skipped in {named.skipped for named in found.sets}
    assert first_skipped(replace(BUILTIN, drafter=replace(FIXED, sets=sets))) == found.sets[0].skipped
    assert first_skipped(replace(BUILTIN, drafter=FIXED)) == every_other_layer(12), "no file, no sets"


def test_only_a_target_that_drafts_for_itself_searches(target: str, draft: str) -> None:
    for drafter in (NoDrafter(), PromptLookup(), DraftModel(model=draft)):
        with Engine(EngineConfig(target=target, drafter=drafter, num_threads=1, max_length=64)) as engine:
            assert search_of(engine) is None
            assert engine.generate("the cat", SamplingParams(max_new_tokens=2)).token_ids
