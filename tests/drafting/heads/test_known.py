"""Only the list of kinds knows them: a kind that is added to it is recognised, described, checked, and drafts."""

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from forerun import DraftHead, Engine, EngineConfig, NoDrafter, SamplingParams
from forerun.checkpoints.open import open_source
from forerun.cli.main import app
from forerun.core.drafter_config import DrafterConfig
from forerun.drafting.heads import known, stored
from forerun.drafting.heads.kind import HeadKind
from tests.checkpoints.folders import LLAMA
from tests.drafting.heads import toy_kind
from tests.drafting.heads.published import write_files


@pytest.mark.parametrize("kind", known.ALL, ids=lambda kind: kind.network)
def test_the_network_of_a_kind_loads_heads(kind: HeadKind) -> None:
    assert callable(import_module(f"forerun.drafting.heads.{kind.network}").load)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A random head of a kind in the list, for the built-in target."""
    monkeypatch.setattr(stored, "ALL", (toy_kind.TOY, *known.ALL))
    monkeypatch.setitem(sys.modules, "forerun.drafting.heads.toy_kind", toy_kind)
    hidden = open_source("builtin").spec().hidden_size
    mixed = torch.randn(hidden, 2 * hidden, generator=torch.Generator().manual_seed(1)) / hidden**0.5
    config = {"toy_head": {**LLAMA, "hidden_size": hidden, "num_hidden_layers": 1}}
    return str(write_files(tmp_path, config, {"mix.weight": mixed}))


def test_a_kind_in_the_list_drafts(toy: str) -> None:
    def written(drafter: DrafterConfig) -> tuple[tuple[int, ...], int]:
        with Engine(EngineConfig(drafter=drafter, num_threads=1, max_length=128)) as engine:
            done = engine.generate(
                "def area(", SamplingParams(max_new_tokens=32, temperature=1.0, seed=1, ignore_eos=True)
            )
            return done.token_ids, done.stats.num_drafted

    plain, _ = written(NoDrafter())
    drafted, num_drafted = written(DraftHead(model=toy, adaptive=False))
    assert drafted == plain
    assert num_drafted > 0


def test_a_kind_in_the_list_is_described_and_checked(toy: str) -> None:
    runner = CliRunner()
    assert json.loads(runner.invoke(app, ["inspect", toy, "--json"]).stdout)["head"] == "toy"
    assert json.loads(runner.invoke(app, ["check", "builtin", toy, "--json"]).stdout)["fits"]


def test_a_tensor_that_a_kind_in_the_list_does_not_have_is_refused(toy: str) -> None:
    write_files(Path(toy), json.loads((Path(toy) / "config.json").read_text()), {"other.weight": torch.ones(2, 2)})
    with pytest.raises(stored.CheckpointError, match=r"other\.weight"):
        stored.find_head(open_source(toy))
