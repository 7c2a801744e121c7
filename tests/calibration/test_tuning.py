"""Width and temperature by held-out data: the scores are those of predict, and the best is the best."""

import math
from functools import partial

import numpy as np
import pytest
import torch

import bayesadam as ba
from bayesadam.calibration import safe, tuning
from bayesadam.likelihoods import MissingCapabilityError, Poisson


def nll(model, q, data, likelihood, **options):
    return ba.metrics.nll(ba.predict(model, q, data[0], likelihood=likelihood, **options), data[1])


@pytest.mark.filterwarnings("ignore:method='monte_carlo' puts samples")
@pytest.mark.parametrize("method", ["monte_carlo", "linearized", "moments"])
def test_table_is_what_predict_says(classes, posterior, method):
    model, _, _, held_out, _, likelihood = classes
    options = {"method": method, "mc_samples": 7, "seed": 3}
    found = ba.tune_posterior(
        posterior, model, held_out, likelihood=likelihood, scale=[0.1, 0.5, 1.0], temperature=[0.5, 1, 2.0], **options
    )
    expected = []
    for scale in (0.1, 0.5, 1.0):
        scores = {
            t: nll(model, posterior.scaled(scale), held_out, likelihood.tempered(t), **options) for t in (0.5, 1.0, 2.0)
        }
        best = min(scores, key=scores.__getitem__)
        expected.append((scale, best, scores[best]))
    rows = [(row["scale"], row["temperature"], row["score"]) for row in found.table]
    assert rows == [pytest.approx(row, rel=1e-5) for row in expected]
    scale, temperature, score = min(expected, key=lambda row: row[2])
    assert (found.scale, found.temperature, found.score) == pytest.approx((scale, temperature, score), rel=1e-5)
    assert found.chosen == {}


@pytest.mark.parametrize("method", ["monte_carlo", "linearized"])
def test_search_finds_the_best_of_both(classes, posterior, method):
    model, _, _, held_out, _, likelihood = classes
    options = {"method": method, "mc_samples": 16}
    found = ba.tune_posterior(posterior, model, held_out, likelihood=likelihood, **options)
    scales = [0.8 * found.scale, 0.97 * found.scale, 1.03 * found.scale, 1.25 * found.scale, 0.003, 0.2, 1.0]
    dense = ba.tune_posterior(posterior, model, held_out, likelihood=likelihood, scale=scales, **options)
    assert found.score <= dense.score + 2e-4
    predicted = nll(model, found.posterior, held_out, found.likelihood, **options)
    assert predicted == pytest.approx(found.score, rel=1e-5)
    assert found.posterior.hyperparameters["scaled"] == found.scale
    assert found.likelihood.temperature.item() == pytest.approx(found.temperature)
    assert len(found.table) == len(tuning.SCALES) + tuning.STEPS + 2


def test_the_network_and_its_temperature_are_told_beside_it(classes, posterior):
    model, _, _, held_out, _, likelihood = classes
    found = ba.tune_posterior(posterior, model, held_out, likelihood=likelihood, method="linearized")
    network = ba.DiagonalGaussian.point_mass(model)
    assert found.before == pytest.approx(nll(model, network, held_out, likelihood, method="mean"), rel=1e-5)
    calibrated = ba.calibrate(model, held_out, likelihood=likelihood)
    assert found.calibrated == pytest.approx(nll(model, network, held_out, calibrated, method="mean"), rel=1e-5)
    assert found.score < found.calibrated - 0.003 < found.before - 0.1


