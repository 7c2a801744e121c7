"""The method "anchored" of the estimators: exact where the posterior is known, and what is calibrated and refused."""

import numpy as np
import torch
from torch import nn

import bayesadam as ba
from bayesadam.sklearn import BayesianMLPRegressor, load_estimator
from bayesadam.tables.estimators.members import randomized

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 3))
Y = X @ [1.0, -0.5, 0.2] + 2.0 + 0.5 * RNG.standard_normal(40)
SMALL = {"members": 3, "epochs": 20, "random_state": 0}


def test_a_linear_network_with_known_noise_has_the_exact_posterior():
    """With anchors and perturbed targets, but all weights are those of the last layer, so that nothing is sampled."""
    precision, noise = 2.0, 0.5
    model = BayesianMLPRegressor(noise=noise, hidden=(), prior_precision=precision, standardize=False, **SMALL)
    pred = model.fit(X, Y).predictive(X[:7])
    center, scale = Y.mean(), Y.std()
    features, new = (np.column_stack([x, np.ones(len(x))]) for x in (X, X[:7]))
    beta = (scale / noise) ** 2
    covariance = np.linalg.inv(beta * features.T @ features + precision * np.eye(4))
    mean = covariance @ features.T @ (beta * (Y - center) / scale)
    np.testing.assert_allclose(pred.mean, center + scale * new @ mean, rtol=1e-4)
    np.testing.assert_allclose(pred.epistemic, scale**2 * np.sum(new @ covariance * new, 1), rtol=1e-3)
    np.testing.assert_allclose(pred.aleatoric, noise**2, rtol=1e-5)


def test_known_noise_chooses_it_and_then_nothing_is_left_out_or_calibrated(tmp_path):
    known = BayesianMLPRegressor(noise=0.5, **SMALL).fit(X, Y)
    learned = BayesianMLPRegressor(**SMALL).fit(X, Y)
    assert known.method == learned.method == "auto"
    assert (known.method_, learned.method_) == ("anchored", "laplace")
    assert known.posterior_.hyperparameters["method"] == "anchored"
    assert {name: value.tolist() for name, value in known.calibration_.items()} == {
        "epistemic": [1.0],
        "aleatoric": [1.0],
        "error": [0.0],
        "weights": [[1.0]],
    }
    assert np.isnan(known.history_["held_out_nll"]).all()
    known.save(tmp_path)
    again = load_estimator(tmp_path)
    assert (again.method, again.method_) == ("auto", "anchored")
    np.testing.assert_array_equal(again.predict(X, return_std=True), known.predict(X, return_std=True))
    calibrated = BayesianMLPRegressor("anchored", **SMALL).fit(X, Y)
    assert calibrated.calibration_["epistemic"] != 1.0
    assert np.isfinite(calibrated.predict_interval(X, 0.8, method="cross")).all()


def test_members_differ_by_targets_for_known_noise_and_by_weights_for_learned_noise():
    network, rows = nn.Linear(3, 1), (torch.zeros(2000, 3), torch.zeros(2000, 1))
    pairs, weights, priors = randomized(network, [rows, rows], [ba.Gaussian(4.0)] * 2, 10.0, 0)
    assert weights is None
    noise = torch.stack([y[:, 0] for _, y in pairs])
    torch.testing.assert_close(noise.std(1), torch.full((2,), 0.5), rtol=0.1, atol=0.0)
    assert abs(torch.corrcoef(noise)[0, 1]) < 0.1
    assert not torch.equal(priors[0].mean["weight"], priors[1].mean["weight"])
    assert all((value == 0.1).all() for value in priors[0].variance.values())
    pairs, weights, _ = randomized(network, [rows, rows], [ba.Gaussian(4.0, learned=True)] * 2, 10.0, 0)
    assert all(torch.equal(y, rows[1]) for _, y in pairs)
    assert weights is not None
    torch.testing.assert_close(torch.stack(weights).mean(1), torch.ones(2, dtype=torch.float64), rtol=0.1, atol=0.0)
