"""A draft that has a part of its target's tokens, as a folder: no text changes, and what it lacks is counted."""

import random
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from forerun import DraftModel, Engine, EngineConfig, NoDrafter, Parallel, SamplingParams, VocabularyError
from forerun.checkpoints.open import open_source
from forerun.drafting.policies import Policies
from tests.drafting.mapped import random_map, write_mapped
from tests.marks import rest_slow
from tests.varied import NO_LOOKUP

NUM_TARGET = 4096
NUM_DRAFT = 3000
DRAFT = Path(str(files("forerun") / "assets" / "draft"))
PROMPT = "def read_lines(path):\n    "
MOST_REQUESTS = 12  # a busy machine may leave a drafter's process no time during one
GREEDY = SamplingParams(max_new_tokens=40, ignore_eos=True)
SAMPLED = SamplingParams(
    temperature=0.9, seed=11, repetition_penalty=1.1, presence_penalty=0.3, frequency_penalty=0.2,
    logit_bias={40: 1.5, 41: float("-inf")}, max_new_tokens=40, ignore_eos=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    vocabulary = random_map(random.Random(1), NUM_TARGET, num_draft=NUM_DRAFT)
    return write_mapped(tmp_path_factory.mktemp("mapped") / "draft", DRAFT, vocabulary)


@pytest.fixture(scope="module")
def plain() -> Iterator[Engine]:
    with Engine(EngineConfig(drafter=NoDrafter(), dtype="float32", num_threads=1)) as engine:
        yield engine


def drafted_by(drafter: DraftModel | Parallel, *, kernels: str = "auto", policies: Policies = NO_LOOKUP) -> Engine:
    config = EngineConfig(
        drafter=drafter, dtype="float32", num_threads=1, kernels=kernels,  # type: ignore[arg-type]
        device="paced:target=20ms" if isinstance(drafter, Parallel) else "cpu",
    )  # fmt: skip
    return Engine(config, policies=policies)


def assert_same_and_counted(engine: Engine, plain: Engine, folder: Path) -> None:
    vocabulary = open_source(str(folder)).vocabulary_map()
    assert vocabulary is not None
    num_accepted = num_outside = num_asked = 0
    while num_asked < 2 or (num_accepted == 0 and num_asked < MOST_REQUESTS):
        params = (GREEDY, SAMPLED)[num_asked % 2]
        num_asked += 1
        ours = engine.generate(PROMPT, params)
        expected = plain.generate(PROMPT, params)
        assert ours.token_ids == expected.token_ids
        known = set(vocabulary.target_ids.tolist())
        assert ours.stats.num_outside == sum(token not in known for token in ours.token_ids)
        num_accepted += ours.stats.num_accepted
        num_outside += ours.stats.num_outside
    assert num_accepted > 0
    assert num_outside > 0


@pytest.mark.parametrize("kernels", rest_slow(["auto", "torch"], 1))
def test_a_serial_draft_changes_no_text(folder: Path, plain: Engine, kernels: str) -> None:
    with drafted_by(DraftModel(model=str(folder), adaptive=False), kernels=kernels) as engine:
        assert_same_and_counted(engine, plain, folder)


@pytest.mark.slow
def test_a_draft_in_a_process_of_its_own_changes_no_text(folder: Path, plain: Engine) -> None:
    with drafted_by(Parallel(draft=DraftModel(model=str(folder)))) as engine:
        assert_same_and_counted(engine, plain, folder)


def test_a_map_of_another_target_is_refused(folder: Path, tmp_path: Path) -> None:
    shorter = random_map(random.Random(1), NUM_TARGET - 1, num_draft=NUM_DRAFT)
    other = write_mapped(tmp_path / "other", DRAFT, shorter)
    for drafter in (DraftModel(model=str(other)), Parallel(draft=DraftModel(model=str(other)))):
        with pytest.raises(VocabularyError, match=r"target with 4095 ids, but builtin has 4096"):
            drafted_by(drafter)
