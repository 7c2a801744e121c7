import numpy as np
import pytest
import torch
from sklearn.utils import check_random_state

from bayesadam.conformal import cross_interval, cross_prediction_set, prediction_set
from bayesadam.sklearn import BayesianMLPClassifier, BayesianMLPRegressor, load_estimator
from bayesadam.sklearn.conformal import LeftOutScores
from bayesadam.sklearn.linear import logistic_parts, ridge_parts
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


@pytest.fixture(scope="module")
def classifier(blobs):
    return BayesianMLPClassifier("ensemble", **TINY).fit(*blobs)


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
    expected = torch.stack(cross_interval(left_out, torch.from_numpy(y), folds, models, coverage=0.9), dim=1)
    found = regressor.predict_interval(x, 0.9, method="cross")
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4)


def test_cross_intervals_cover_new_rows(regressor):
    generator = np.random.default_rng(5)
    x = generator.uniform(-3.0, 3.0, (400, 2))
    y = 5_000.0 + 1_000.0 * (np.sin(x[:, 0]) + 0.3 * x[:, 1] + 0.1 * generator.standard_normal(400))
    low, high = regressor.predict_interval(x, 0.8, method="cross").T
    assert np.mean((low <= y) & (y <= high)) > 0.7


def test_cross_sets_are_those_of_the_members_that_left_rows_out(classifier, blobs):
    x, labels = blobs
    pairs, folds = by_members(len(x))
    codes = torch.from_numpy(np.searchsorted(classifier.classes_, labels))
    standardised, (at, weights) = classifier._inputs(x), classifier.calibration_.values()
    regressions = logistic_parts(standardised.numpy(), codes.numpy(), 3, np.ones(len(x)), planned(len(x)))
    assert sum(weights) > 0.1
    powers = [torch.exp(classifier._member_log_probs(standardised, member) / at) for member in range(4)]

    def of_folds(factors):
        """Of the probabilities of all members' samples, each in a pool with those of the regressions."""
        probs = [power * factors for power in powers]
        probs = [(p / p.sum(-1, keepdim=True)).mean(0) for p in probs]
        return torch.stack([torch.stack([probs[m] for m in np.flatnonzero(pair)]).mean(0) for pair in pairs])

    def factors(log_probs):
        return torch.from_numpy(np.prod([np.exp(w * own) for w, own in zip(weights, log_probs, strict=True)], axis=0))

    unseen = of_folds(factors([own for _, own in regressions]))
    left_out = unseen[folds, torch.arange(len(x))]
    models = of_folds(factors([part.log_probs(standardised.numpy()) for part, _ in regressions]))
    expected = cross_prediction_set(left_out, codes, folds, models, coverage=0.9)
    found = classifier.predict_set(x, coverage=0.9, method="cross")
    assert (found == expected.numpy()).mean() > 0.99  # scores are kept to six digits
    assert found[np.arange(len(x)), codes.numpy()].mean() >= 0.9


def test_sets_of_rows_held_out(classifier, blobs):
    x, labels = blobs
    codes = torch.from_numpy(np.searchsorted(classifier.classes_, labels))
    probs = torch.from_numpy(classifier.predict_proba(x))
    assert classifier.conformalize(x[:60], labels[:60]) is classifier
    found = classifier.predict_set(x[60:], coverage=0.9, method="split")
    np.testing.assert_array_equal(found, prediction_set(probs[:60], codes[:60], probs[60:], coverage=0.9).numpy())
    drawn = [
        classifier.predict_set(x[60:], coverage=0.9, method="split", randomized=True, random_state=seed)
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).any()
    assert drawn[0].sum() < found.sum()


def test_sets_of_the_probabilities_themselves(classifier, blobs):
    probs = classifier.predict_proba(blobs[0])
    found = classifier.predict_set(blobs[0], coverage=0.9)
    for p, chosen in zip(probs, found, strict=True):
        assert p[chosen].sum() >= 0.9 - 1e-9
        assert p[chosen].sum() - p[chosen].min() < 0.9
        assert p[chosen].min() >= p[~chosen].max(initial=0.0)


def test_files_keep_them(classifier, blobs, tmp_path):
    classifier.conformalize(*blobs).save(tmp_path)
    read = load_estimator(tmp_path)
    for method in ("bayes", "split", "cross"):
        options = {"method": method, "randomized": True}
        expected = classifier.predict_set(blobs[0], coverage=0.9, **options)
        np.testing.assert_array_equal(read.predict_set(blobs[0], coverage=0.9, **options), expected)


def test_another_fit_forgets_the_rows_held_out(curve):
    model = BayesianMLPRegressor("vadam", **{**TINY, "epochs": 3}).fit(*curve)
    for again in (model.fit, model.partial_fit):
        model.conformalize(*curve).predict_interval(curve[0], method="split")
        again(*curve)
        with pytest.raises(ValueError, match=r"before conformalize\(X, y\) with held-out rows, got 'split'"):
            model.predict_interval(curve[0], method="split")


def test_errors(classifier, blobs, curve):
    x, _ = blobs
    with pytest.raises(ValueError, match=r"method must be one of \('bayes', 'split', 'cross'\), got 'adaptive'"):
        classifier.predict_set(x, method="adaptive")
    with pytest.raises(ValueError, match=r"coverage must be in \(0, 1\), got 1"):
        classifier.predict_set(x, coverage=1)
    with pytest.raises(ValueError, match=r"y must have labels of classes_ only, got \['oak'\]"):
        classifier.conformalize(x[:2], ["ash", "oak"])
    with pytest.raises(ValueError, match=r"y must be of shape \(2,\), got \(1,\)"):
        classifier.conformalize(x[:2], ["ash"])
    with pytest.raises(ValueError, match=r"coverage must be at most n / \(n \+ 1\) = 0.9934 with 150"):
        classifier.predict_set(x, coverage=0.999, method="cross")
    blind = BayesianMLPRegressor("ensemble", calibrate=False, **{**TINY, "epochs": 2}).fit(*curve)
    with pytest.raises(
        ValueError, match="method must not be 'cross' if members left out no rows, or if these rows were not"
    ):
        blind.predict_interval(curve[0], method="cross")


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
