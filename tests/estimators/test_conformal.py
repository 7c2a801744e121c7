import numpy as np
import pytest
import torch
from sklearn.utils import check_random_state

from bayesadam.sklearn import BayesianMLPRegressor, conformal, load_estimator
from bayesadam.sklearn.conformal import LeftOutScores, conformal_rank, cross_intervals
from bayesadam.sklearn.linear import ridge_parts
from bayesadam.sklearn.plan import plan

TINY = {"members": 4, "hidden": (8,), "epochs": 60, "mc_samples": 4, "random_state": 0}


def planned(rows):
    return plan(rows, 4, np.arange(rows), int(check_random_state(0).randint(2**31 - 1)))


def by_members(rows):
    """Which of four members left out each of the rows, ``(4, rows)``, and numbers of the pairs."""
    left_out = planned(rows).left_out
    pairs, folds = np.unique(left_out.T, axis=0, return_inverse=True)
    return pairs, torch.from_numpy(folds.reshape(-1))


@pytest.fixture(scope="module")
def regressor(curve):
    return BayesianMLPRegressor("ensemble", target_transform="none", **TINY).fit(*curve)


def cross_interval(left_out, target, folds, models, rank):
    """CV+ as in the paper, with loops: the smallest numbers that are at least as large as ``rank`` of the others."""
    errors = [abs(float(a - b)) for a, b in zip(target, left_out, strict=True)]
    ends = []
    for row in range(models.shape[1]):
        centers = [float(models[fold, row]) for fold in folds]
        upper = sorted(center + error for center, error in zip(centers, errors, strict=True))[rank - 1]
        lower = sorted((center - error for center, error in zip(centers, errors, strict=True)), reverse=True)[rank - 1]
        ends.append((lower, upper))
    return np.array(ends)


@pytest.mark.parametrize(
    ("rows", "coverage", "rank"), [(1, 0.5, 1), (9, 0.9, 9), (99, 0.95, 95), (99, 0.55, 55), (100, 0.8, 81)]
)
def test_the_rank_counts_the_new_row(rows, coverage, rank):
    assert conformal_rank(rows, coverage) == rank


def test_cross_intervals_are_the_papers_in_pieces_of_any_size(monkeypatch):
    generator = np.random.default_rng(0)
    left_out, target, models = (torch.from_numpy(generator.normal(size=size)) for size in (40, 40, (5, 11)))
    folds = torch.arange(40) % 5
    expected = cross_interval(left_out, target, folds, models, 37)  # the ceiling of 41 * 0.9
    errors = (target - left_out).abs()[:, None]
    for size in (2**22, 80, 1):
        monkeypatch.setattr(conformal, "AT_ONCE", size)
        found = torch.cat(cross_intervals(errors, folds, models[..., None], 0.9), dim=1)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_cross_intervals_are_those_of_the_members_that_left_rows_out(regressor, curve):
    x, y = curve
    pairs, folds = by_members(len(x))
    standardised = regressor._inputs(x)
    means = np.stack([regressor._member(standardised, member)[0, :, 0] for member in range(4)])
    share, *weights = regressor.calibration_["linear"][:, 0]
    assert sum(weights) > 0.05
    values = (y - regressor._y_mean) / regressor._y_std
    parts = ridge_parts(standardised.numpy(), values[:, None], np.ones(len(x)), planned(len(x)))

    def of_folds(regressed):
        """Of the weighted sums of all members and the regressions, in the units of the targets."""
        sums = share * means + sum(weight * own[:, 0] for weight, own in zip(weights, regressed, strict=True))
        sums = torch.from_numpy(regressor._y_mean + regressor._y_std * sums)
        return torch.stack([sums[torch.from_numpy(pair)].mean(0) for pair in pairs])

    left_out = of_folds([unseen for _, unseen in parts])[folds, torch.arange(len(x))]
    models = of_folds([part.outputs(standardised.numpy()) for part in regressor._linear])
    expected = cross_interval(left_out, torch.from_numpy(y), folds, models, conformal_rank(len(x), 0.9))
    found = regressor.predict_interval(x, 0.9, method="cross")
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_cross_intervals_cover_new_rows(regressor):
    generator = np.random.default_rng(5)
    x = generator.uniform(-3.0, 3.0, (400, 2))
    y = 5_000.0 + 1_000.0 * (np.sin(x[:, 0]) + 0.3 * x[:, 1] + 0.1 * generator.standard_normal(400))
    low, high = regressor.predict_interval(x, 0.8, method="cross").T
    assert np.mean((low <= y) & (y <= high)) > 0.7


def test_files_keep_the_errors(regressor, curve, tmp_path):
    regressor.save(tmp_path)
    found = load_estimator(tmp_path).predict_interval(curve[0], 0.9, method="cross")
    np.testing.assert_array_equal(found, regressor.predict_interval(curve[0], 0.9, method="cross"))


def test_errors(regressor, curve):
    x, _ = curve
    for options, message in (
        ({"method": "split"}, r"method must be one of \('bayes', 'cross'\), got 'split'"),
        ({"coverage": 1}, r"coverage must be in \(0, 1\), got 1"),
        ({"coverage": 0.4, "method": "cross"}, r"coverage must be in \[0.5, 1\) of cross-conformal"),
        ({"coverage": 0.999, "method": "cross"}, r"coverage must be at most n / \(n \+ 1\) = 0.9938 with 160"),
    ):
        with pytest.raises(ValueError, match=message):
            regressor.predict_interval(x, **options)
    blind = BayesianMLPRegressor("ensemble", calibrate=False, **{**TINY, "epochs": 2}).fit(*curve)
    with pytest.raises(
        ValueError, match="method must not be 'cross' if members left out no rows, or if these rows were not"
    ):
        blind.predict_interval(x, method="cross")


class TestRecord:
    SCORES = LeftOutScores.of(np.array([[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0]], dtype=bool), np.arange(4.0)[:, None])

    def test_rows_that_the_same_members_left_out_are_a_fold(self):
        assert self.SCORES.folds.tolist() == [3, 2, 1, 0]
        models = self.SCORES.models(np.array([[1.0], [2.0], [4.0]]))
        assert models[:, 0].tolist() == [2.0, 3.0, 1.0, 2.5]

    def test_it_is_read_as_it_was(self):
        read = LeftOutScores.read(self.SCORES.record(), 3, 1)
        for name, value in vars(self.SCORES).items():
            np.testing.assert_array_equal(getattr(read, name), value)

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("members", [[0], [3], [1], [2]], "members that left out rows must be numbers below 3"),
            ("members", [[0], [], [1], [2]], "members that left out rows"),
            ("folds", [0, 1, 2, 4], "folds of rows left out must be numbers below 4"),
            ("folds", [0.0, 1.0, 2.0, 3.0], "folds of rows left out"),
            ("scores", [[1.0, 2.0, 3.0]], "scores of rows left out must be finite, 1 for each of 4 rows"),
            ("scores", [[1.0, 2.0, 3.0, float("inf")]], "scores of rows left out"),
        ],
    )
    def test_damage(self, name, value, message):
        with pytest.raises(ValueError, match=message):
            LeftOutScores.read({**self.SCORES.record(), name: value}, 3, 1)