@pytest.mark.parametrize("kind", ["dense", "mixture", "bernoulli"])
def test_every_kind_of_posterior(classes, kind):
    model, _, train, held_out, _, likelihood = classes
    weights = {name: p.detach() for name, p in model.named_parameters()}
    if kind == "dense":
        q = ba.posthoc.LaplaceApproximation(model, train, likelihood=likelihood, structure="full").posterior(1.0)
    elif kind == "bernoulli":
        q = ba.posterior.BernoulliPosterior({n: torch.full_like(p, 0.9) for n, p in weights.items()}, weights)
    else:
        variance = {name: torch.full_like(p, 0.1) for name, p in weights.items()}
        q = ba.Mixture([ba.DiagonalGaussian(weights, variance)] * 2)
    found = ba.tune_posterior(q, model, held_out, likelihood=likelihood, mc_samples=8)
    assert type(found.posterior) is type(q)
    assert found.score <= min(row["score"] for row in found.table) + safe.RISE
    assert found.score < found.before
    assert 0.01 <= found.scale <= 10.0


def test_a_function_that_makes_posteriors(classes):
    model, adam, train, held_out, _, likelihood = classes
    held_out = held_out[0][:80], held_out[1][:80]
    make = partial(ba.badam, adam, model, num_data=len(train[0]))
    found = ba.tune_posterior(make, model, held_out, likelihood=likelihood, mc_samples=2)
    assert {row["prior_precision"] for row in found.table} == set(tuning.PRECISIONS)
    assert found.chosen == {"prior_precision": found.posterior.hyperparameters["prior_precision"]}
    grids = {"num_data": [10, 1000], "prior_precision": [1.0, 100.0]}
    found = ba.tune_posterior(
        partial(ba.badam, adam, model),
        model,
        held_out,
        likelihood=likelihood,
        mc_samples=8,
        candidates=grids,
        scale=[1],
    )
    assert [(row["num_data"], row["prior_precision"]) for row in found.table] == [
        (10, 1), (10, 100), (1000, 1), (1000, 100)
    ]  # fmt: skip
    best = min(found.table, key=lambda row: row["score"])
    assert found.chosen == {name: best[name] for name in grids}
    assert found.scale == 1.0
    assert "scaled" not in found.posterior.hyperparameters


def test_scores_that_are_no_numbers_lose(classes, posterior):
    def make(prior_precision):
        q = posterior.scaled(prior_precision)
        if prior_precision < 1.0:
            next(iter(q.variance.values())).fill_(math.nan)
        return q

    options = {"likelihood": classes.likelihood, "scale": [1.0], "mc_samples": 3, "method": "monte_carlo"}
    found = ba.tune_posterior(
        make, classes.model, classes.held_out, candidates={"prior_precision": [0.5, 2.0]}, **options
    )
    assert found.table[0]["score"] == math.inf
    assert found.chosen == {"prior_precision": 2.0}


def test_regression(regression):
    """Noise that was taken for too small is made larger, by the temperature."""
    model, adam, train, held_out, test, likelihood = regression
    q = ba.badam(adam, model, num_data=len(train[0]), prior_precision=1.0)
    found = ba.tune_posterior(q, model, held_out, likelihood=likelihood, method="linearized")
    assert found.likelihood.noise_precision.item() == pytest.approx(25.0 / found.temperature)
    assert found.temperature > 3
    network = ba.DiagonalGaussian.point_mass(model)
    before = nll(model, network, test, likelihood, method="mean")
    assert nll(model, found.posterior, test, found.likelihood, method="linearized") < before - 1.0


@pytest.mark.parametrize(("variance", "kept"), [(0.01, True), (100.0, False)])
def test_rows_that_do_not_depend_on_the_width_leave_it(variance, kept):
    """Inputs near zero say little about the width of a slope, which matters far from zero."""
    x = torch.linspace(-0.1, 0.1, 100).view(-1, 1)
    data = torch.cat([x, x]), torch.cat([x + 0.1, x - 0.1])
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)  # the slope of the data, so that no width is best
    q = ba.DiagonalGaussian({"weight": model.weight.detach()}, {"weight": torch.full((1, 1), variance)})
    found = ba.tune_posterior(q, model, data, likelihood=ba.Gaussian(), method="linearized")
    scores = {row["scale"]: row["score"] for row in found.table}
    assert min(scores, key=scores.__getitem__) < 0.02
    assert (found.scale == 1.0) == kept
    assert found.message.endswith("; narrower widths are better by less than 0.002 nats")
    assert found.score == scores[found.scale] <= min(scores.values()) + safe.RISE
    assert all(score > min(scores.values()) + safe.RISE for scale, score in scores.items() if found.scale < scale <= 1)


