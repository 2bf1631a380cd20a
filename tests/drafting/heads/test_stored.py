"""Published heads of every trainer are read for what they are, and what is not known is refused by name."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from forerun.checkpoints.open import open_source
from forerun.core.errors import CheckpointError, VocabularyError
from forerun.drafting.heads.dflash import DFlashSpec
from forerun.drafting.heads.eagle import EagleSpec
from forerun.drafting.heads.kind import StoredHead
from forerun.drafting.heads.stored import find_head
from tests.drafting.heads.published import (
    body_keys,
    dflash_config,
    flat_config,
    nested_config,
    with_map,
    write_dflash,
    write_eagle,
    write_files,
)
from tests.drafting.heads.random_heads import dflash_tensors, eagle_tensors, random_body, random_dflash, random_eagle
from tests.tiny import plain_spec

TARGET = plain_spec(num_layers=6, vocab_size=60)
SEEDS = range(8)
IDS = "eagle_aux_hidden_state_layer_ids"
GROWING = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "llama_4_scaling_beta": 0.1}


def opened(folder: Path) -> StoredHead:
    stored = find_head(open_source(str(folder)))
    assert stored is not None, "a head is recognised"
    return stored


def random_case(seed: int, **changes: Any) -> tuple[EagleSpec, dict[str, Tensor], Tensor]:
    """A head, its weights, and the tokens that it drafts."""
    rng = random.Random(seed)
    spec = random_eagle(rng, TARGET, **changes)
    ids = torch.tensor(sorted(rng.sample(range(TARGET.vocab_size), spec.body.vocab_size)))
    return spec, eagle_tensors(spec, TARGET, seed), ids


def require_equal(stored: StoredHead, weights: dict[str, Tensor], ids: Tensor | None) -> None:
    read = stored.weights(dtype=torch.float64, device="cpu")
    assert read.keys() == weights.keys()
    assert all(torch.equal(read[name], weights[name]) for name in weights)
    target_ids = stored.target_ids()
    assert target_ids is None if ids is None else target_ids is not None and torch.equal(target_ids, ids)
    stored.require_fit(TARGET, "the target")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dialect", ["flat", "speculators"])
def test_eagle3_folders_are_read(seed: int, dialect: str, tmp_path: Path) -> None:
    is_flat = dialect == "flat"
    spec, weights, ids = random_case(seed, **({"norms_state": False} if is_flat else {"norms_logits": True}))
    named = with_map(weights, ids, TARGET.vocab_size)
    config = nested_config(spec, TARGET)
    if is_flat:
        named = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in named.items()}
        config = flat_config(spec, TARGET)
    stored = opened(write_files(tmp_path / "head", config, named))
    assert stored.spec == replace(spec, body=replace(spec.body, num_layers=spec.body.num_layers))
    assert stored.verifier == ("" if is_flat else "some/target")
    require_equal(stored, weights, ids)


def test_the_usual_layers_are_those_of_eagle() -> None:
    spec, _, _ = random_case(0, layer_ids=None, num_taps=3)
    assert spec.taps(32) == (1, 15, 28)


@pytest.mark.parametrize("seed", SEEDS)
def test_dflash_folders_are_read(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    spec = random_dflash(rng, TARGET)
    window = rng.choice([None, 3])
    is_causal = rng.random() < 0.5
    num_layers = spec.body.num_layers
    spec = replace(spec, windows=(window,) * num_layers, is_causal=(is_causal,) * num_layers)
    stored = opened(write_dflash(tmp_path / "head", spec, TARGET, seed=seed))
    assert stored.spec == spec
    expected = {name: value.float().double() for name, value in dflash_tensors(spec, TARGET, seed).items()}
    require_equal(stored, expected, None)


def test_speculators_counts_the_layer_that_a_dflash_feature_enters(tmp_path: Path) -> None:
    spec = random_dflash(random.Random(1), TARGET, layer_ids=(1, 4), conv_kernel=0, pair_rank=0)
    spec = replace(spec, windows=(None,) * spec.body.num_layers, is_causal=(False,) * spec.body.num_layers)
    config = dflash_config(spec, TARGET)
    nested = {
        "speculators_model_type": "dflash",
        "transformer_layer_config": config,
        "block_size": spec.block_size,
        "mask_token_id": spec.mask_token_id,
        "aux_hidden_state_layer_ids": [2, 5],
        "target_hidden_size": spec.target_hidden_size,
    }
    tensors = dflash_tensors(spec, TARGET, 1)
    found = opened(write_files(tmp_path / "head", nested, tensors)).spec
    assert found.taps(TARGET.num_layers) == (1, 4)


def test_whole_models_are_no_heads() -> None:
    assert find_head(open_source("builtin")) is None
    assert find_head(open_source("builtin-draft")) is None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    spec, _, _ = random_case(3)
    return write_eagle(tmp_path / "head", replace(spec, body=replace(spec.body, vocab_size=20)), TARGET)


def edited(folder: Path, edit: Callable[[dict[str, Any], dict[str, Tensor]], object]) -> Path:
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    edit(config, tensors)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda config, tensors: tensors.update(mask_hidden=torch.zeros(1, 1, 3)), "mask_hidden"),
        (lambda config, tensors: tensors.pop("norm.weight"), "lacks tensor 'norm.weight'"),
        (lambda config, tensors: tensors.pop("fc.weight"), "fc.weight"),
        (lambda config, tensors: tensors.update({"norm.weight": torch.zeros(3)}), "'norm.weight' has shape"),
        (lambda config, tensors: config.update(eagle_config={"use_aux_hidden_state": False}), "use_aux_hidden_state"),
        (lambda config, tensors: config.update(speculators_model_type="mtp"), "speculators_model_type"),
        (lambda config, tensors: config.update(hidden_act="gelu"), "hidden_act"),
        (lambda config, tensors: tensors.update(d2t=tensors["d2t"].half()), "'d2t' holds 20 values of type F16"),
        (lambda config, tensors: tensors.update(d2t=tensors["d2t"].float()), "must hold some of I32, I64"),
        (lambda config, tensors: tensors.update(d2t=tensors["d2t"] > 0), "'d2t' holds 20 values of type BOOL"),
        (
            lambda config, tensors: tensors.update(d2t=tensors["d2t"][:0]),
            r"'d2t' has shape \[0\], but must have \[20\]",
        ),
        (lambda config, tensors: tensors.update(d2t=tensors["d2t"][:19]), r"'d2t' has shape \[19\]"),
        (lambda config, tensors: tensors.update(d2t=tensors["d2t"][None]), r"'d2t' has shape \[1, 20\]"),
        (
            lambda config, tensors: tensors.update({"norm.weight": tensors["norm.weight"].int()}),
            "'norm.weight' holds .* of type I32, but must hold some of F64, F32, F16, BF16",
        ),
        (
            lambda config, tensors: tensors.update({"fc.weight": tensors["fc.weight"].to(torch.float8_e4m3fn)}),
            "'fc.weight' holds .* of type F8_E4M3",
        ),
        (
            lambda config, tensors: tensors.update({"embed_tokens.weight": tensors["embed_tokens.weight"][:0]}),
            "'embed_tokens.weight' holds 0 values",
        ),
        (
            lambda config, tensors: config.update(target_hidden_size=7),
            "target_hidden_size is 7, but must be a divisor of",
        ),
        (lambda config, tensors: config.update(eagle_config={IDS: [2] * 9}), rf"{IDS} is \[2, .* a list of \d layers"),
        (
            lambda config, tensors: config.update(eagle_config={IDS: []}),
            rf"{IDS} is \[\], .* fc.weight has columns for",
        ),
        (lambda config, tensors: config.update(rope_parameters=GROWING), "llama_4_scaling_beta"),
        (lambda config, tensors: config.update(num_hidden_layers=-1), "num_hidden_layers is -1, but must be a whole"),
        (lambda config, tensors: config.update(num_hidden_layers=10**6), "num_hidden_layers is 1000000, but must be"),
    ],
)
def test_what_forerun_does_not_compute_is_refused_by_name(
    edit: Callable[[dict[str, Any], dict[str, Tensor]], object], message: str, folder: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        opened(edited(folder, edit))


def test_a_damaged_map_is_refused(folder: Path) -> None:
    edited(folder, lambda _, tensors: tensors.update(d2t=torch.full((20,), -5)))
    with pytest.raises(CheckpointError, match="ascending"):
        opened(folder).target_ids()


def test_heads_of_other_targets_are_refused(folder: Path) -> None:
    stored = opened(folder)
    with pytest.raises(CheckpointError, match="features of size"):
        stored.require_fit(replace(TARGET, hidden_size=24), "other")
    with pytest.raises(CheckpointError, match="has 1 layers"):
        stored.require_fit(replace(TARGET, num_layers=1), "other")
    with pytest.raises(VocabularyError, match="drafts token 57, but other has only 30"):
        stored.require_fit(replace(TARGET, vocab_size=30), "other")
    with pytest.raises(VocabularyError, match="an embedding of 60 tokens, but other has 61"):
        stored.require_fit(replace(TARGET, vocab_size=61), "other")
    edited(folder, lambda _, tensors: tensors.pop("embed_tokens.weight"))
    if stored.spec.body.hidden_size != TARGET.hidden_size:
        with pytest.raises(CheckpointError, match="lacks an embedding"):
            opened(folder).require_fit(TARGET, "other")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda config, _: config["dflash_config"].pop("mask_token_id"), r"dflash_config\.mask_token_id is missing"),
        (lambda config, _: config.pop("dflash_config"), r"dflash_config\.target_layer_ids is missing"),
        (
            lambda config, _: config["dflash_config"].update(target_layer_ids=[2]),
            r"\[2\], but must be a list of 2 layers",
        ),
    ],
)
def test_a_dflash_head_without_a_key_is_refused_by_the_keys_whole_name(
    edit: Callable[[dict[str, Any], dict[str, Tensor]], object], message: str, tmp_path: Path
) -> None:
    folder = write_dflash(tmp_path / "head", random_dflash(random.Random(2), TARGET, layer_ids=(1, 4)), TARGET)
    with pytest.raises(CheckpointError, match=message):
        opened(edited(folder, edit))


@pytest.mark.parametrize("key", ["mask_token_id", "aux_hidden_state_layer_ids"])
def test_a_head_of_speculators_without_a_key_is_refused_by_name(key: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"config.json: {key} is missing"):
        opened(edited(dspark(tmp_path / "head"), lambda config, _: config.pop(key)))


def test_a_dflash_head_with_a_mask_that_the_target_lacks_is_refused(tmp_path: Path) -> None:
    spec = random_dflash(random.Random(2), TARGET, mask_token_id=59, conv_kernel=0, pair_rank=0, markov_rank=0)
    folder = write_dflash(tmp_path / "head", spec, TARGET)
    opened(folder).require_fit(TARGET, "the target")
    edited(folder, lambda config, _: config["dflash_config"].update(mask_token_id=60))
    with pytest.raises(VocabularyError, match="masks with token 60"):
        opened(folder).require_fit(TARGET, "the target")


@pytest.mark.parametrize("group", [7, 100_000])
def test_groups_of_channels_that_do_not_divide_the_hidden_size_are_refused(group: int, tmp_path: Path) -> None:
    body = random_body(random.Random(2), hidden_size=20, vocab_size=60, num_layers=1)
    spec = random_dflash(random.Random(2), TARGET, body=body, conv_kernel=2, conv_group=group, windows=(None,),
                        is_causal=(False,))  # fmt: skip
    with pytest.raises(CheckpointError, match=f"conv_group_size is {group}, but must be a divisor of .* 20"):
        opened(write_dflash(tmp_path / "head", spec, TARGET))


@pytest.mark.parametrize("what", ["map", "shifts"])
def test_rows_for_another_output_than_the_targets_are_refused(what: str, tmp_path: Path) -> None:
    """The target's output gives as many logits as it has tokens, and no fewer."""
    if what == "map":
        spec, weights, ids = random_case(3, body=random_body(random.Random(3), hidden_size=20, vocab_size=25))
        weights.pop("lm_head.weight")
        config = flat_config(spec, TARGET)
        folder = write_files(tmp_path / "head", config, with_map(weights, ids, TARGET.vocab_size))
    else:
        body = random_body(random.Random(3), hidden_size=20, vocab_size=60)
        folder = dspark(tmp_path / "head", body=body)
        edited(folder, lambda config, tensors: (
            config["transformer_layer_config"].update(vocab_size=61), tensors.pop("lm_head.weight"),
            tensors.update({"markov_head.markov_w2.weight": torch.zeros(61, 4)}),
        ))  # fmt: skip
    with pytest.raises(VocabularyError, match=r"(25 rows of d2t|61 rows of markov_head\.markov_w2).* has 60"):
        opened(folder).require_fit(TARGET, "the target")


