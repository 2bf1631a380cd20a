"""Heads that a target gets: they learn what they will draft, and a whole short run leaves one that drafts."""

import random
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from forerun.checkpoints.open import open_source
from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError
from forerun.core.model_spec import ModelSpec, RopeSpec
from forerun.drafting.heads.dflash import DFlashSpec
from forerun.drafting.heads.eagle import EagleSpec
from forerun.drafting.heads.kind import HeadSpec
from forerun.drafting.heads.stored import find_head
from forerun.model.vocabulary_map import VocabularyMap
from forerun_lab.distill import eagle_head, head_trainer
from forerun_lab.distill import trainer as trainer_module
from forerun_lab.distill.config import DistillConfig, DraftKind
from forerun_lab.distill.head_shape import TRAINABLE, choose_head, initial_head, spread
from forerun_lab.distill.head_trainer import HeadTrainer
from forerun_lab.distill.network import HeadNetwork, Network, read_network
from forerun_lab.distill.run import Distillation
from forerun_lab.distill.writer import WrittenText
from tests.drafting.heads.dflash_reference import dflash_outputs, logits_after
from tests.drafting.heads.eagle_reference import Floats, eagle_logits
from tests.drafting.heads.random_heads import dflash_tensors, eagle_tensors, random_dflash, random_eagle
from tests.marks import rest_slow
from tests.tiny import plain_spec, random_weights

TARGET = plain_spec(num_layers=5, vocab_size=23, rope=RopeSpec(theta=100.0), qkv_bias=False, qk_norm=False,
                    out_bias=False, mlp_bias=False)  # fmt: skip
CLOSE = 1e-3  # of logits in float32


def target_network(spec: ModelSpec = TARGET) -> Network:
    weights = random_weights(spec, torch.Generator().manual_seed(1), dtype=torch.float32)
    return read_network(spec, LoadedWeights(weights)).requires_grad_(False)


def random_text(rng: random.Random, length: int) -> WrittenText:
    return WrittenText(
        token_ids=torch.tensor([rng.randrange(TARGET.vocab_size) for _ in range(length)], dtype=torch.int32),
        num_given=2,
        top_ids=torch.tensor([rng.sample(range(TARGET.vocab_size), 4) for _ in range(length)], dtype=torch.int32),
        top_log_probs=torch.full((length, 4), 0.25).log().half(),
    )


class Rows:
    """What a trainer computes for two texts of different lengths, before the loss."""

    def __init__(self, spec: HeadSpec, weights: dict[str, Tensor]) -> None:
        target = target_network()
        rng = random.Random(3)
        self.texts = [random_text(rng, 14), random_text(rng, 9)]
        num_columns = spec.body.vocab_size
        vocabulary = VocabularyMap.of_equal_ids(num_target=TARGET.vocab_size, num_draft=num_columns)
        head = HeadNetwork(spec, {name: value.float() for name, value in weights.items()})
        kind = "eagle3" if isinstance(spec, EagleSpec) else "dflash"
        trainer = TRAINABLE[kind].trainer(head, vocabulary, target, device="cpu")
        ids, is_learnt = trainer._pad(self.texts)
        self.features = target.features(ids, spec.taps(TARGET.num_layers))
        with torch.no_grad():
            logits, places = trainer.rows(ids, is_learnt, self.features)
        self.logits = logits.numpy()
        self.places = places.tolist()
        self.arrays: dict[str, Floats] = {name: value.double().numpy() for name, value in weights.items()}
        self.arrays |= {"embed_tokens.weight": self.arrays.get("embed_tokens.weight", target.table.double().numpy())}
        self.arrays |= {"lm_head.weight": self.arrays.get("lm_head.weight", target.output.double().numpy())}

    def features_of(self, text: int, stop: int) -> dict[int, Floats]:
        return {place: self.features[text, place].double().numpy() for place in range(stop)}


@pytest.mark.parametrize("seed", rest_slow(range(3), 1))
def test_an_eagle3_head_learns_at_every_step_what_it_will_draft(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_trainer, "fastest_dtype", lambda _: torch.float32)
    spec = random_eagle(random.Random(seed), TARGET)
    found = Rows(spec, eagle_tensors(spec, TARGET, seed))
    steps = dict.fromkeys(range(eagle_head.NUM_STEPS), 0)
    for row, (number, place) in zip(found.logits, found.places, strict=True):
        ids = found.texts[number].token_ids.tolist()
        assert found.texts[number].first_row <= place < len(ids)
        distances = []
        for step in steps:
            text = ids[: place + 1 - step]
            drafted = ids[place + 1 - step : place + 1]
            if len(text) > 1:
                features = found.features_of(number, len(text) - 1)
                expected = eagle_logits(spec, found.arrays, text, features, drafted)
                distances.append(np.abs(row - expected).max() / max(1.0, np.abs(expected).max()))
        assert min(distances) < CLOSE
        steps[int(np.argmin(distances))] += 1
    assert min(steps.values()) > 0


