"""Engines with draft heads: found by their files under any name for a draft, and refused where they cannot draft."""

import json
import random
from ctypes import memset
from functools import cache
from pathlib import Path
from shutil import copytree
from typing import Any, Literal

import pytest
import torch

from forerun import (
    Automatic,
    CheckpointError,
    ConfigError,
    DraftHead,
    DraftModel,
    Engine,
    EngineConfig,
    Generation,
    NoDrafter,
    Parallel,
    SamplingParams,
)
from forerun.backends.choose import choose_backend
from forerun.backends.cpu.backend import CpuBackend
from forerun.backends.cpu.executor import NativeExecutor
from forerun.checkpoints.huggingface.folder import HuggingFaceFolder
from forerun.checkpoints.open import open_source
from forerun.core.drafter_config import BUILTIN_HEADS, DrafterConfig
from forerun.drafting.heads.dflash import DFlashSpec
from forerun.drafting.heads.dflash_network import DFlashDrafter, DFlashExecutor
from forerun.drafting.heads.drafter import HeadDrafter
from forerun.drafting.heads.eagle import EagleSpec
from forerun.drafting.heads.eagle_network import EagleDrafter, ProgramEagleExecutor
from forerun.drafting.heads.stored import find_head
from forerun.engine import drafters, opening
from forerun.model.executor import ForwardInput, ModelExecutor
from forerun.model.quantise import as_plain
from forerun.model.runner import Runner
from forerun.model.weights import DenseWeight
from forerun_lab.cli.prepare import write_parts
from tests.drafting.heads.published import builtin_head, flat_config, write_eagle, write_files
from tests.drafting.heads.random_heads import eagle_tensors, random_body, random_eagle
from tests.marks import in_turn, rest_slow
from tests.tiny import plain_spec

MOST_DEVIATION = 0.03  # of 8-bit products, relative to the largest


def engine_of(drafter: DrafterConfig) -> Engine:
    return Engine(EngineConfig(drafter=drafter, num_threads=1, max_length=192))


@pytest.mark.parametrize("kind", ["eagle3", "dflash2"])
def test_a_head_under_the_name_of_a_draft_model_is_found_by_its_files(kind: Literal["eagle3", "dflash2"]) -> None:
    expected = EagleDrafter if kind == "eagle3" else DFlashDrafter
    with engine_of(DraftModel(model=builtin_head(kind))) as engine:
        assert [type(one) for one in engine.drafting.held.values()] == [expected]
        assert engine.drafting.round_plan is not None


def written_by(engine: Engine, temperature: float) -> Generation:
    params = SamplingParams(max_new_tokens=128, temperature=temperature, seed=1, ignore_eos=True)
    return engine.generate("def read_lines(path):", params)


@cache
def plain_text(temperature: float) -> tuple[int, ...]:
    with engine_of(NoDrafter()) as engine:
        return written_by(engine, temperature).token_ids


@pytest.mark.parametrize(("name", "temperature"), in_turn([*BUILTIN_HEADS.values()], [0.0, 1.0]))
def test_the_packages_heads_guess_well_for_the_built_in_target(name: str, temperature: float) -> None:
    with engine_of(DraftHead(model=name, adaptive=False)) as engine:
        done = written_by(engine, temperature)
    assert done.token_ids == plain_text(temperature)
    assert done.stats.tokens_per_round > (2.5 if temperature == 0.0 else 1.5)


@pytest.mark.usefixtures("random_turns")
@pytest.mark.parametrize(
    ("draft", "name"),
    [("builtin-draft", "draft_model"), (builtin_head("eagle3"), "draft_head"), (builtin_head("dflash"), "draft_head")],
    ids=["model", "eagle3", "dflash"],
)
def test_a_named_draft_is_one_of_several_drafters(draft: str, name: str) -> None:
    params = SamplingParams(max_new_tokens=64, temperature=1.0, seed=1, ignore_eos=True)
    texts = []
    named = DraftModel(model=draft) if name == "draft_model" else DraftHead(model=draft)
    for drafter in (NoDrafter(), Automatic(draft=named)):
        with engine_of(drafter) as engine:
            done = engine.generate("Once upon a time", params)
            texts.append(done.token_ids)
    assert texts[0] == texts[1]
    assert list(engine.drafting.held) == [name, "recycling", "prompt_lookup"]
    assert done.stats.rounds_by[name] > 0


