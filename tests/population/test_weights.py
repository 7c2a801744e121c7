"""Weights of data points."""

import copy

import pytest
import torch

from bayesadam import population
from population.problems import BATCH, draw, models_of, noise_of, regression

OPTIONS = {"method": "adam", "epochs": 3, "lr": 0.01, "seed": 5}


def alone(model, x, y, weight, likelihood, batch_size, seed):
    """Adam on the weighted mean loss of the same minibatches."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=OPTIONS["lr"])
    weight = weight / weight.mean()
    for epoch in range(OPTIONS["epochs"]):
        rows = population.order(len(x), seed=seed, epoch=epoch)
        if batch_size >= len(x):
            rows = range(len(x))
        for first in range(0, len(x), batch_size):
            chosen = torch.tensor(list(rows[first : first + batch_size]))
            optimizer.zero_grad()
            (-weight[chosen] * likelihood.log_prob(model(x[chosen]), y[chosen])).mean().backward()
            optimizer.step()
    return dict(model.named_parameters())


@pytest.mark.parametrize("batch_size", [BATCH, 100])
@pytest.mark.parametrize("shared", [False, True])
def test_weighted_members_are_as_alone(shared, batch_size):
    """Also members with the same data and different weights, of which two are equal."""
    models, likelihood = models_of(), noise_of(2.0)
    pairs = regression((13,)) * 4 if shared else regression()
    weights = [draw(len(x), seed=30 + member).exp() for member, (x, _) in enumerate(pairs)]
    if shared:
        weights[3] = weights[0]
    data = pairs[0] if shared else pairs
    options = {**OPTIONS, "likelihood": likelihood, "batch_size": batch_size}
    nets = population.train(models, data, sample_weight=weights, **options)
    for member, (model, (x, y), weight) in enumerate(zip(models, pairs, weights, strict=True)):
        expected = alone(model, x, y, weight, likelihood, batch_size, OPTIONS["seed"] + member)
        for name, value in expected.items():
            torch.testing.assert_close(nets.mean[name][member], value.detach(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("method", ["vadam", "ivon", "bbb"])
@pytest.mark.parametrize("learned", [False, True])
def test_a_weight_of_two_is_two_rows(method, learned):
    ((x, y),) = regression((6,))
    weight = torch.tensor([2.0, 1.0, 1.0, 2.0, 0.0, 1.0])
    rows = torch.tensor([0, 0, 1, 2, 3, 3, 5])
    options = {"likelihood": noise_of(2.0, learned=learned), "epochs": 20, "batch_size": 50, "lr": 0.01, "num_data": 7}
    (model,) = models_of(count=1)
    weighted = population.train([model], (x, y), sample_weight=weight, method=method, **options)
    repeated = population.train([model], (x[rows], y[rows]), method=method, **options)
    torch.testing.assert_close(weighted.mean, repeated.mean, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(weighted.variance, repeated.variance, rtol=1e-9, atol=1e-14)


def test_only_ratios_count_and_shared_data_are_weighted_too():
    pair, models = regression((20,))[0], models_of()
    weight = draw(20, seed=9).exp()
    options = {**OPTIONS, "likelihood": noise_of(2.0), "batch_size": BATCH, "steps_per_epoch": 4}
    first, second = (population.train(models, pair, sample_weight=w, **options) for w in (weight, 7.0 * weight))
    apart = population.train(models, [pair] * 4, sample_weight=[weight] * 4, **options)
    even = population.train(models, pair, **options)
    for name, value in first.mean.items():
        torch.testing.assert_close(value, second.mean[name], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(value, apart.mean[name], rtol=1e-9, atol=1e-12)
        assert not torch.allclose(value, even.mean[name])
