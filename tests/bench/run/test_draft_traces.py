"""Recorded guesses are those the drafter itself would make."""

import random
from contextlib import closing

import pytest
import torch

from forerun.bench.run.draft_traces import NUM_CHILDREN, Recorder, Teacher
from forerun.core.config import EngineConfig, SamplingParams
from forerun.core.errors import VocabularyError
from forerun.drafting.draft_rows import OwnRows
from forerun.drafting.draft_tree import DraftTree
from forerun.drafting.guessed_tree import GuessedTree
from forerun.drafting.tree_policy import TreePolicy
from forerun.model.runner import Runner
from forerun.model.vocabulary_map import VocabularyMap
from forerun.sampling.noise import KeyedNoise
from tests.drafting.mapped import random_map
from tests.tiny import plain_spec, random_weights, tiny_runner

PROMPT, ANSWER = [3, 1, 4, 1, 5], [9, 2, 6, 5, 3, 5, 8, 9]
EQUAL = VocabularyMap.of_equal_ids(num_target=29, num_draft=29)


def runner_of(vocab_size: int) -> Runner:
    spec = plain_spec(vocab_size=vocab_size)
    return tiny_runner(spec, random_weights(spec, torch.Generator().manual_seed(1)))


def drafted(
    runner: Runner, params: SamplingParams, noise: KeyedNoise | None, vocabulary: VocabularyMap
) -> list[dict[int, float]]:
    """The children of the root in a drafter's own tree, with the text committed token by token."""
    policy = TreePolicy(num_children=NUM_CHILDREN, looks_up=False)
    guessed = GuessedTree(policy, verify_width=64, draft_width=8, horizon=64)
    tree = DraftTree(
        guessed, OwnRows(runner, max_rows=64), target_vocab_size=len(vocabulary.draft_ids), vocabulary=vocabulary
    )
    tree.begin(PROMPT, params, noise)
    found = []
    for token_id in ANSWER:
        tree.expand()
        found.append({token: tree.tree.log_probs[node] for token, node in tree.tree.children(0).items()})
        tree.advance([token_id])
    return found


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=1.0, seed=5),
        SamplingParams(temperature=0.7, top_p=0.9, repetition_penalty=1.3, presence_penalty=0.5, seed=5),
    ],
)
@pytest.mark.parametrize("vocabulary", [EQUAL, random_map(random.Random(2), 40, num_draft=29)])
def test_the_guesses_are_those_of_a_draft_tree_at_every_place(
    params: SamplingParams, vocabulary: VocabularyMap
) -> None:
    noise = None if params.is_greedy else KeyedNoise(5, len(vocabulary.draft_ids))
    expected = drafted(runner_of(29), params, noise, vocabulary)
    teacher = Teacher(runner=runner_of(29), params=params, noise=noise, vocabulary=vocabulary)
    children, log_probs = teacher.guesses(PROMPT, ANSWER)
    for ids, values, wanted in zip(children, log_probs, expected, strict=True):
        possible = {token: value for token, value in zip(ids, values, strict=True) if value > float("-inf")}
        assert list(possible) == list(wanted)
        assert list(possible.values()) == pytest.approx(list(wanted.values()), abs=1e-5)


def test_the_built_in_pair_is_recorded() -> None:
    params = SamplingParams(max_new_tokens=12, temperature=1.0, seed=4, ignore_eos=True)
    done: list[int] = []
    with closing(Recorder(EngineConfig(num_threads=1), "builtin-draft")) as recorder:
        traces = list(recorder.record(["def add(left, right):", "class Point:"], params, done.append))
        own = recorder.engine.generate("class Point:", params)
    assert done == [1, 2]
    assert traces[1].token_ids == own.token_ids
    assert (traces[0].temperature, traces[0].seed) == (1.0, 4)
    num_right = sum(
        token_id in ids for trace in traces for token_id, ids in zip(trace.token_ids, trace.children, strict=True)
    )
    assert num_right > 12, "eight guesses of a trained draft cover most of the target's choices"


def test_a_pair_without_common_tokens_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise VocabularyError("they differ")

    monkeypatch.setattr("forerun.bench.run.draft_traces.require_match", refuse)
    with pytest.raises(VocabularyError):
        Recorder(EngineConfig(num_threads=1), "builtin-draft")
