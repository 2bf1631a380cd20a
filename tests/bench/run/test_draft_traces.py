"""Recorded guesses are those the drafter itself would make."""

import random
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import pytest
import torch

from forerun.core.config import EngineConfig, SamplingParams
from forerun.core.drafter_config import WITHOUT_MODEL, LayerSkip
from forerun.core.errors import VocabularyError
from forerun.drafting.draft_rows import OwnRows
from forerun.drafting.draft_tree import DraftTree
from forerun.drafting.guessed_tree import GuessedTree
from forerun.drafting.policies import Policies, TreePolicy
from forerun.engine.engine import Engine
from forerun.model.runner import Runner
from forerun.model.vocabulary_map import VocabularyMap
from forerun.sampling.noise import KeyedNoise
from forerun_lab.bench.run.draft_traces import NUM_CHILDREN, Recorder, guesses
from forerun_lab.planner.trace import LAYER_SKIP, RECORDED, AnswerTrace
from tests.drafting.mapped import random_map
from tests.tiny import plain_spec, random_weights, tiny_runner

PROMPT = [3, 1, 4, 1, 5]
ANSWER = [9, 2, 6, 5, 3, 5, 8, 9]
CODE = ["def add(left, right):", "class Point:", "def add(left, right):"]
SAMPLED = SamplingParams(max_new_tokens=40, temperature=0.7, seed=4, ignore_eos=True)
WITHOUT_LOOKUP = Policies(tree=TreePolicy(looks_up=False))
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
    tree.reset(PROMPT, params, noise)
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
    children, log_probs = guesses(runner_of(29), PROMPT, ANSWER, params, noise, vocabulary)
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


def in_sequence(accepted: Sequence[int]) -> list[int]:
    """The places at which rounds in sequence begin."""
    places = []
    place = 0
    while place < len(accepted):
        places.append(place)
        place += accepted[place] + 1
    return places


@pytest.fixture(scope="module", params=[replace(SAMPLED, temperature=0.0), SAMPLED], ids=["greedy", "sampled"])
def recorded(request: pytest.FixtureRequest) -> tuple[SamplingParams, list[AnswerTrace]]:
    """What the other drafters would have guessed in three answers; recycling without lookup."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("forerun_lab.bench.run.draft_traces.BEST", WITHOUT_LOOKUP)
        with closing(Recorder(EngineConfig(num_threads=1), None, RECORDED[1:])) as recorder:
            return request.param, list(recorder.record(CODE, request.param))


@pytest.mark.parametrize("name", list(WITHOUT_MODEL))
def test_rounds_in_sequence_are_those_that_the_drafter_plays(
    recorded: tuple[SamplingParams, list[AnswerTrace]], name: str
) -> None:
    params, traces = recorded
    config = EngineConfig(num_threads=1, drafter=WITHOUT_MODEL[name])
    with Engine(config, policies=WITHOUT_LOOKUP) as engine:
        for text, trace in zip(CODE, traces, strict=True):
            steps = list(engine.stream(text, params, owner="of this test"))  # whose table of successors is empty
            assert trace.token_ids == tuple(token for step in steps for token in step.token_ids)
            ends = [sum(len(step.token_ids) for step in steps[:end]) for end in range(len(steps))]
            assert in_sequence(trace.accepted[name]) == ends
            assert max(trace.accepted[name]) > 0
    assert not any(any(trace.children) for trace in traces)


def test_guesses_with_layers_skipped_are_those_that_layer_skip_drafts(
    recorded: tuple[SamplingParams, list[AnswerTrace]],
) -> None:
    params, traces = recorded
    num_seen = 0
    with Engine(EngineConfig(num_threads=1, drafter=LayerSkip(search="off", adaptive=False))) as engine:
        for text, trace in zip(CODE, traces, strict=True):
            place = 0
            for step in engine.stream(text, params):
                tree = step.stats.tree
                guesses = trace.skip_children[place]
                assert len(guesses) == NUM_CHILDREN
                if tree is not None:
                    first = [
                        token for token, parent in zip(tree.token_ids, tree.parents, strict=True) if parent == 0
                    ]  # fmt: skip
                    assert set(first) - set(tree.chain[:1]) <= set(guesses)
                    num_seen += first[0] == guesses[0]
                place += len(step.token_ids)
    assert num_seen > 10


@pytest.mark.parametrize("others", [RECORDED[1:], ["recycling"]], ids=["all", "recycling"])
def test_proposals_have_room_at_the_end_of_the_context(others: Sequence[str]) -> None:
    config = EngineConfig(num_threads=1, max_length=40)
    with closing(Recorder(config, None, others)) as recorder:
        prompt_ids = recorder.engine.encode(CODE[0])
        params = SamplingParams(max_new_tokens=40 - len(prompt_ids), ignore_eos=True)
        trace = next(recorder.record([prompt_ids], params))
    assert len(trace.accepted["recycling"]) == len(trace.token_ids) == params.max_new_tokens


def test_without_others_the_target_has_no_drafter() -> None:
    with closing(Recorder(EngineConfig(num_threads=1), "builtin-draft")) as recorder:
        trace = next(recorder.record(CODE[:1], SamplingParams(max_new_tokens=4)))
        assert recorder.engine.drafting.verify_width == 1
    assert (trace.skip_children, trace.skip_log_probs, trace.accepted) == ((), (), {})
    assert LAYER_SKIP not in trace.to_json()


def test_a_pair_without_common_tokens_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise VocabularyError("they differ")

    monkeypatch.setattr("forerun_lab.bench.run.draft_traces.require_match", refuse)
    with pytest.raises(VocabularyError):
        Recorder(EngineConfig(num_threads=1), "builtin-draft")