@pytest.mark.parametrize("seed", range(3))
def test_a_dflash_head_learns_the_tokens_behind_any_token(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_trainer, "fastest_dtype", lambda _: torch.float32)
    plain = {"pair_rank": 0, "num_pairs": 0, "markov_rank": 0, "drafts_from_root": False}
    spec = random_dflash(random.Random(seed), TARGET, **plain, block_size=4)
    spec = replace(spec, windows=(None,) * spec.body.num_layers, is_causal=(False,) * spec.body.num_layers)
    found = Rows(spec, dflash_tensors(spec, TARGET, seed))
    assert len(found.logits) > 0
    for row, (number, place) in zip(found.logits, found.places, strict=True):
        ids = found.texts[number].token_ids.tolist()
        distances = []
        for depth in range(spec.block_size - 1):
            if (root := place - depth) >= 1:
                outputs = dflash_outputs(spec, found.arrays, ids[root], root, found.features_of(number, root))
                expected = logits_after(spec, found.arrays, outputs, depth, ids[place])
                distances.append(np.abs(row - expected).max() / max(1.0, np.abs(expected).max()))
        assert min(distances) < CLOSE


@pytest.mark.parametrize(
    ("most_bytes", "num_computed"), [(2**20, [2, 1]), (1, [2, 1, 1]), (0, [2, 1, 2, 1])], ids=["all", "two", "none"]
)
def test_the_targets_features_are_computed_once_while_there_is_room(
    monkeypatch: pytest.MonkeyPatch, most_bytes: int, num_computed: list[int]
) -> None:
    monkeypatch.setattr(head_trainer, "KEPT_BYTES", most_bytes)
    spec = random_eagle(random.Random(0), TARGET)
    target = target_network()
    rng = random.Random(3)
    computed = list[int]()
    monkeypatch.setattr(
        target, "features", lambda ids, taps: [computed.append(len(ids)), Network.features(target, ids, taps)][1]
    )
    vocabulary = VocabularyMap.of_equal_ids(num_target=TARGET.vocab_size, num_draft=spec.body.vocab_size)
    head = HeadNetwork(spec, {name: value.float() for name, value in eagle_tensors(spec, TARGET, 0).items()})
    trainer = eagle_head.EagleTrainer(head, vocabulary, target, device="cpu")
    one, two, three = (random_text(rng, length) for length in (14, 9, 11))
    for texts in ([one, two], [three], [two, three], [one]):
        ids, _ = trainer._pad(texts)
        features = trainer._features(texts, ids)
        for text, found in zip(texts, features, strict=True):
            alone = Network.features(target, text.token_ids[None].long(), trainer._taps)[0]
            assert torch.allclose(found[: len(alone)], alone, atol=1e-5)
    assert computed == num_computed


def new_trainer(kind: DraftKind) -> HeadTrainer:
    vocabulary = VocabularyMap.of_equal_ids(num_target=TARGET.vocab_size, num_draft=TARGET.vocab_size)
    head = TRAINABLE[kind]
    spec = choose_head(TARGET, head, vocabulary, torch.arange(TARGET.vocab_size) + 1.0, None)
    weights = initial_head(head, spec, target_network().weights, TARGET.num_layers, vocabulary, 0)
    return head.trainer(HeadNetwork(spec, weights), vocabulary, target_network(), device="cpu")


def test_large_scores_are_not_held_for_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [random_text(random.Random(1), length) for length in (120, 119, 118)]
    held = list[int]()
    gradients = list[list[Tensor]]()
    for most_bytes in (2**30, 2**18):
        monkeypatch.setattr(eagle_head, "HELD_BYTES", most_bytes)
        trainer = new_trainer("eagle3")
        sizes = dict[int, int]()

        def note(saved: Tensor, sizes: dict[int, int] = sizes) -> Tensor:
            sizes[saved.untyped_storage().data_ptr()] = saved.untyped_storage().nbytes()
            return saved

        with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
            log_probs, _ = trainer._recall(texts)
        held.append(sum(sizes.values()))
        gradients.append(list(torch.autograd.grad(log_probs.square().mean(), list(trainer.network.parameters()))))
    assert held[1] < held[0] / 3
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(*gradients, strict=True))