@pytest.mark.parametrize("plays_rounds", [False, True])
@pytest.mark.parametrize("draft", ["builtin-draft", "builtin-dflash"])
def test_a_named_draft_is_alone_if_the_device_plays_its_rounds(
    draft: str, plays_rounds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it is one of several, on a GPU too: with torch's kernels, or several ranks."""
    monkeypatch.setattr(CpuBackend, "plays_rounds", lambda *_: plays_rounds)
    monkeypatch.setattr(opening, "device_decoders", lambda *_: ())
    with engine_of(Automatic(draft=DraftModel(model=draft))) as engine:
        assert (len(engine.drafting.held) == 1) == plays_rounds


@pytest.mark.parametrize("num_ranks", rest_slow([1, 2], 1))
def test_an_embedding_and_an_output_that_a_head_lacks_are_the_targets(num_ranks: int, tmp_path: Path) -> None:
    source = open_source("builtin")
    texts = []
    logits = []
    inputs = ForwardInput(token_ids=[5, 900], positions=[0, 1], first_slot=0, prefix_len=0, num_logit_rows=2)
    target = source.spec()
    body = random_body(random.Random(1), hidden_size=target.hidden_size, vocab_size=target.vocab_size, num_layers=1)
    spec = EagleSpec(body=body, target_hidden_size=target.hidden_size, layer_ids=(2, 5, 9))
    weights = source.weights(dtype=torch.bfloat16)
    table = as_plain(weights.table())
    assert target.tied_embeddings, "the output is the table"
    lacking = eagle_tensors(spec, target, 1, is_alone=False)
    whole = {**lacking, "embed_tokens.weight": table, "lm_head.weight": table.clone()}
    for number, tensors in enumerate((whole, lacking)):
        named = {name.replace("layers.0.", "midlayer."): tensor.bfloat16() for name, tensor in tensors.items()}
        folder = write_files(tmp_path / str(number), flat_config(spec, target), named)
        drafter = DraftHead(model=str(folder), adaptive=False)
        config = EngineConfig(drafter=drafter, num_threads=1, max_length=128, target_ranks=num_ranks)
        with Engine(config) as engine:
            texts.append(engine.generate("Once upon", SamplingParams(max_new_tokens=8, ignore_eos=True)).token_ids)
            executor = engine.drafting.held["draft_head"]._runner.executor
            assert isinstance(executor, ProgramEagleExecutor)
            assert (executor.head.embed == engine._target.executor.embed) == (tensors is lacking)
            logits.append(executor.run(inputs).logits)
    assert texts[0] == texts[1]
    assert torch.equal(*logits)


@pytest.mark.parametrize("is_auto", [False, True])
@pytest.mark.parametrize("settings", [{"weights": "int8"}, {"kernels": "torch"}], ids=str)
def test_a_head_uses_the_targets_embedding_and_output_in_memory(
    settings: dict[str, Any], is_auto: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_again(*_: object, **__: object) -> None:
        raise AssertionError("the target's output is in memory")

    monkeypatch.setattr(drafters, "output_weight", read_again)
    name = "builtin-dflash"  # it has neither
    drafter = Automatic(draft=DraftModel(model=name)) if is_auto else DraftHead(model=name, adaptive=False)
    with Engine(EngineConfig(drafter=drafter, num_threads=1, max_length=64, **settings)) as engine:
        target = engine._target.executor
        drafting = engine.drafting.held["draft_head"]
        assert isinstance(drafting, HeadDrafter)
        assert isinstance(drafting._runner.executor, DFlashExecutor)
        head = drafting._runner.executor.head
        assert isinstance(target, ModelExecutor)
        assert head._embed == target.embed
        rows = torch.ones(1, engine.spec.hidden_size)
        assert head._head(rows).any()
        if isinstance(target, NativeExecutor):
            packed = target.lowering.head
            memset(packed.descriptor.weights, 0, packed.num_bytes)
            assert not head._head(rows).any(), "the head has a copy"


@pytest.mark.parametrize("name", BUILTIN_HEADS.values())
def test_among_other_drafters_a_narrow_head_has_room_for_their_trees(name: str) -> None:
    """As the GPU's rounds need a slot of the head for each of the target's."""
    with engine_of(Automatic(draft=DraftModel(model=name, verify_width=4, draft_width=2, depth=2))) as engine:
        head = engine.drafting.held["draft_head"]
        assert isinstance(head, HeadDrafter)
        assert head._runner.cache.capacity >= engine._target.cache.capacity
        assert engine.generate("Once", SamplingParams(max_new_tokens=8, ignore_eos=True)).stats.num_new_tokens == 8


@pytest.mark.parametrize("error", [CheckpointError("a damaged head"), KeyboardInterrupt()], ids=["damaged", "Ctrl-C"])
def test_a_target_is_closed_if_its_head_cannot_be_loaded(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Runner] = []
    monkeypatch.setattr(Runner, "close", lambda self: closed.append(self))

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(drafters, "load_head", fail)
    with pytest.raises(type(error)):
        engine_of(DraftHead(model="builtin-dflash"))
    assert len(closed) == 1


@pytest.mark.parametrize(("original", "factor"), [(4096, 1.5), (128, 4.0)])
def test_a_head_with_longrope_has_the_factors_of_the_longest_text(original: int, factor: float, tmp_path: Path) -> None:
    folder = copytree(builtin_head("eagle3"), tmp_path / "head")
    config = json.loads((folder / "config.json").read_text())
    rope = {"rope_type": "longrope", "short_factor": [1.5] * 8, "long_factor": [4.0] * 8}
    config |= {"rope_scaling": rope, "original_max_position_embeddings": original}
    (folder / "config.json").write_text(json.dumps(config))
    with engine_of(DraftHead(model=str(folder), adaptive=False)) as engine:
        head = engine.drafting.held["draft_head"]
        assert isinstance(head, EagleDrafter)
        assert head._runner.spec.rope.divisors == (factor,) * 8
        assert engine.generate("Once", SamplingParams(max_new_tokens=8, ignore_eos=True)).stats.num_drafted > 0


def test_tokens_that_a_head_cannot_draft_are_counted() -> None:
    with engine_of(DraftHead(model=builtin_head("eagle3"), adaptive=False)) as engine:
        done = engine.generate("Once", SamplingParams(max_new_tokens=32, ignore_eos=True))
        assert done.stats.num_drafted > 0
        assert done.stats.num_outside == sum(token % 2 for token in done.token_ids)  # it has every other token


def test_a_dflash_2_head_in_a_gguf_file_writes_the_plain_text(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    from tests.drafting.heads.test_gguf import gguf_name, write

    stored = find_head(open_source(builtin_head("dflash2")))
    assert stored is not None
    spec = stored.spec
    assert isinstance(spec, DFlashSpec)
    tensors = {gguf_name(name): each for name, each in stored.weights(dtype=torch.float32, device="cpu").items()}
    keys = {
        "block_size": spec.block_size, "target_layers": [layer + 1 for layer in spec.layer_ids],
        "tokenizer.ggml.mask_token_id": spec.mask_token_id, "conv_kernel_size": spec.conv_kernel,
        "conv_group_size": spec.conv_group, "selector_rank": spec.pair_rank, "selector_top_k": spec.num_pairs,
    }  # fmt: skip
    path = write(tmp_path / "head.gguf", "dflash", spec.body, keys, tensors)
    texts = []
    params = SamplingParams(max_new_tokens=96, temperature=1.0, seed=1, ignore_eos=True)
    for name in (str(path), builtin_head("dflash2"), None):
        with engine_of(NoDrafter() if name is None else DraftHead(model=name, adaptive=False)) as engine:
            done = engine.generate("Once upon a time", params)
            texts.append((done.token_ids, done.stats.num_accepted))
    assert texts[0] == texts[1]  # the same weights, so the same guesses
    assert texts[0][0] == texts[2][0]
    assert texts[0][1] > 0


def test_whole_models_and_heads_of_other_targets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is a whole model"):
        engine_of(DraftHead(model="builtin-draft"))
    target = plain_spec(num_layers=6, vocab_size=60)
    folder = write_eagle(tmp_path / "head", random_eagle(random.Random(1), target), target)
    with pytest.raises(CheckpointError, match="features of size 20, but builtin has 256"):
        engine_of(DraftHead(model=str(folder)))


@pytest.mark.parametrize("device", ["cpu", "auto"])
@pytest.mark.parametrize("name", BUILTIN_HEADS.values())
def test_a_head_is_no_target(name: str, device: str) -> None:
    with pytest.raises(CheckpointError, match=f"{name} is a draft head, not a model: give it to --draft"):
        Engine(EngineConfig(target=name, device=device))


@pytest.mark.parametrize("kind", rest_slow(["eagle3", "dspark"], 1))
def test_a_target_on_two_ranks_gives_its_features_to_a_head(kind: Literal["eagle3", "dspark"]) -> None:
    params = SamplingParams(max_new_tokens=24, temperature=0.7, seed=1, ignore_eos=True)
    drafter = DraftHead(model=builtin_head(kind), adaptive=False)
    with Engine(EngineConfig(drafter=drafter, num_threads=1, max_length=128, target_ranks=2)) as engine:
        plain = engine.generate("Once upon a time", params, drafter="none")
        done = engine.generate("Once upon a time", params)
    assert done.token_ids == plain.token_ids
    assert (plain.stats.num_drafted, done.stats.num_drafted > 0) == (0, True)


@pytest.mark.slow  # by default cli/test_prepare_ranks, without a head
@pytest.mark.parametrize("name", ["builtin-dflash", "builtin-eagle3"])
def test_a_target_that_was_prepared_for_ranks_shares_its_weights_with_a_head(name: str, tmp_path: Path) -> None:
    params = SamplingParams(max_new_tokens=48, ignore_eos=True)
    done = []
    (tmp_path / "prepared").mkdir()
    source = open_source("builtin")
    assert isinstance(source, HuggingFaceFolder)
    write_parts(source, EngineConfig(target_ranks=2), tmp_path / "prepared")
    for target in ("builtin", str(tmp_path / "prepared")):
        drafter = DraftHead(model=name, adaptive=False)
        config = EngineConfig(target=target, drafter=drafter, num_threads=1, max_length=128, target_ranks=2)
        with Engine(config) as engine:
            done.append(engine.generate("def read_lines(path):", params))
    assert done[0].token_ids == done[1].token_ids
    assert done[0].stats.num_accepted == done[1].stats.num_accepted > 0


def test_a_head_does_not_draft_in_another_process() -> None:
    with pytest.raises(ConfigError, match="leave out --drafter parallel"):
        engine_of(Parallel(draft=DraftModel(model=builtin_head("eagle3"))))


@pytest.mark.parametrize("num_rows", [1, 3, 40])
def test_a_drafts_linear_layer_is_close_to_the_plain_one(num_rows: int) -> None:
    seeded = torch.Generator().manual_seed(num_rows)
    weight = torch.randn(50, 37, generator=seeded)
    bias = torch.randn(50, generator=seeded)
    x = torch.randn(2, num_rows, 37, generator=seeded)
    backend = choose_backend("fast", dtype=torch.float32, device="cpu", head_dim=64).backend
    found = backend.draft_linear(DenseWeight(values_OI=weight), bias)(x)
    expected = torch.nn.functional.linear(x, weight, bias)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= MOST_DEVIATION * expected.abs().max()