def dspark(folder: Path, **changes: Any) -> Path:
    """A DSpark head in a folder of the speculators library."""
    spec = random_dflash(random.Random(4), TARGET, conv_kernel=0, pair_rank=0, markov_rank=4, **changes)
    config = {
        "speculators_model_type": "dspark",
        "transformer_layer_config": body_keys(spec.body, TARGET.vocab_size),
        "block_size": spec.block_size,
        "mask_token_id": spec.mask_token_id,
        "aux_hidden_state_layer_ids": [2, 5],
        "target_hidden_size": spec.target_hidden_size,
        "markov_rank": 4,
    }
    tensors = dflash_tensors(replace(spec, layer_ids=(1, 4)), TARGET, 1)
    tensors["confidence_head.proj.weight"] = torch.zeros(1, spec.body.hidden_size + 4)
    tensors["confidence_head.proj.bias"] = torch.zeros(1)
    return write_files(folder, config, {name: tensor.float() for name, tensor in tensors.items()})


@pytest.mark.parametrize("has_gate", [False, True])
def test_dspark_heads_are_read(has_gate: bool, tmp_path: Path) -> None:
    folder = dspark(tmp_path / "head", has_markov_gate=has_gate)
    spec = opened(folder).spec
    assert isinstance(spec, DFlashSpec)
    assert (spec.markov_rank, spec.has_markov_gate, spec.num_drafted) == (4, has_gate, spec.block_size)
    assert not any(name.startswith("confidence_head") for name in opened(folder).tensors)
    opened(folder).require_fit(TARGET, "the target")
    with pytest.raises(VocabularyError, match="an embedding of 60 tokens, but other has 61"):
        opened(folder).require_fit(replace(TARGET, vocab_size=61), "other")
    edited(folder, lambda config, tensors: tensors.update({"markov_head.markov_w1.weight": torch.zeros(59, 4)}))
    with pytest.raises(VocabularyError, match="codes of 59 tokens, but the target has 60"):
        opened(folder).require_fit(TARGET, "the target")
    edited(folder, lambda config, _: config.update(sample_from_anchor=False))
    spec = opened(folder).spec
    assert isinstance(spec, DFlashSpec)
    assert spec.num_drafted == spec.block_size - 1


def test_what_dspark_heads_lack_or_forerun_does_not_compute_is_refused(tmp_path: Path) -> None:
    folder = dspark(tmp_path / "head")
    edited(folder, lambda _, tensors: tensors.pop("markov_head.markov_w2.weight"))
    with pytest.raises(CheckpointError, match=r"lacks tensor 'markov_head\.markov_w2\.weight'"):
        opened(folder)
    folder = dspark(tmp_path / "other")
    edited(folder, lambda config, _: config.update(markov_head_type="rnn"))
    with pytest.raises(CheckpointError, match="markov_head_type"):
        opened(folder)
