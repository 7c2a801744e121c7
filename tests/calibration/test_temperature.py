"""Temperature scaling: the best temperature, by which it is found, and what it is found for."""

import math
import warnings

import pytest
import torch
from scipy import stats
from scipy.optimize import minimize_scalar
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesadam as ba
from bayesadam.likelihoods import MissingCapabilityError, Poisson, StudentT
from modules import module_of


def nll(model, data, likelihood, **options):
    pred = ba.predict(model, ba.DiagonalGaussian.point_mass(model), data[0], likelihood=likelihood, method="mean")
    return ba.metrics.nll(pred, data[1])


def prior(temperature, rows):
    """Minus the logarithm of a Cauchy density of the logarithm, for each row."""
    return math.log(1.0 + math.log(temperature) ** 2) / rows


def test_is_the_best_temperature_of_the_held_out_rows(classes):
    model, _, _, held_out, test, likelihood = classes
    found = ba.calibrate(model, held_out, likelihood=likelihood)
    with torch.no_grad():
        z = model(held_out[0]).double()
    best = minimize_scalar(
        lambda t: nn.functional.cross_entropy(z / t, held_out[1]).item() + prior(t, len(z)),
        (0.1, 10.0),
        method="bounded",
        bounds=(0.1, 10),
    )
    assert found.temperature.item() == pytest.approx(best.x, rel=2e-3)
    assert 1.5 < best.x < 9.0
    assert nll(model, test, found) < nll(model, test, likelihood) - 0.05


def test_the_scale_of_a_student_t_is_the_most_probable_one():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 1, generator=generator)
    model = nn.Linear(1, 1)
    with torch.no_grad():
        error = torch.randn(400, 1, generator=generator) / (torch.rand(400, 1, generator=generator) + 0.5)
        y = model(x) + 3.0 * error
        residual = (y - model(x)).double().numpy()
    found = ba.calibrate(model, (x, y), likelihood=StudentT(4.0, scale=0.5))
    best = minimize_scalar(lambda log: -stats.t(4.0, scale=math.exp(log)).logpdf(residual).mean(), (-1.0, 2.0))
    assert found.scale.item() == pytest.approx(math.exp(best.x), rel=1e-3)
    assert found.degrees.item() == pytest.approx(4.0)


@pytest.mark.filterwarnings("ignore:method='monte_carlo' puts samples")
def test_it_works_with_a_posterior_and_every_method(classes, posterior):
    model, _, _, held_out, _, likelihood = classes
    q = posterior.scaled(0.3)
    temperatures = []
    for method in ("monte_carlo", "linearized", "moments", "mean"):
        options = {"method": method, "mc_samples": 20, "seed": 3}
        found = ba.calibrate(model, held_out, likelihood=likelihood, posterior=q, **options)
        temperatures.append(found.temperature.item())
        scores = [
            ba.metrics.nll(ba.predict(model, q, held_out[0], likelihood=likelihood.tempered(t), **options), held_out[1])
            + prior(t, len(held_out[1]))
            for t in (0.99 * temperatures[-1], temperatures[-1], 1.01 * temperatures[-1])
        ]
        assert min(scores) == scores[1]
    assert temperatures[3] == pytest.approx(ba.calibrate(model, held_out, likelihood=likelihood).temperature.item())
    assert max(temperatures[:3]) < temperatures[3]  # some of it is in the width


@pytest.mark.parametrize("size", [0.5, 1e8, 1e-6])
def test_noise_of_any_scale(regression, size):
    """The best variance of Gaussian noise is the mean of the squared residuals."""
    model, _, _, (x, _), _, _ = regression
    with torch.no_grad():
        y = model(x) + size * torch.randn(len(x), 1, generator=torch.Generator().manual_seed(1))
        residual = (model(x) - y).double().square().mean().item()
    found = ba.calibrate(model, (x, y), likelihood=ba.Gaussian(1.0))
    assert 1.0 / found.noise_precision.item() == pytest.approx(residual, rel=3e-3)


@pytest.mark.parametrize("factor", [1e-9, 1e-3, 300.0])
def test_logits_of_another_scale(classes, factor):
    """Their best temperature is larger by the same factor, but for the prior, however small they are."""
    model, _, _, held_out, _, likelihood = classes
    expected = factor * ba.calibrate(model, held_out, likelihood=likelihood).temperature.item()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "held_out favours more confident predictions")
        found = ba.calibrate(model, held_out, likelihood=likelihood, output=lambda logits: factor * logits)
    assert found.temperature.item() == pytest.approx(expected, rel=3e-2)


