"""Adaptive widths: the simulated drafter decides as the real one, which is put into virtual time for that."""

import random

import pytest
import torch

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import DraftModel, Parallel
from forerun.core.pace import Pace, read_device
from forerun.decoding.decoder import Round
from forerun.decoding.drafters import Drafters
from forerun.drafting import draft_model as module
from forerun.drafting.draft_model import DraftModelDrafter
from forerun.drafting.policies import Policies, TreePolicy
from forerun.model.vocabulary_map import VocabularyMap
from forerun.speculation.referee.referee import DraftTurn, Referee
from forerun_lab.bench.run.draft_traces import guesses
from forerun_lab.planner.simulate import CHOOSING, Costs, simulate
from forerun_lab.planner.trace import AnswerTrace
from tests.planner.fake_time import charge, rule_time
from tests.planner.paces import costs, flat, known_answer
from tests.tiny import Weights, decode_rounds, plain_spec, random_weights, tiny_runner
from tests.varied import NO_LOOKUP

SPEC = plain_spec(num_layers=1, hidden_size=32, vocab_size=32, tied_embeddings=False, head_dim=4)
PARAMS = SamplingParams(temperature=1.0, seed=5)
POLICIES = Policies(tree=TreePolicy(num_children=2, looks_up=False, knows_noise=False))
NUM_TOKENS = 90
IMPOSSIBLE = -1e5  # as a logit: its share of the sum is 0, whatever the order of adding


def equally_sure(chances: tuple[float, ...]) -> Weights:
    """A model whose distribution after every token is the same but for names: rank r is the token r places on.

    The layers add nothing, the embedding tells tokens apart, and the head turns what it says by the token.
    """
    weights = random_weights(SPEC, torch.Generator().manual_seed(0))
    size = SPEC.vocab_size
    for name, weight in weights.items():
        if weight.ndim == 2 or name.endswith("bias"):
            weights[name] = torch.zeros_like(weight)
        else:
            weights[name] = torch.ones_like(weight)
    weights["embedding.weight"] = torch.eye(size, dtype=torch.float64)
    logits = torch.full((size,), IMPOSSIBLE, dtype=torch.float64)
    logits[: len(chances)] = torch.tensor(chances, dtype=torch.float64).log()
    turned = torch.stack([logits.roll(token) for token in range(size)], dim=1)
    weights["head.weight"] = turned / size**0.5
    return weights


def really(config: DraftModel, times: Costs, patch: pytest.MonkeyPatch) -> tuple[AnswerTrace, list[Round], int]:
    """The real drafter on such a pair: its text as a trace, its rounds, its passes."""
    clock = rule_time(patch)
    target = tiny_runner(SPEC, equally_sure((0.5, 0.3, 0.15, 0.05)))
    draft = equally_sure((0.75, 0.25))
    runner = tiny_runner(SPEC, draft)
    draft_model = DraftModelDrafter(runner, config, POLICIES.tree, target_vocab_size=SPEC.vocab_size)
    patch.setattr(module, "measure_pace", lambda runner, widths: times.draft_pace)
    patch.setattr(module, "measure_reading", lambda runner: times.draft_pace)
    drafter = Drafters({"draft": draft_model}, is_adaptive=True)
    drafter.calibrate(lambda widths, *, budget_s=0.0: times.target)
    choosing_s = CHOOSING * times.serial_overhead_s
    charge(target, lambda rows: clock.spend(times.target.step_s(rows) + choosing_s))
    passes = charge(runner, lambda rows: clock.spend(times.expansion_s(rows)))
    prompt = [random.Random(1).randrange(SPEC.vocab_size) for _ in range(12)]
    rounds = decode_rounds(target, drafter, prompt, PARAMS, seed=5, num_tokens=NUM_TOKENS)
    token_ids = [token for step in rounds for token in step.token_ids]
    vocabulary = VocabularyMap.of_equal_ids(num_target=SPEC.vocab_size, num_draft=SPEC.vocab_size)
    children, log_probs = guesses(tiny_runner(SPEC, draft), prompt, token_ids, PARAMS, None, vocabulary)
    trace = AnswerTrace(prompt_ids=tuple(prompt), token_ids=tuple(token_ids), children=children, log_probs=log_probs)
    return trace, rounds, len(passes)


@pytest.mark.parametrize("target", ["10ms@2,10.5ms@4,13ms@8,20ms@16", "10ms@8,13ms@16", "10ms@1,15ms@3,40ms@9"])
@pytest.mark.parametrize(("draft_ms", "overhead_ms"), [(0.2, 0.0), (1.0, 0.4), (1.0, 5.0), (4.0, 0.4)])
def test_a_pair_that_is_equally_sure_everywhere_takes_exactly_the_simulated_rounds(
    monkeypatch: pytest.MonkeyPatch, target: str, draft_ms: float, overhead_ms: float
) -> None:
    """Guesses behind a wrong one are as sure as those borrowed for them, so nothing is left to the simulation.

    Whether drafting pays at all is judged by the last digits of times here, and left out.
    """
    always = DraftTurn(drafter="draft", max_rows=9)
    monkeypatch.setattr(Referee, "_next_turn", lambda referee: always)
    pace = read_device(f"paced:target={target}").target
    assert pace is not None
    overhead_s = 1e-3 * overhead_ms
    times = Costs(
        target=pace, draft=flat(draft_ms), serial_overhead_s=2 * overhead_s, expansion_overhead_s=overhead_s
    )  # fmt: skip
    config = DraftModel(verify_width=9, draft_width=3, depth=5)
    trace, rounds, num_passes = really(config, times, monkeypatch)
    (answer,) = simulate([trace], config, times, POLICIES).answers
    stats = [step.stats for step in rounds]
    assert (answer.num_rounds, answer.num_expansions) == (len(rounds), num_passes)
    assert answer.num_accepted == sum(item.num_accepted for item in stats) > 20
    real_s = sum(item.draft_s + item.verify_s for item in stats)
    assert answer.decode_s == pytest.approx(real_s + len(rounds) * (1.0 - CHOOSING) * times.serial_overhead_s)


def test_a_parallel_drafter_may_choose_how_many_rows_to_verify() -> None:
    fixed, adaptive = (Parallel(draft=DraftModel(adaptive=choice)) for choice in (False, True))
    steep = Costs(target=Pace(steps=tuple((rows, 5e-3 + 5e-3 * rows) for rows in range(1, 17))), draft=flat(2.0))
    unsure = [known_answer(60, is_right=False)]
    assert (
        simulate(unsure, adaptive, steep, NO_LOOKUP).round_s < 0.75 * simulate(unsure, fixed, steep, NO_LOOKUP).round_s
    )
    sure = [known_answer(60)]
    assert simulate(sure, adaptive, costs(10.0, 2.0), NO_LOOKUP) == simulate(sure, fixed, costs(10.0, 2.0), NO_LOOKUP)
