"""Tuning on held-out data: the table is what predict says, and the best is the best."""

import math

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import bayesadam as ba
from bayesadam.posthoc import LaplaceApproximation, tune_laplace
from posthoc.models import Squeezed, draw, gaussian, mlp


@pytest.fixture
def regression():
    """A network that was trained a little, and held-out data."""
    model = Squeezed(mlp(3, 1))
    x, likelihood = draw(60, 3, seed=1), gaussian(20.0)
    y = x[:, 0].sin() + 0.2 * draw(60, seed=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        likelihood.nll(model(x[:40]), y[:40]).backward()
        optimizer.step()
    return model, optimizer, (x[:40], y[:40]), (x[40:], y[40:]), likelihood


def test_table_and_choice(regression):
    model, _, train, held, likelihood = regression
    make = LaplaceApproximation(model, train, likelihood=likelihood).posterior
    grids = {"num_data": [4, 40, 400.0], "prior_precision": (0.1, 10.0, 1000.0)}
    found = tune_laplace(make, model, held, likelihood=likelihood, mc_samples=7, seed=3, **grids)
    expected = []
    for n in grids["num_data"]:
        for precision in grids["prior_precision"]:
            q = make(num_data=n, prior_precision=precision)
            pred = ba.predict(model, q, held[0], likelihood=likelihood, mc_samples=7, seed=3)
            expected.append((n, precision, -pred.log_prob(held[1]).mean().item()))
    rows = [(row["num_data"], row["prior_precision"], row["score"]) for row in found.table]
    assert rows == [pytest.approx(row) for row in expected]
    n, precision, score = min(expected, key=lambda row: row[2])
    assert found.chosen == {"num_data": n, "prior_precision": precision}
    assert found.score == pytest.approx(score)
    best = make(num_data=n, prior_precision=precision)
    assert all(torch.equal(best.variance[name], found.posterior.variance[name]) for name in best.mean)
    assert len({round(row[2], 6) for row in expected}) == 9


def test_default_grid_and_edges(regression):
    model, _, train, held, likelihood = regression
    make = LaplaceApproximation(model, train, likelihood=likelihood).posterior
    found = tune_laplace(make, model, held, likelihood=likelihood, method="mean")
    assert [row["prior_precision"] for row in found.table] == [10.0**k for k in range(-4, 5)]
    assert found.chosen == {"prior_precision": 1e-4}  # the first of equals
    assert found.message.startswith("prior_precision 0.0001, the best of 9 candidates: ")
    assert found.message.endswith("; warning: prior_precision is at the edge of its candidates")
    for grid, edges in (
        ([1.0, 1e3, 1e-4], ()),
        ([1.0, 1e3], ("prior_precision",)),
        ([1e-4, 1.0], ("prior_precision",)),
    ):
        found = tune_laplace(make, model, held, likelihood=likelihood, prior_precision=grid, method="monte_carlo")
        assert found.chosen == {"prior_precision": 1.0}
        assert found.edges == edges


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu(regression):
    model, _, train, held, likelihood = regression
    model, likelihood = model.cuda(), likelihood.cuda()
    make = LaplaceApproximation(model, train, likelihood=likelihood).posterior
    for data in (held, DataLoader(TensorDataset(*held), batch_size=7)):
        found = tune_laplace(make, model, data, likelihood=likelihood, prior_precision=[1.0], mc_samples=4)
        assert math.isfinite(found.score)


def test_scores_that_are_no_numbers_lose(regression):
    model, _, train, held, likelihood = regression
    fitted = LaplaceApproximation(model, train, likelihood=likelihood)

    def make(prior_precision):
        q = fitted.posterior(prior_precision)
        if prior_precision < 1.0:
            q.variance["model.0.weight"].fill_(float("nan"))
        return q

    found = tune_laplace(make, model, held, likelihood=likelihood, prior_precision=[0.5, 2.0], mc_samples=3)
    assert found.table[0]["score"] == math.inf
    assert found.chosen == {"prior_precision": 2.0}
    with pytest.raises(RuntimeError, match="^at least one candidate must have a finite score, got none of 1$"):
        tune_laplace(make, model, held, likelihood=likelihood, prior_precision=[0.5], mc_samples=3)


def test_refusals(regression):
    model, _, train, held, likelihood = regression
    make = LaplaceApproximation(model, train, likelihood=likelihood).posterior
    with pytest.raises(ValueError, match=r"^num_data must have at least one candidate, got \[\]$"):
        tune_laplace(make, model, held, likelihood=likelihood, num_data=[])
    with pytest.raises(ValueError, match="^data must have at least one batch, got none$"):
        tune_laplace(make, model, [], likelihood=likelihood)
    with pytest.raises(ValueError, match="^targets must have as many rows as the inputs, 20, "):
        tune_laplace(make, model, (held[0], held[1][:3]), likelihood=likelihood)
    with pytest.raises(ValueError, match="^method must be "):
        tune_laplace(make, model, held, likelihood=likelihood, method="magic")
