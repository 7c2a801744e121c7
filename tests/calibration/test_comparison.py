"""Comparing the mean network with samples: what each scores, and what is used."""

from collections import UserDict

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam.likelihoods import Poisson
from modules import module_of


def nll(model, q, data, likelihood, **options):
    return ba.metrics.nll(ba.predict(model, q, data[0], likelihood=likelihood, mc_samples=20, **options), data[1])


def test_scores_are_those_of_predict(classes, posterior):
    model, _, _, held_out, _, likelihood = classes
    q = posterior.scaled(0.3)
    found = ba.compare(model, q, held_out, likelihood=likelihood, mc_samples=20)
    assert list(found.candidates) == [
        "mean network",
        "mean network with temperature",
        "posterior",
        "posterior with temperature",
    ]
    mean, samples = found.candidates["mean network"], found.candidates["posterior"]
    assert mean.nll == pytest.approx(nll(model, q, held_out, likelihood, method="mean"))
    assert samples.nll == pytest.approx(nll(model, q, held_out, likelihood))


def test_a_temperature_is_scored_on_rows_that_did_not_choose_it(classes, posterior):
    model, _, _, (x, y), _, likelihood = classes
    found = ba.compare(model, posterior, (x, y), likelihood=likelihood, mc_samples=20)
    mean = found.candidates["mean network with temperature"]
    whole = ba.calibrate(model, (x, y), likelihood=likelihood)
    assert mean.temperature == pytest.approx(whole.temperature.item())
    own = ba.calibrate(model, (x, y), likelihood=likelihood, posterior=posterior, mc_samples=20)
    assert found.candidates["posterior with temperature"].temperature == pytest.approx(own.temperature.item())
    for number in range(10):
        own = torch.arange(len(x)) % 10 == number
        others = ba.calibrate(model, (x[~own], y[~own]), likelihood=likelihood)
        score = nll(model, posterior, (x[own], y[own]), others, method="mean")
        assert mean.log_loss[own].mean().item() == pytest.approx(score)


def test_the_temperature_of_rows_with_few_mistakes_is_moderate(classes, posterior):
    """Without a prior the score with a temperature is .089 of the mean network, and .16 of the posterior."""
    model, _, _, (x, _), _, likelihood = classes
    with torch.no_grad():
        logits = model(x)
    y = logits.argmax(1)
    least_sure = logits.max(1).values.sub(logits.topk(2).values[:, 1]).argsort()[:2]
    y[least_sure] = logits[least_sure].topk(2).indices[:, 1]
    sure = torch.ones(len(x), dtype=torch.bool).index_fill(0, least_sure, value=False).nonzero()[:, 0]
    order = torch.cat([least_sure[:1], sure[:1], least_sure[1:], sure[1:]])
    found = ba.compare(model, posterior.scaled(0.1), (x[order], y[order]), likelihood=likelihood, mc_samples=20)
    assert found.candidates["mean network with temperature"].nll < 0.03
    assert found.candidates["posterior with temperature"].nll < 0.08


def test_options_predict_as_the_best_candidate(classes, posterior):
    model, _, _, held_out, test, likelihood = classes
    found = ba.compare(model, posterior.scaled(0.3), held_out, likelihood=likelihood, mc_samples=20)
    scores = {name: candidate.nll for name, candidate in found.candidates.items()}
    assert scores[found.best] == min(scores.values())
    assert "with temperature" in found.best  # the network of this fixture is overconfident
    best = found.candidates[found.best]
    expected = nll(model, posterior, test, likelihood.tempered(best.temperature), method=best.method)
    assert nll(model, posterior, test, **found.options) == pytest.approx(expected)


def test_wide_samples_lose_against_the_mean_network(regression):
    model, _, _, held_out, _, likelihood = regression
    variance = {name: torch.full_like(p, 25.0) for name, p in model.named_parameters()}
    q = ba.DiagonalGaussian({name: p.detach() for name, p in model.named_parameters()}, variance)
    found = ba.compare(model, q, held_out, likelihood=likelihood, mc_samples=20)
    assert found.best.startswith("mean network")
    assert found.candidates["posterior"].nll > found.candidates["mean network"].nll + 0.1


def test_the_table_names_the_best(classes, posterior):
    model, _, _, held_out, _, likelihood = classes
    found = ba.compare(model, posterior.scaled(0.3), held_out, likelihood=likelihood, mc_samples=20)
    heading, *lines = str(found).splitlines()
    assert "NLL" in heading
    assert len(lines) == 4
    assert [line for line in lines if " best " in line] == [
        line for line in lines if line.startswith(found.best + "  ")
    ]


def test_without_a_temperature_two_are_compared():
    model = nn.Linear(2, 1)
    q = ba.DiagonalGaussian.point_mass(model)
    held_out = torch.randn(20, 2), torch.ones(20, 1)
    found = ba.compare(model, q, held_out, likelihood=Poisson(), method="monte_carlo", mc_samples=2)
    assert list(found.candidates) == ["mean network", "posterior"]
    assert found.best == "mean network"  # of equal ones the cheaper


@pytest.mark.filterwarnings("ignore:held_out must determine a temperature")
def test_rows_that_are_all_predicted_correctly_have_no_temperature(classes):
    """Their density only rises as the temperature falls, to no end."""
    model, x, likelihood = classes.model, classes.held_out[0], classes.likelihood
    point = ba.DiagonalGaussian.point_mass(model)
    found = ba.compare(model, point, (x, model(x).argmax(1)), likelihood=likelihood)
    with_temperature = found.candidates["mean network with temperature"]
    assert with_temperature.temperature == 1.0
    assert with_temperature.nll == pytest.approx(found.candidates["mean network"].nll)


def test_pairs_dicts_and_loaders_of_them_are_the_same_data(classes):
    """The dicts are those of the Trainer, whose model takes the labels; `predict` takes the inputs of each."""
    network, _, _, (x, y), _, likelihood = classes

    def forward(self, x, labels=None):
        return {"logits": self.network(x), "loss": None if labels is None else likelihood.nll(self.network(x), labels)}

    model = module_of(forward, network=network)
    options = {"likelihood": likelihood, "output": lambda out: out["logits"]}
    q = ba.laplace(model, (x, y), **options)
    expected = ba.compare(model, q, (x, y), **options)
    pairs = list(zip(x.split(70), y.split(70), strict=True))
    dicts = [{"x": inputs, "labels": labels} for inputs, labels in pairs]
    for data in (pairs, {"x": x, "labels": y}, dicts, map(UserDict, dicts)):
        found = ba.compare(model, q, data, **options)
        for name, candidate in found.candidates.items():
            # Outputs differ by rounding, and temperatures therefore by the precision of their search.
            torch.testing.assert_close(candidate.log_loss, expected.candidates[name].log_loss, rtol=2e-3, atol=2e-3)
    for data in (pairs, {"x": x, "labels": y}, dicts):
        predicted = ba.predict(model, q, data, **options)
        assert ba.metrics.nll(predicted, y) == pytest.approx(expected.candidates["posterior"].nll, rel=1e-4)
        same = ba.laplace(model, data, **options)
        torch.testing.assert_close(same.variance, q.variance, rtol=1e-4, atol=0.0)
