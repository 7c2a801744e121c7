"""Posteriors of trained members, against those of networks that were trained alone."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam import population
from bayesadam.sklearn import BayesianMLPRegressor
from bayesadam.tables.estimators.members import posteriors
from bayesadam.tables.estimators.methods import method_named


def test_badam_of_members_is_that_of_the_optimiser_they_are_trained_by():
    """Weights and variances, with the bias correction of as many steps as were made."""
    generator = torch.Generator().manual_seed(0)
    data = [tuple(torch.randn(n, d, generator=generator, dtype=torch.float64) for d in (3, 2)) for n in (9, 14)]
    make = lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()  # noqa: E731
    models, likelihood = population.initialize(make, seeds=range(2)), ba.Gaussian(2.0).double()
    alone = copy.deepcopy(models)
    options = {"method": "adam", "epochs": 7, "batch_size": 20, "lr": 0.02, "progress": False}
    nets = population.train(models, data, likelihood=likelihood, **options)
    found, _ = posteriors(method_named("badam"), nets, models, data, None, [9.0, 14.0], prior_precision=0.3, steps=7)
    for q, model, (x, y) in zip(found, alone, data, strict=True):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        for _ in range(7):
            optimizer.zero_grad()
            likelihood(model(x), y).backward()
            optimizer.step()
        expected = ba.badam(optimizer, model, num_data=len(x), prior_precision=0.3)
        torch.testing.assert_close(q.mean, expected.mean, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(q.variance, expected.variance, rtol=1e-8, atol=0.0)
        assert q.hyperparameters == expected.hyperparameters


@pytest.mark.parametrize("method", ["laplace", "badam", "vadam"])
def test_rows_of_nearly_no_weight_do_not_narrow_the_posterior(method):
    rng = np.random.default_rng(0)
    x = np.r_[rng.uniform(-1, 1, (40, 1)), rng.uniform(2, 4, (200, 1))]
    y, weight = np.sin(2 * x[:, 0]), np.where(x[:, 0] < 1, 1.0, 1e-6)
    options = {"members": 1, "hidden": (), "epochs": 100, "random_state": 0, "noise": "constant"}
    options |= {"early_stopping": False, "calibrate": False, "target_transform": "none"}
    logarithms = []
    for rows, given in ((slice(40), None), (slice(None), weight)):
        model = BayesianMLPRegressor(method, **options).fit(x[rows], y[rows], sample_weight=given)
        logarithms.append(
            torch.cat([v.flatten() for v in model.posterior_.components[0].variance.values()]).log().mean().item()
        )
    assert logarithms[1] == pytest.approx(logarithms[0], abs=0.4)