def test_the_rows_learnt_from_grow_with_the_tokens_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [random_text(random.Random(1), 120) for _ in range(60)]
    num_rows = []
    for num_tokens in (1024, 8192):
        monkeypatch.setattr(trainer_module, "LEAST_TOKENS", num_tokens)
        num_rows.append(len(new_trainer("eagle3")._recall(texts)[0]))
    assert num_rows[0] == pytest.approx(1024, abs=eagle_head.NUM_STEPS)
    assert num_rows[1] == pytest.approx(3072, abs=eagle_head.NUM_STEPS)


def test_a_head_learns_to_draft_one_token_up_to_all_and_three_on_average() -> None:
    trainer = new_trainer("eagle3")
    assert isinstance(trainer, eagle_head.EagleTrainer)
    drawn = [trainer._draw_steps() for _ in range(1000)]
    assert set(drawn) == set(range(1, eagle_head.NUM_STEPS + 1))
    assert sum(drawn) / len(drawn) == pytest.approx(3.36, abs=0.15)


@pytest.mark.parametrize("kind", TRAINABLE)
def test_a_new_head_has_the_shape_of_its_target(kind: DraftKind) -> None:
    trainer = new_trainer(kind)
    assert isinstance(trainer.network.spec, EagleSpec if kind == "eagle3" else DFlashSpec)
    texts = [random_text(random.Random(1), 20)]
    first = trainer.step(texts, 0.1)
    for _ in range(20):
        last = trainer.step(texts, 0.1)
    assert last < first


@pytest.mark.parametrize("lengths", [(1,), (1, 1), (2,), (3, 2), (1, 9)])
@pytest.mark.parametrize("kind", TRAINABLE)
def test_a_head_reads_texts_of_a_few_tokens(kind: DraftKind, lengths: tuple[int, ...]) -> None:
    trainer = new_trainer(kind)
    rng = random.Random(1)
    texts = [replace(random_text(rng, length), num_given=1) for length in lengths]
    losses = [trainer.score(texts).loss, trainer.step(texts, 0.1), trainer.score(texts).loss]
    assert all(map(isfinite, losses))
    assert all(weight.isfinite().all() for weight in trainer.network.weights.values())


def test_features_come_from_three_layers_of_any_target() -> None:
    assert spread(32) == (2, 16, 29)
    assert spread(5) == (2, 3, 4)
    shallow = replace(TARGET, num_layers=3)
    vocabulary = VocabularyMap.of_equal_ids(num_target=23, num_draft=23)
    with pytest.raises(ConfigError, match="has 3"):
        choose_head(shallow, TRAINABLE["eagle3"], vocabulary, torch.ones(23), None)
    with pytest.raises(ConfigError, match="this target has a tanh-GELU gate"):
        choose_head(replace(TARGET, gate="gelu_tanh"), TRAINABLE["eagle3"], vocabulary, torch.ones(23), None)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TRAINABLE)
def test_a_short_run_leaves_a_head_that_drafts(kind: DraftKind, tmp_path: Path) -> None:
    engine = EngineConfig(target="builtin", num_threads=1, max_length=256)
    report = Distillation(DistillConfig(engine=engine, out=tmp_path / "head", time=40.0, kind=kind)).run(lambda _: None)
    stored = find_head(open_source(str(tmp_path / "head")))
    assert stored is not None
    assert all(worth.num_identical == worth.num_texts for worth in report.worth)
    assert report.worth[0].tokens_per_round > 1.2


def test_every_kind_of_draft_that_can_be_asked_for_can_be_made() -> None:
    assert {"model", *TRAINABLE} == set(get_args(DraftKind))
    engine = EngineConfig(target="builtin")
    for kind, settings, message in (
        ("eagle3", {"layers": 2}, "layers 2 of an EAGLE-3 head must be 1"),
        ("dflash", {"vocab_size": 9}, "vocab_size 9 must be left out: a DFlash head has all of its target's tokens"),
    ):
        with pytest.raises(ConfigError, match=message):
            Distillation(DistillConfig(engine=engine, out=Path("new"), time=40.0, kind=kind, **settings))
