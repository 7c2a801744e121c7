import numpy as np
import pytest
import torch

from bayesadam.sklearn import METHODS, BayesianMLPClassifier

QUICK = {"members": 4, "hidden": (20,), "epochs": 150, "lr": 0.03, "random_state": 0}


@pytest.fixture(scope="module")
def fitted(blobs):
    return BayesianMLPClassifier(**QUICK).fit(*blobs)


def new_blobs(count=3_000):
    generator = np.random.default_rng(11)
    codes = np.arange(count) % 3
    x = generator.standard_normal((count, 4)) + 2.5 * np.eye(3, 4)[codes]
    return x, np.array(["ash", "beech", "cedar"])[codes], codes


def best_nll(x, codes):
    """Of the classes' true probabilities."""
    squares = -0.5 * ((x[:, None] - 2.5 * np.eye(3, 4)) ** 2).sum(-1)
    log_probs = squares - np.logaddexp.reduce(squares, axis=1, keepdims=True)
    return -log_probs[np.arange(len(x)), codes].mean()


@pytest.mark.parametrize("method", [method for method in METHODS if method not in ("vprop", "von")])
def test_every_method_is_accurate_and_calibrated(method, blobs):
    model = BayesianMLPClassifier(method, **QUICK).fit(*blobs)
    x, labels, codes = new_blobs()
    probs = model.predict_proba(x)
    np.testing.assert_allclose(probs.sum(1), 1.0)
    broad = method == "badam"  # whose variances are too large where gradients have vanished
    assert -np.log(probs[np.arange(len(x)), codes]).mean() < best_nll(x, codes) + (0.25 if broad else 0.12)
    assert model.score(x, labels) > 0.85
    assert abs(probs.max(1).mean() - model.score(x, labels)) < (0.2 if broad else 0.08)


def test_the_predictive_has_the_same_probabilities(fitted, blobs):
    assert fitted.classes_.tolist() == ["ash", "beech", "cedar"]
    assert set(fitted.predict(blobs[0])) == {"ash", "beech", "cedar"}
    pred = fitted.predictive(blobs[0])
    probs = fitted.predict_proba(blobs[0])
    np.testing.assert_allclose(pred.probs.numpy(), probs)
    np.testing.assert_allclose(np.exp(fitted.predict_log_proba(blobs[0])), probs)
    assert (pred.mutual_information >= -1e-9).all()
    assert (pred.mutual_information <= pred.entropy).all()
    codes = torch.from_numpy(np.searchsorted(fitted.classes_, blobs[1]))
    expected = np.log(probs[np.arange(150), codes])
    np.testing.assert_allclose(pred.log_prob(codes).numpy(), expected)


def test_temperature_is_by_rows_that_members_have_not_seen(blobs):
    x, _ = blobs
    coins = np.random.default_rng(0).integers(2, size=len(x))
    options = {**QUICK, "method": "ensemble", "hidden": (100,), "prior_precision": 1e-3, "early_stopping": False}
    model = BayesianMLPClassifier(**options).fit(x, coins)
    raw = BayesianMLPClassifier(**options, calibrate=False).fit(x, coins)
    assert model.score(x, coins) > 0.8
    new = new_blobs(1_000)[0]
    assert model.calibration_["temperature"] > 3.0
    assert raw.calibration_ == {"temperature": 1.0, "weights": []}
    assert model.predict_proba(new).max(1).mean() < raw.predict_proba(new).max(1).mean() - 0.1


def test_weights_of_rows(blobs):
    x, labels = blobs
    weight = np.where(labels == "cedar", 0.0, 1.0)
    model = BayesianMLPClassifier(**QUICK).fit(x, labels, sample_weight=weight)
    assert "cedar" not in model.predict(x)
    rare = BayesianMLPClassifier(**QUICK).fit(x, labels, sample_weight=np.where(labels == "cedar", 0.02, 1.0))
    even = BayesianMLPClassifier(**QUICK).fit(x, labels)
    assert rare.predict_proba(x)[:, 2].mean() < 0.6 * even.predict_proba(x)[:, 2].mean()


def test_regressions_beside_the_networks():
    """Skewed inputs, by which networks alone are worse."""
    generator = np.random.default_rng(0)
    logs = generator.standard_normal((900, 3))
    x, y = np.exp(2.0 * logs), (2.0 * logs[:, 0] - logs[:, 1] + generator.logistic(size=900) > 0).astype(int)
    options = {**QUICK, "method": "vadam", "epochs": 30}
    pooled, alone = (BayesianMLPClassifier(**options, calibrate=c).fit(x[:300], y[:300]) for c in (True, False))
    assert sum(pooled.calibration_["weights"]) > 0.3
    losses = [-model.predict_log_proba(x[300:])[np.arange(600), y[300:]].mean() for model in (pooled, alone)]
    assert losses[0] < losses[1] - 0.03
