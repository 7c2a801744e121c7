"""Intervals by the rows that members left out, against loops over rows and folds."""

import math

import numpy as np
import pytest
import torch
from sklearn.utils import check_random_state

from bayesadam.sklearn import BayesianMLPRegressor, load_estimator
from bayesadam.tables.estimators.companions import companions
from bayesadam.tables.estimators.conformal import LeftOutScores, cross_intervals
from bayesadam.tables.estimators.ensemble import _member_moments
from bayesadam.tables.estimators.plan import plan
from bayesadam.tables.estimators.rows import TrainingRows, as_array

TINY = {"members": 4, "hidden": (8,), "epochs": 60, "mc_samples": 4, "random_state": 0}


def planned(rows):
    return plan(rows, 4, np.arange(rows), int(check_random_state(0).randint(2**31 - 1)))


def by_members(rows):
    """Which of four members left out each fold of rows, and the fold of each row."""
    pairs, folds = np.unique(planned(rows).left_out.T, axis=0, return_inverse=True)
    return pairs, folds.reshape(-1)


@pytest.fixture(scope="module")
def regressor(curve):
    return BayesianMLPRegressor("ensemble", target_transform="none", **TINY).fit(*curve)


def test_cross_intervals_are_those_of_the_members_that_left_rows_out(regressor, curve):
    """CV+ (Barber et al. 2021, eq. 3.2)."""
    x, y = curve
    pairs, folds = by_members(len(x))
    standardised = regressor._inputs(x)
    means = np.stack([_member_moments(regressor._predictions(standardised, member))[0, :, 0] for member in range(4)])
    share, *weights = regressor.calibration_["weights"][:, 0]
    assert sum(weights) > 0.05
    values = (y - regressor._y_mean) / regressor._y_std
    targets = torch.from_numpy(values[:, None])
    parts = companions(TrainingRows(standardised, targets, np.ones(len(x)), planned(len(x))))
    seen = [part.outputs(as_array(standardised)) for part in regressor._companions]

    def of_folds(complements):
        """Of the weighted sums of all members and their companions, in the units of the targets."""
        sums = share * means + sum(weight * own[:, 0] for weight, own in zip(weights, complements, strict=True))
        sums = regressor._y_mean + regressor._y_std * sums
        return np.stack([sums[pair].mean(0) for pair in pairs])

    outputs = [part.outputs(as_array(standardised)) for part, _ in parts]
    kept = [parts[[np.allclose(own, other, atol=1e-3) for other in outputs].index(True)][1] for own in seen]
    errors = np.abs(y - of_folds(kept)[folds, np.arange(len(x))])
    models = of_folds(seen)
    rank = math.ceil(0.9 * (len(x) + 1))
    expected = [
        [np.sort(models[folds, row] - errors)[len(x) - rank], np.sort(models[folds, row] + errors)[rank - 1]]
        for row in range(len(x))
    ]
    np.testing.assert_allclose(regressor.predict_interval(x, 0.9, method="cross"), expected, rtol=1e-4)


def test_files_keep_them(regressor, curve, tmp_path):
    regressor.save(tmp_path)
    found, expected = (
        model.predict_interval(curve[0], 0.9, method="cross") for model in (load_estimator(tmp_path), regressor)
    )
    np.testing.assert_array_equal(found, expected)


def test_rows_count_by_their_weights():
    """Against a loop, and nearly without the rows of little weight; equal weights give ranks."""
    generator = torch.Generator().manual_seed(0)
    errors, folds = torch.rand(60, 1, generator=generator, dtype=torch.float64), torch.arange(60) % 3
    centers = torch.randn(3, 5, 1, generator=generator, dtype=torch.float64)
    weights = torch.rand(60, generator=generator, dtype=torch.float64)
    needed = 0.8 * (weights.sum() + 1.0)
    for row, (low, high) in enumerate(zip(*cross_intervals(errors, folds, weights, centers, 0.8), strict=True)):
        for end, sign in ((low, -1), (high, 1)):
            ends = sign * centers[folds, row, 0] + errors[:, 0]
            enough = [float(e) for e in ends if weights[ends <= e].sum() >= needed]
            assert sign * end.item() == pytest.approx(min(enough))
    light = cross_intervals(errors, folds, torch.tensor([1e-9, 1.0]).double().repeat_interleave(30), centers, 0.9)
    for tiny, without in zip(
        light, cross_intervals(errors[30:], folds[30:], torch.ones(30), centers, 0.9), strict=True
    ):
        assert torch.equal(tiny, without)
    equal = cross_intervals(errors, folds, torch.ones(60).double(), centers, 0.8)[1]
    assert torch.equal(equal[0], (centers[folds, 0] + errors).sort(0).values[math.ceil(0.8 * 61) - 1])


def test_equal_rows_of_a_group_count_as_one():
    generator = torch.Generator().manual_seed(0)
    errors, folds = torch.rand(60, 1, generator=generator, dtype=torch.float64), torch.arange(60) % 3
    centers = torch.randn(3, 5, 1, generator=generator, dtype=torch.float64)
    expected = cross_intervals(errors, folds, torch.ones(60).double(), centers, 0.8)
    rows = errors.repeat_interleave(6, 0), folds.repeat_interleave(6), torch.full((360,), 1 / 6).double()
    for found, end in zip(cross_intervals(*rows, centers, 0.8), expected, strict=True):
        assert torch.equal(found, end)
    with pytest.raises(ValueError, match="with 60 independent rows"):
        cross_intervals(*rows, centers, 0.99)


def test_the_weights_are_those_of_the_fit(curve):
    x, y = curve
    weight = np.linspace(0.5, 1.0, len(x))
    model = BayesianMLPRegressor("ensemble", **TINY).fit(x, y, 2.0 * weight)
    own = weight[model.left_out_[0]]
    np.testing.assert_allclose(model._left_out.weights, own * own.sum() / (own**2).sum())


class TestRecord:
    MASK = np.array([[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0]], dtype=bool)
    SCORES = LeftOutScores.of(MASK, np.arange(4.0)[:, None], np.ones(4))

    def test_rows_that_the_same_members_left_out_are_a_fold(self):
        assert self.SCORES.folds.tolist() == [3, 2, 1, 0]
        models = self.SCORES.models(np.array([[1.0], [2.0], [4.0]]))
        assert models[:, 0].tolist() == [2.0, 3.0, 1.0, 2.5]
