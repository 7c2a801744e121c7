import copy

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


def test_partial_fit(blobs):
    x, labels = blobs
    some = labels != "cedar"
    model = BayesianMLPClassifier(**QUICK)
    with pytest.raises(ValueError, match="classes must be given in the first call of partial_fit, got None"):
        model.partial_fit(x[some], labels[some])
    model.partial_fit(x[some], labels[some], classes=["cedar", "beech", "ash"])
    assert model.classes_.tolist() == ["ash", "beech", "cedar"]
    for wrong, y, message in (
        (["ash", "beech"], labels, "classes must be those of the first call"),
        (None, np.where(some, labels, "oak"), r"y must have labels of classes only, got \['oak'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            model.partial_fit(x, y, classes=wrong)
    with pytest.raises(ValueError, match=r"y must have at least 2 classes, got 1 class: \['ash'\]"):
        model.fit(x, ["ash"] * 150)
    model.partial_fit(x, labels)
    assert model.score(x, labels) > 0.85


def test_weights_of_rows(blobs):
    x, labels = blobs
    weight = np.where(labels == "cedar", 0.0, 1.0)
    model = BayesianMLPClassifier(**QUICK).fit(x, labels, sample_weight=weight)
    assert "cedar" not in model.predict(x)
    rare = BayesianMLPClassifier(**QUICK).fit(x, labels, sample_weight=np.where(labels == "cedar", 0.02, 1.0))
    even = BayesianMLPClassifier(**QUICK).fit(x, labels)
    assert rare.predict_proba(x)[:, 2].mean() < 0.6 * even.predict_proba(x)[:, 2].mean()


@pytest.mark.parametrize("count", [1, 3])
def test_a_few_rows_leave_the_temperature_about_as_it_was(count, blobs):
    generator = np.random.default_rng(0)
    x = generator.standard_normal((400, 3))
    y = (x[:, 0] + generator.standard_normal(400) > 0).astype(int)
    model = BayesianMLPClassifier(**{**QUICK, "members": 6}).fit(x[:300], y[:300])
    before = model.calibration_["temperature"]
    for first in (300, 320):
        new = slice(first, first + count)
        after = copy.deepcopy(model).partial_fit(x[new], y[new]).calibration_["temperature"]
        assert after == before if count == 1 else after == pytest.approx(before, rel=0.2)


def test_regressions_beside_the_networks():
    """Skewed inputs; learning that goes on has the same networks alone."""
    generator = np.random.default_rng(0)
    logs = generator.standard_normal((900, 3))
    x, y = np.exp(2.0 * logs), (2.0 * logs[:, 0] - logs[:, 1] + generator.logistic(size=900) > 0).astype(int)
    options = {**QUICK, "method": "vadam", "epochs": 30}
    pooled = BayesianMLPClassifier(**options).fit(x[:300], y[:300])
    alone = BayesianMLPClassifier(**options).partial_fit(x[:300], y[:300], classes=[0, 1])
    assert sum(pooled.calibration_["weights"]) > 0.3
    assert alone.calibration_["weights"] == []
    losses = [-model.predict_log_proba(x[300:])[np.arange(600), y[300:]].mean() for model in (pooled, alone)]
    assert losses[0] < losses[1] - 0.03
    before = pooled.calibration_
    pooled.partial_fit(x[300:400], y[300:400])
    assert pooled.calibration_["weights"] == before["weights"]
    assert pooled.calibration_["temperature"] != before["temperature"]
