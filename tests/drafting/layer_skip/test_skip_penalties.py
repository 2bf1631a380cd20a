"""Penalties learnt from hits."""

import numpy as np
import pytest

from forerun.core.sublayers import ATTENTION, MLP, NOTHING, SkipSet, skippable
from forerun.drafting.layer_skip.skip_penalties import PenaltyModel, sigmoid
from tests.drafting.layer_skip.estimates import estimate as estimate_by
from tests.drafting.layer_skip.skip_emulator import NUM_LAYERS, cnn_dm, random_set


def trained(seed: int, num_sets: int, num_rows: int = 32) -> PenaltyModel:
    model = PenaltyModel(NUM_LAYERS)
    emulator = cnn_dm(seed)
    rng = np.random.default_rng(seed)
    for _ in range(num_sets):
        skipped = random_set(rng, int(rng.integers(10, 50)))
        model.told(skipped, emulator.score(skipped, num_rows, rng), num_rows)
    return model


def test_before_any_evidence_the_outer_layers_are_feared_and_the_whole_model_is_trusted() -> None:
    model = PenaltyModel(12)
    by_layer = dict(zip(skippable(12), model.penalties.tolist(), strict=True))
    for kind in (ATTENTION, MLP):
        assert by_layer[1, kind] == pytest.approx(by_layer[10, kind])
        assert by_layer[1, kind] > 1.3 * by_layer[5, kind]
    assert estimate_by(model, NOTHING).chance > 0.97
    half = [estimate_by(PenaltyModel(layers), frozenset(skippable(layers)[::2])).chance for layers in (12, 40, 80)]
    assert half == pytest.approx([half[0]] * 3, abs=0.08), "a half is a half, however many layers there are"


def test_a_rank_one_update_is_the_normal_posterior_at_its_mode() -> None:
    """Against the whole posterior, by Newton's method over all items."""
    model = PenaltyModel(6)
    reference = PenaltyModel(6)
    skipped = frozenset(skippable(6)[1:5])
    row = reference.features(skipped)
    prior_mean = np.concatenate(([reference.intercept], reference.penalties))
    precision = np.diag(reference._prior_precision)
    theta = prior_mean.copy()
    for _ in range(50):
        chance = sigmoid(float(row @ theta))
        hessian = precision + 8 * chance * (1 - chance) * np.outer(row, row)
        theta = theta + np.linalg.solve(hessian, row * (2 - 8 * chance) - precision @ (theta - prior_mean))
    model.told(skipped, 2, 8)
    assert np.concatenate(([model.intercept], model.penalties)) == pytest.approx(theta, abs=1e-6)
    assert model._covariance == pytest.approx(np.linalg.inv(hessian), abs=1e-6)


def test_harmful_sublayers_are_found() -> None:
    emulator = cnn_dm(3)
    model = trained(3, 400)
    assert np.corrcoef(emulator.penalties, model.penalties)[0, 1] > 0.75
    prior = PenaltyModel(NUM_LAYERS).penalties
    assert np.corrcoef(emulator.penalties, prior)[0, 1] < 0.6, "the prior alone does not do it"


def difference(left: PenaltyModel, right: PenaltyModel, skipped: SkipSet) -> float:
    return abs(estimate_by(left, skipped).logit - estimate_by(right, skipped).logit)


def test_forgetting_leads_back_to_what_was_believed_before() -> None:
    fresh = PenaltyModel(NUM_LAYERS)
    model = trained(4, 100)
    skipped = random_set(np.random.default_rng(0))
    learnt = difference(model, fresh, skipped)
    deviations = [estimate_by(model, skipped).deviation]
    model.forget(0.0)
    assert difference(model, fresh, skipped) == pytest.approx(learnt, abs=1e-6)
    for share in (0.5, 0.9, 1.0):
        model.forget(share)
        deviations.append(estimate_by(model, skipped).deviation)
    assert deviations == sorted(deviations)
    assert difference(model, fresh, skipped) == pytest.approx(0.0, abs=1e-6) != learnt
    assert estimate_by(model, skipped).deviation == pytest.approx(estimate_by(fresh, skipped).deviation, abs=1e-6)
