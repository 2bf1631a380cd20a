"""What a draft learns from: the loss, its vocabulary, its sizes, its first weights, and the state of its training."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from forerun.checkpoints.open import open_source
from forerun.model.vocabulary_map import VocabularyMap
from forerun_lab.distill.draft_shape import (
    candidate_drafts,
    choose_sizes,
    choose_vocabulary,
    count_tokens,
    draft_spec,
    enough_tokens,
    initial_weights,
)
from forerun_lab.distill.network import Network, read_network
from forerun_lab.distill.run_place import RunLog, SavedDraft
from forerun_lab.distill.text_store import TextStore
from forerun_lab.distill.trainer import Lesson, Trainer, cross_entropy, is_among, overlap
from forerun_lab.distill.training import Texts
from forerun_lab.distill.writer import WrittenText
from tests.golden.families import FAMILIES
from tests.tiny import plain_spec

EVEN = VocabularyMap(  # the draft has tokens 0, 2 and 4 of six
    target_ids=torch.tensor([0, 2, 4], dtype=torch.int32), draft_ids=torch.tensor([0, 0, 1, 1, 2, 2], dtype=torch.int32)
)


def text_of(ids: list[int], top_ids: list[list[int]], chances: list[list[float]], num_given: int = 0) -> WrittenText:
    return WrittenText(
        token_ids=torch.tensor(ids, dtype=torch.int32),
        num_given=num_given,
        top_ids=torch.tensor(top_ids, dtype=torch.int32),
        top_log_probs=torch.tensor(chances).log().half(),
    )


def test_the_loss_is_that_computed_by_hand() -> None:
    lesson = Lesson.of(torch.tensor([[2, 3], [4, 0]]), torch.tensor([[0.5, 0.25], [0.75, 0.125]]).log(), EVEN)
    log_probs = torch.tensor([[0.25, 0.5, 0.25], [0.5, 0.25, 0.25]]).log()
    by_hand = torch.tensor([-0.5 * log_probs[0, 1], -0.75 * log_probs[1, 2] - 0.125 * log_probs[1, 0]])
    torch.testing.assert_close(cross_entropy(log_probs, lesson), by_hand)
    torch.testing.assert_close(overlap(log_probs, lesson), torch.tensor([0.5, 0.25 + 0.125]))
    assert is_among(log_probs, lesson, 1).tolist() == [True, False]
    assert is_among(log_probs, lesson, 3).tolist() == [True, True]


def test_tokens_are_counted_after_the_given_ones_only() -> None:
    text = text_of([5, 1, 3], [[0, 0], [4, 2], [2, 1]], [[1.0, 1.0], [0.5, 0.25], [0.5, 0.5]], num_given=2)
    assert count_tokens([text], 6).tolist() == pytest.approx([0, 0.5, 0.75, 0, 0.5, 0], abs=1e-3)


def test_the_most_frequent_tokens_and_those_asked_for_are_the_drafts() -> None:
    counts = torch.tensor([9.0, 1.0, 8.0, 2.0, 0.0])
    embedding = torch.eye(5)
    embedding[3] = torch.tensor([0.1, 0, 1.0, 0, 0])
    chosen = choose_vocabulary(counts.double(), 3, [4], embedding)
    assert chosen.target_ids.tolist() == [0, 2, 4]
    assert chosen.draft_ids.tolist()[2:] == [1, 1, 2]
    assert choose_vocabulary(counts.double(), 1, [4, 1, 1], embedding).target_ids.tolist() == [1, 4]
    assert enough_tokens(counts.double()) == 5  # a small vocabulary is taken whole


@pytest.mark.parametrize("num_layers", [1, 2, 5])
@pytest.mark.parametrize("hidden_size", [48, 20, 12])
def test_drafts_of_targets_of_any_size_can_be_computed(num_layers: int, hidden_size: int) -> None:
    target = plain_spec(num_layers=num_layers, hidden_size=hidden_size, vocab_size=60)
    drafts = list(candidate_drafts(target, 31))
    assert drafts
    vocabulary = choose_vocabulary(torch.arange(60).double(), 31, [], torch.randn(60, hidden_size))
    weights = {"embedding.weight": torch.randn(60, hidden_size)}
    for draft in drafts:
        assert draft.hidden_size <= target.hidden_size
        network = Network(draft, initial_weights(target, weights, draft, vocabulary, seed=1))
        assert network.logits(network.hidden(torch.tensor([[1, 2, 3]]))).shape == (1, 3, 31)


def test_the_largest_draft_that_is_cheap_enough_is_taken() -> None:
    target = plain_spec(num_layers=6, hidden_size=256, head_dim=32)
    taken = choose_sizes(target, 10, lambda draft: float(draft.num_layers), 30.0)
    assert (taken.num_layers, taken.hidden_size) == (3, 256)
    assert choose_sizes(target, 10, lambda draft: 1.0, 1.0).hidden_size < 256


def test_a_draft_of_its_targets_width_begins_as_its_first_layers(tmp_path: Path) -> None:
    source = open_source(str(FAMILIES["llama_biased"].save(tmp_path).folder))
    target = read_network(source.spec(), source.weights(dtype=torch.float32)).requires_grad_(False)
    vocabulary = VocabularyMap.of_equal_ids(num_target=131, num_draft=131)
    spec = draft_spec(target.spec, 131, num_layers=3)
    draft = Network(spec, initial_weights(target.spec, target.weights, spec, vocabulary, seed=1))
    ids = torch.arange(20)[None]
    torch.testing.assert_close(draft.logits(draft.hidden(ids)), target.logits(target.hidden(ids)))


def some_trainer() -> Trainer:
    spec = plain_spec(vocab_size=3, tied_embeddings=False, qk_norm=False)
    weights = initial_weights(
        replace(spec, vocab_size=6), {"embedding.weight": torch.randn(6, spec.hidden_size)}, spec, EVEN, seed=1
    )
    return Trainer(Network(spec, weights), EVEN, device="cpu")


TEXTS = [text_of([2, 4, 0, 4], [[4, 2], [0, 2], [4, 2], [2, 0]], [[0.9, 0.1]] * 4)] * 3


def test_a_draft_learns_and_goes_on_after_it_was_saved_as_if_it_had_not_been(tmp_path: Path) -> None:
    saved = SavedDraft(tmp_path / "training.safetensors")
    trainer = some_trainer()
    before = trainer.score(TEXTS)
    for _ in range(20):
        trainer.step(TEXTS, 0.3)
    assert trainer.score(TEXTS).loss < before.loss
    saved.keep(trainer, 12.5)
    again, trained_s = saved.open("cpu")
    assert (trained_s, again.num_tokens) == (12.5, 20 * 12)
    assert again.step(TEXTS, 0.4) == trainer.step(TEXTS, 0.4)
    assert again.step(TEXTS, 0.4) == trainer.step(TEXTS, 0.4)


def test_the_log_forgets_what_came_after_the_last_saved_state_and_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = RunLog(tmp_path / "log.jsonl")
    for trained_s in (1.0, 2.0, 3.0):
        log.add(kind="step", trained_s=trained_s, loss=1.0)
    with path.open("a") as file:
        file.write('{"kind": "st')
    log.forget_after(2.0)
    log.add(kind="step", trained_s=2.5, loss=1.0)
    assert [line["trained_s"] for line in log.read()] == [1.0, 2.0, 2.5]


@pytest.mark.parametrize("num_questions", [1, 200])
def test_answers_to_a_question_are_all_learnt_from_or_none(num_questions: int, tmp_path: Path) -> None:
    store = TextStore(tmp_path)
    questions = [[number // 50, number % 50, *range(58)] for number in range(num_questions)]
    texts = [
        text_of([*ids, answer], [[1]] * 61, [[1.0]] * 61, num_given=60) for ids in questions for answer in range(3)
    ]
    store.add(texts, 1.0)
    found = Texts(store)
    held_out, learnt = (
        {tuple(text.token_ids[:60].tolist()) for text in group} for group in (found.held_out, found.learnt)
    )
    assert held_out
    assert learnt
    assert num_questions == 1 or not held_out & learnt
