"""Engines whose draft is an assistant of Gemma 4, found by its files."""

from dataclasses import replace
from pathlib import Path

import pytest

from forerun import Automatic, DraftModel, Engine, EngineConfig, LayerSkip, NoDrafter, SamplingParams
from forerun.checkpoints.open import open_source
from forerun.cli.head_sheet import head_rows
from forerun.core.drafter_config import DrafterConfig
from forerun.core.errors import ConfigError
from forerun.drafting.heads.stored import find_head
from tests.marks import rest_slow
from tests.text.tiny_tokenizers import write_llama

pytest.importorskip("transformers")
from tests.golden.random_families import FAMILIES, gemma4
from tests.golden.test_assistant import save_assistant

NUM_TOKENS = 300


@pytest.fixture(scope="module", params=[0, 1])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random target and its assistant, without and with centroids."""
    folder = tmp_path_factory.mktemp("pair")
    sizes = {"vocab_size": NUM_TOKENS, "vocab_size_per_layer_input": NUM_TOKENS}
    family = replace(FAMILIES["gemma4"], draw=lambda rng: {**gemma4(rng), **sizes})
    model = family.save(request.param, folder / "target")
    config = (folder / "target" / "config.json").read_text()
    write_llama(folder / "target")
    (folder / "target" / "config.json").write_text(config)
    save_assistant(request.param, model, folder / "assistant", has_centroids=request.param == 1)
    return folder


def engine_of(folder: Path, drafter: DrafterConfig, dtype: str = "float64") -> Engine:
    config = EngineConfig(target=str(folder / "target"), drafter=drafter, max_length=128, dtype=dtype)
    return Engine(config)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", rest_slow(["float32", "float64", "bfloat16"], 2))
@pytest.mark.parametrize("adaptive", rest_slow([False, True], 1))
def test_an_assistant_writes_the_plain_text(folder: Path, adaptive: bool, dtype: str) -> None:
    draft = DraftModel(model=str(folder / "assistant"), adaptive=adaptive)
    texts = []
    for drafter in (NoDrafter(), Automatic(draft=draft) if adaptive else draft):
        with engine_of(folder, drafter, dtype) as engine:
            for temperature in (0.0, 1.0):
                params = SamplingParams(max_new_tokens=20, temperature=temperature, seed=2, ignore_eos=True)
                first = engine.generate("the fox", params)
                second = engine.generate([*engine.encode("the fox"), *first.token_ids[:9], 5], params)  # a turn more
                texts.append((first.token_ids, second.token_ids))
    assert texts[:2] == texts[2:]
    assert adaptive or min(first.stats.num_drafted, second.stats.num_drafted) > 0


def test_what_an_assistant_is_can_be_seen(folder: Path) -> None:
    head = find_head(open_source(str(folder / "assistant")))
    assert head is not None
    rows = dict(head_rows(head, ()))
    assert rows["draft head"].startswith("Gemma 4 assistant, ")
    assert rows["tokens drafted"] == str(NUM_TOKENS)


@pytest.mark.parametrize("num_borrowing", [0, 2])
def test_layers_whose_keys_others_read_are_not_left_out(num_borrowing: int, tmp_path: Path) -> None:
    sizes = {"num_kv_shared_layers": num_borrowing, "hidden_size_per_layer_input": 6, "vocab_size": NUM_TOKENS}
    sizes["vocab_size_per_layer_input"] = NUM_TOKENS
    replace(FAMILIES["gemma4"], draw=lambda rng: {**gemma4(rng), **sizes}).save(0, tmp_path / "target")
    config = (tmp_path / "target" / "config.json").read_text()
    write_llama(tmp_path / "target")
    (tmp_path / "target" / "config.json").write_text(config)
    if num_borrowing:
        with pytest.raises(ConfigError, match="layer_skip cannot draft for a gemma4_text model in which layers read"):
            engine_of(tmp_path, LayerSkip())
    else:
        engine_of(tmp_path, LayerSkip()).close()
