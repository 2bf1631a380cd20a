"""The built-in pair as peers are given it, and what our own engine writes."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from forerun import Engine, EngineConfig, NoDrafter
from forerun.checkpoints.open import open_source
from forerun_lab.bench.peers.messages import PeerPlan
from tests.bench.peers.pairs import GREEDY, MAX_LENGTH, PROMPTS, Pair

CUT = 12


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """Drafter `none`, whose greedy ids every peer must write."""
    config = EngineConfig(drafter=NoDrafter(), dtype="float32", max_length=MAX_LENGTH, num_threads=1)
    with Engine(config) as engine:
        yield engine


@pytest.fixture(scope="session")
def pair(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The built-in pair, except that a token which the first text reaches soon ends a text."""
    prompts = [tuple(engine.encode(prompt)) for prompt in PROMPTS]
    expected = [engine.generate(prompt, GREEDY).token_ids for prompt in prompts]
    eos_id = expected[0][CUT]
    folder = tmp_path_factory.mktemp("target")
    shutil.copytree(open_source("builtin").folder, folder, dirs_exist_ok=True)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos_id, "repetition_penalty": 1.5}))
    plan = PeerPlan(
        target=str(folder),
        draft=str(open_source("builtin-draft").folder),
        dtype="float32",
        num_threads=1,
        max_length=MAX_LENGTH,
    )
    return Pair(plan=plan, prompts=tuple(prompts), expected=tuple(expected), eos_id=eos_id)


@pytest.fixture(scope="session")
def packed_pair(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The pair as GGUF files, for servers that read no folders.

    They name no token that ends a text, because llama-server never writes such a token where it is to be ignored;
    `ending.gguf`, the same target, names it.
    """
    pytest.importorskip("gguf")
    from tests.golden.gguf_writer import write_gguf

    place = tmp_path_factory.mktemp("gguf")
    plan = pair.plan
    assert plan.draft is not None
    target = write_gguf(Path(plan.target), place / "target.gguf")
    draft = write_gguf(Path(plan.draft), place / "draft.gguf")
    write_gguf(Path(plan.target), place / "ending.gguf", eos_id=pair.eos_id)
    return replace(pair, plan=replace(plan, target=str(target), draft=str(draft)))
