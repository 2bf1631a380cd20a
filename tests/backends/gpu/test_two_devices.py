"""Two engines of one process, or a drafter, on a second device: all texts are those that each writes alone.

The same tests run with both devices the CPU, in Triton's interpreter, which shows that they are right themselves.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock
from typing import Any

import pytest
import torch

from forerun.core.config import EngineConfig, SamplingParams
from forerun.core.drafter_config import DrafterConfig, DraftModel, NoDrafter, Parallel
from forerun.engine.engine import Engine
from tests.checkpoints.folders import random_tensors, write_single
from tests.text.tiny_tokenizers import write_byte_level

pytest.importorskip("triton")

from forerun.backends.gpu.language import IS_EMULATED

SIZES = {
    "num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 1, "num_key_value_heads": 1,
    "intermediate_size": 16, "vocab_size": 320,
}  # fmt: skip
PROMPT = "def add(a, b):"
NUM_TOKENS = 4 if IS_EMULATED else 24
REQUESTS = (
    SamplingParams(max_new_tokens=NUM_TOKENS, ignore_eos=True),
    SamplingParams(max_new_tokens=NUM_TOKENS, ignore_eos=True, temperature=0.8, top_k=5, seed=1),
)

Texts = list[tuple[int, ...]]
Pair = tuple[str, str]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("cpu", "cpu"), marks=pytest.mark.slow),
        pytest.param(("cuda:0", "cuda:1"), marks=pytest.mark.gpu),
    ],
    ids=["emulated", "cuda"],
)
def devices(request: pytest.FixtureRequest, emulation: None) -> Iterator[Pair]:
    """Two of them; the interpreter, which is one for all threads, runs one launch at a time."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param[0] == "cpu":
            one_launch_at_a_time(patch)
        elif torch.cuda.device_count() < 2:
            pytest.skip(f"two CUDA devices are needed, and there are {torch.cuda.device_count()}")
        yield request.param


def one_launch_at_a_time(patch: pytest.MonkeyPatch) -> None:
    from triton.runtime.interpreter import GridExecutor

    launch, lock = GridExecutor.__call__, Lock()

    def launch_alone(self: Any, *arguments: Any, **options: Any) -> None:
        with lock:
            launch(self, *arguments, **options)

    patch.setattr(GridExecutor, "__call__", launch_alone)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Target and draft."""
    folders = []
    for seed in range(2):
        folder = write_single(tmp_path_factory.mktemp("model"), random_tensors(seed=seed, **SIZES), **SIZES)
        folders.append(str(write_byte_level(folder)))
    return folders[0], folders[1]


def open_engine(models: Pair, device: str, drafter: DrafterConfig) -> Engine:
    return Engine(
        EngineConfig(target=models[0], dtype="float32", drafter=drafter, device=device, kernels="triton", max_length=40)
    )


def tree_of(models: Pair) -> DraftModel:
    return DraftModel(model=models[1], verify_width=3, draft_width=2, depth=1, adaptive=False)


def open_second(models: Pair, device: str) -> Engine:
    """On a GPU one that drafts, and so has graphs of other kinds; it takes long to open in the interpreter."""
    return open_engine(models, device, NoDrafter() if device == "cpu" else tree_of(models))


def texts_of(engine: Engine) -> Texts:
    return [engine.generate(PROMPT, params).token_ids for params in REQUESTS]


@pytest.fixture(scope="module")
def first(devices: Pair, models: Pair) -> Iterator[Engine]:
    """An engine on the first device."""
    with open_engine(models, devices[0], NoDrafter()) as engine:
        yield engine


@pytest.fixture(scope="module")
def alone(first: Engine) -> Texts:
    """What it writes while it is the only one."""
    return texts_of(first)


def test_an_engine_opens_and_writes_while_another_one_writes(
    first: Engine, alone: Texts, devices: Pair, models: Pair
) -> None:
    """On a GPU it records its graphs while the other one's are replayed."""
    is_done = Event()

    def write_on() -> list[Texts]:
        written = [texts_of(first)]
        while not is_done.is_set():
            written.append(texts_of(first))
        return written

    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write_on)
        try:
            with open_second(models, devices[1]) as second:
                assert texts_of(second) == alone
        finally:
            is_done.set()
    assert all(texts == alone for texts in writing.result())


def test_a_drafter_on_the_second_device_changes_no_text(alone: Texts, devices: Pair, models: Pair) -> None:
    drafter = Parallel(draft=tree_of(models), device=devices[1])
    with open_engine(models, devices[0], drafter) as engine:
        written = [engine.generate(PROMPT, params) for params in REQUESTS]
    assert [generation.token_ids for generation in written] == alone
    assert IS_EMULATED or all(generation.stats.num_rounds_down == 0 for generation in written)