def test_a_likelihood_without_temperatures(regression):
    model, adam, train, (x, y), _, _ = regression
    q = ba.badam(adam, model, num_data=len(train[0]), prior_precision=100.0)
    options = {"likelihood": Poisson(), "mc_samples": 4}
    found = ba.tune_posterior(q, model, (x, y.abs().round()), **options)
    assert found.temperature == 1.0
    assert found.likelihood is options["likelihood"]
    assert found.before == found.calibrated
    with pytest.raises(MissingCapabilityError, match="^likelihood must define tempered, got Poisson$"):
        ba.tune_posterior(q, model, (x, y.abs().round()), temperature=[1.0, 2.0], **options)


def test_numbers_that_are_given_stay(classes, posterior):
    model, _, _, held_out, _, likelihood = classes
    options = {"likelihood": likelihood, "mc_samples": 4}
    found = ba.tune_posterior(posterior, model, held_out, scale=[0.5], temperature=[1.0], **options)
    assert (found.scale, found.temperature, len(found.table)) == (0.5, 1.0, 1)
    assert found.likelihood is likelihood
    assert found.edges == ()
    found = ba.tune_posterior(posterior, model, held_out, scale=[1.0], temperature=[1.0], **options)
    assert found.posterior is posterior
    found = ba.tune_posterior(posterior, model, held_out, scale=np.array([0.1, 0.5]), temperature=(1, 2), **options)
    assert {row["scale"] for row in found.table} == {0.1, 0.5}


def test_message_and_edges(classes, posterior):
    model, _, _, held_out, _, likelihood = classes
    options = {"likelihood": likelihood, "mc_samples": 4, "temperature": [1.0]}
    found = ba.tune_posterior(posterior.scaled(1e4), model, held_out, **options)
    assert found.edges == ("scale",)
    widths, tried = f"standard deviations of the posterior times {found.scale:.4g}", len(found.table)
    best = f"{widths}, the best of {tried} candidates: {found.score:.4f} nats per data point"
    network = f"; the network has {found.before:.4f}, and with temperature scaling {found.calibrated:.4f}"
    assert found.message.startswith(best + network)
    assert found.message.endswith("; warning: scale is at the edge of the values that were tried, 0.01 to 100")
    found = ba.tune_posterior(posterior, model, held_out, **options)
    assert found.edges == ()
    assert "warning" not in found.message


def test_refusals(classes, posterior):
    dropout = ba.MCDropout(torch.nn.Sequential(classes.model, torch.nn.Dropout(0.1)))
    bad = (classes.held_out[0] * math.nan, classes.held_out[1])
    for q, error, options, message in (
        (posterior, ValueError, {"scale": []}, r"^scale must have at least one candidate, got \[\]$"),
        (posterior, ValueError, {"scale": [-1.0]}, "^factor must be a finite number of at least 0, got -1.0$"),
        (posterior, ValueError, {"candidates": {"num_data": [1]}}, "^candidates must be given for a function that"),
        (lambda: 0, ValueError, {"candidates": {"num_data": []}}, "^num_data must have at least one candidate"),
        (dropout, TypeError, {}, "^posterior must be one over weights, or a function that makes one, got MCDropout"),
        (posterior, ValueError, {"data": []}, "^data must have at least one batch, got none$"),
        (posterior, ValueError, {"method": "magic"}, "^method must be one of "),
        (posterior, ValueError, {"likelihood": "categorical"}, "^likelihood must be a "),
        (posterior, RuntimeError, {"data": bad, "scale": [0.1, 1.0], "temperature": [1.0]}, "^at least one candidate"),
    ):
        arguments = {"likelihood": classes.likelihood, "data": classes.held_out, **options}
        with pytest.raises(error, match=message):
            ba.tune_posterior(q, classes.model, arguments.pop("data"), **arguments)