@pytest.mark.filterwarnings("ignore:held_out favours more confident predictions")
def test_few_rows_with_one_mistake_do_not_make_predictions_certain():
    """The mistake is nearly a tie, so that without a prior the temperature is .134."""
    margins = torch.tensor([0.02, *[1.0] * 19])
    logits = torch.stack([torch.zeros(20), margins], 1)
    found = ba.calibrate(nn.Identity(), (logits, (margins > 0.1).long()), likelihood=ba.Categorical())
    assert found.temperature.item() == pytest.approx(0.224, rel=5e-3)


def test_an_end_of_the_range_is_warned_of(classes, regression):
    model, _, _, (x, y), _, likelihood = classes
    message = r"^held_out must determine a temperature, got rows for which every higher one is better, up to 10000: "
    with pytest.warns(UserWarning, match=message):
        found = ba.calibrate(model, (x, y), likelihood=likelihood, output=lambda logits: -100 * logits)
    assert found.temperature.item() == pytest.approx(1e4, rel=1e-2)
    model, _, _, (x, _), _, _ = regression
    with torch.no_grad():
        exact = model(x)
    message = r"down to 1e-20: the temperature remains 1. The predictions of these rows are equal to their targets, as"
    with pytest.warns(UserWarning, match=message):
        found = ba.calibrate(model, (x, exact), likelihood=ba.Gaussian(4.0))
    assert found.noise_precision.item() == pytest.approx(4.0)


def test_a_loader_and_outputs_in_a_box(classes):
    model, _, _, held_out, _, likelihood = classes
    box = module_of(lambda self, x: {"logits": self.model(x)}, model=model)
    expected = ba.calibrate(model, held_out, likelihood=likelihood).temperature
    loader = DataLoader(TensorDataset(*held_out), batch_size=70, shuffle=True)
    found = ba.calibrate(box, loader, likelihood=likelihood, output=lambda out: out["logits"], batch_size=30)
    torch.testing.assert_close(found.temperature, expected, rtol=1e-3, atol=0.0)


class TestRowsThatTheNetworkWasTrainedOn:
    def test_in_both(self, classes):
        model, _, train, held_out, _, likelihood = classes
        mixed = torch.cat([held_out[0], train[0][:7]]), torch.cat([held_out[1], train[1][:7]])
        with pytest.warns(UserWarning, match=r"^held_out has 7 rows \(of 307 different ones\) that are in train as"):
            ba.calibrate(model, mixed, likelihood=likelihood, train=train)
        loader = DataLoader(TensorDataset(*train), batch_size=9)
        with pytest.warns(UserWarning, match="^held_out has 7 rows "):
            ba.calibrate(model, mixed, likelihood=likelihood, train=loader)
        ba.calibrate(model, held_out, likelihood=likelihood, train=train)  # a warning would be an error

    def test_that_ask_for_surer_predictions(self, classes):
        """Of a network that was stopped on its way: its logits are a third of what they should be."""
        model, _, _, (x, y), _, likelihood = classes
        with torch.no_grad():
            noisy = torch.where(torch.rand(len(x)) < 0.05, y, model(x).argmax(1))
        message = r"^held_out favours more confident predictions, at the temperature 0\.\d+, and no posterior width"
        with pytest.warns(UserWarning, match=message):
            found = ba.calibrate(model, (x, noisy), likelihood=likelihood, output=lambda logits: logits / 3)
        assert found.temperature < 0.5
        # What training with noise may leave is no sign: a warning would be an error.
        ba.calibrate(model, (x, noisy), likelihood=likelihood, output=lambda logits: 1.2 * logits)

    def test_that_are_all_right(self, classes):
        model, _, _, (x, _), _, likelihood = classes
        with torch.no_grad():
            right = model(x).argmax(1)
        with pytest.warns(UserWarning, match="^held_out must determine a temperature, got rows for which every lower"):
            found = ba.calibrate(model, (x, right), likelihood=likelihood)
        assert found.temperature == 1.0


def test_refusals(classes):
    model, _, _, (x, y), _, likelihood = classes
    for data, options, error, message in (
        ((x, y), {"likelihood": Poisson()}, MissingCapabilityError, "^likelihood must define tempered, got Poisson$"),
        ((x, y), {"likelihood": None}, ValueError, "^likelihood must be a bayesadam.likelihoods.Likelihood, got None$"),
        ([], {}, ValueError, "^data must have at least one batch, got none$"),
        ((x, y), {"posterior": ba.MCDropout, "method": "magic"}, ValueError, "^method must be one of "),
        ((x * math.nan, y), {}, ValueError, "^the predictions of held_out must be finite, got inf or nan$"),
    ):
        with pytest.raises(error, match=message):
            ba.calibrate(model, data, **{"likelihood": likelihood, **options})
