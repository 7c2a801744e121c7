"""The regressor's ``likelihood=``: densities, means, intervals and draws in the units of the targets."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.base import clone

import bayesadam as ba
from bayesadam.sklearn import BayesianMLPRegressor, load_estimator
from bayesadam.tables.estimators.named_likelihoods import NAMES, best_constant, made
from likelihoods.models import Exponential

pytestmark = pytest.mark.usefixtures("few_trees")
SMALL = {"hidden": (8,), "members": 2, "epochs": 120, "mc_samples": 4, "random_state": 0}
SHIPPED = [name for name in NAMES if name != "gaussian"]


@pytest.fixture(scope="module")
def data():
    """Inputs, and targets by name, whose mean is 20 exp(x) or about 5,000."""
    generator = np.random.default_rng(0)
    x = generator.uniform(-1.0, 1.0, (160, 2))
    mean = 20.0 * np.exp(x[:, 0])
    return x, {
        "poisson": generator.poisson(mean),
        "negative_binomial": generator.negative_binomial(4, 4 / (4 + mean)),
        "gamma": generator.gamma(3.0, mean / 3.0),
        "log_normal": mean * np.exp(0.3 * generator.standard_normal(160)),
        "student_t": 5_000.0 + 1_000.0 * (x[:, 0] + 0.1 * generator.standard_t(3, 160)),
    }


@pytest.fixture(scope="module")
def fitted(data):
    """Each is trained once."""
    found = {}

    def fit(name, method):
        if (name, method) not in found:
            found[name, method] = BayesianMLPRegressor(method, likelihood=name, **SMALL).fit(data[0], data[1][name])
        return found[name, method]

    return fit


PAIRS = [(name, "laplace") for name in SHIPPED]
PAIRS += [("poisson", "vadam"), ("negative_binomial", "ensemble")]


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_the_targets_are_described(name, method, fitted, data):
    """Better than by one distribution for all rows, with means near the true ones and intervals that cover."""
    x, y = data[0], data[1][name]
    model = fitted(name, method)
    target = torch.from_numpy(y.astype(np.float64))
    shift, scale = (5_000.0, 1_000.0) if name == "student_t" else (0.0, 1.0)
    rows = (target[:, None] - shift) / scale
    constant, output = best_constant(made(name, 1), rows)
    density = constant.log_prob(output.expand(160, 1), rows).mean().item() - np.log(scale)
    assert model.predictive(x).log_prob(target).mean().item() > density + 0.1
    mean, std = model.predict(x, return_std=True)
    truth = 5_000.0 + 1_000.0 * x[:, 0] if name == "student_t" else 20.0 * np.exp(x[:, 0])
    assert np.sqrt(np.mean((mean - truth) ** 2)) < 0.6 * truth.std()
    assert (std > 0).all()

    interval = model.predict_interval(x, coverage=0.9)
    assert interval.shape == (160, 2)
    assert 0.8 < ((interval[:, 0] <= y) & (y <= interval[:, 1])).mean()
    draws = model.sample_y(x, 300)
    assert draws.shape == (160, 300)
    assert np.array_equal(draws, model.sample_y(x, 300))
    assert 0.87 < ((interval[:, :1] <= draws) & (draws <= interval[:, 1:])).mean() < 0.97
    if name in ("poisson", "negative_binomial"):
        assert (draws == draws.round()).all()
        assert (interval == interval.round()).all()


def test_the_density_is_a_mixture_over_members_and_samples(fitted, data):
    x, y = data[0], data[1]["poisson"]
    model = fitted("poisson", "vadam")
    inputs = torch.from_numpy(((x - model._x_mean) / model._x_std).astype(np.float32))
    factor = model.calibration_["epistemic"][0]
    assert factor != 1.0
    rates = []
    for member, q in enumerate(model.posterior_.components):
        draws = []
        for number in range(4):
            with q.applied(model.network_, sample=number, seed=member), torch.no_grad():
                draws.append(model.network_(inputs)[:, 0].double().numpy())
        center = np.mean(draws, axis=0)
        scaled = np.exp(np.sqrt(factor) * (draws - center))
        rates.extend(np.exp(center) * scaled / scaled.mean(0))  # the mean does not grow with the variance
    rates = np.stack(rates)
    pred = model.predictive(x)
    expected = np.log(stats.poisson(rates).pmf(y).mean(0))
    np.testing.assert_allclose(pred.log_prob(torch.from_numpy(y)).numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(model.predict(x), rates.mean(0), rtol=1e-6)
    _, std = model.predict(x, return_std=True)
    np.testing.assert_allclose(std**2, rates.mean(0) + rates.var(0, ddof=1), rtol=1e-5)
    reached = stats.poisson(rates).cdf(np.arange(400)[:, None, None]).mean(1) >= 0.95
    assert (model.predict_interval(x, 0.9)[:, 1] == reached.argmax(0)).all()
    assert model.calibration_["aleatoric"] == 1.0
    assert model.calibration_["error"] > 0.0


def test_several_targets(data):
    x, y = data[0], np.stack([data[1]["negative_binomial"], data[1]["poisson"]], axis=1)
    model = BayesianMLPRegressor(likelihood="negative_binomial", **SMALL).fit(x, y)
    assert model.predict(x).shape == (160, 2)
    assert model.predict_interval(x).shape == (160, 2, 2)
    assert model.sample_y(x, 5).shape == (160, 2, 5)
    first, second = model.likelihood_.dispersion
    assert 0.1 < first < 0.6  # drawn with 0.25
    assert second < 0.5 * first


@pytest.mark.parametrize(("name", "method"), [("poisson", "vadam"), ("student_t", "vadam")])
def test_what_is_read_predicts_the_same(name, method, fitted, data, tmp_path):
    model = fitted(name, method)
    model.save(tmp_path)
    same = load_estimator(tmp_path)
    target = torch.from_numpy(data[1][name].astype(np.float64))
    expected = model.predictive(data[0]).log_prob(target)
    torch.testing.assert_close(same.predictive(data[0]).log_prob(target), expected, rtol=1e-6, atol=1e-6)
    learned = (each.likelihood_.state_dict() for each in (same, model))
    torch.testing.assert_close(*learned, rtol=0.0, atol=0.0)


class Peaked(ba.likelihoods.Likelihood):
    """Laplace noise, whose scale is a parameter; it has a buffer that is no number to average."""

    def __init__(self):
        super().__init__()
        self.log_scale = torch.nn.Parameter(torch.zeros(()))
        self.register_buffer("version", torch.tensor(3))

    def distribution(self, output):
        return torch.distributions.Laplace(output, self.log_scale.exp(), validate_args=False)


class TestOwn:
    @pytest.mark.parametrize("calibrate", [True, False])
    def test_learned_parameters_are_readable(self, calibrate, data):
        x, own = data[0], Peaked()
        y = 2.0 * x[:, 0] + 0.3 * np.random.default_rng(1).laplace(size=160)
        model = BayesianMLPRegressor("ensemble", likelihood=own, calibrate=calibrate, **SMALL).fit(x, y)
        found = model.likelihood_
        assert 0.2 < found.log_scale.exp().item() < 0.7  # without the inputs it is 1.0
        members = [likelihood.log_scale.item() for likelihood in model._likelihoods]
        assert found.log_scale.item() == pytest.approx(np.mean(members), rel=1e-6)
        assert (members[0] == members[1]) == calibrate  # they are then fitted to the rows left out, for all members
        np.testing.assert_allclose(model.predictive(x).aleatoric, 2.0 * found.log_scale.exp().item() ** 2, rtol=1e-6)
        assert found.version == 3
        assert own.log_scale == 0.0

    def test_a_density_alone(self, data, tmp_path):
        x, y = data[0], data[1]["gamma"]
        model = clone(BayesianMLPRegressor(likelihood=Exponential(), **SMALL)).fit(x, y)
        assert model.predictive(x).log_prob(torch.from_numpy(y)).isfinite().all()
        with pytest.raises(ba.likelihoods.MissingCapabilityError, match="^likelihood must define moments, distr"):
            model.predict(x)
        with pytest.raises(ba.likelihoods.MissingCapabilityError, match="^likelihood must define cdf or distr"):
            model.predict_interval(x)
        with pytest.raises(ValueError, match="^likelihood must be numbers, text or None to be saved, got Exponential"):
            model.save(tmp_path)

    def test_noise_in_the_units_of_the_targets(self, data):
        x, y = data[0], data[1]["student_t"]
        options = {"calibrate": False, **SMALL}
        model = BayesianMLPRegressor(likelihood=ba.Gaussian(1e-4), **options).fit(x, y)
        np.testing.assert_allclose(model.predictive(x).aleatoric, 1e4, rtol=1e-5)
        assert model.likelihood_.noise_precision.item() == pytest.approx(1e-4, rel=1e-5)
        fixed = ba.likelihoods.StudentT(5.0, scale=100.0)
        model = BayesianMLPRegressor("ensemble", likelihood=fixed, **options).fit(x, y)
        np.testing.assert_allclose(model.predictive(x).aleatoric, 1e4 * 5 / 3, rtol=1e-5)
        assert fixed.scale.item() == pytest.approx(100.0)
        assert model.likelihood_.scale.item() == pytest.approx(100.0, rel=1e-5)
        assert np.corrcoef(model.predict(x), x[:, 0])[0, 1] > 0.9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"likelihood": "cauchy"}, r"^likelihood must be one of \('gaussian', .*or a .*got 'cauchy'$"),
        ({"likelihood": ba.likelihoods.Poisson}, "^likelihood must be one of .* or a bayesadam.likelihoods.Likelihood"),
        ({"likelihood": ba.Categorical()}, r"^likelihood must be one of numbers, not classes, .* got Categorical"),
        ({"likelihood": "gamma", "noise": "input"}, "^noise must be 'auto' with likelihood='gamma', got 'input'$"),
    ],
)
def test_refusals(options, message, data):
    with pytest.raises(ValueError, match=message):
        BayesianMLPRegressor(**options).fit(data[0], data[1]["gamma"])


class TestStart:
    def test_best_constant(self):
        generator = np.random.default_rng(1)
        y = torch.from_numpy(1e5 * generator.gamma(3.0, 1.0, (500, 2)))
        likelihood, output = best_constant(ba.likelihoods.Gamma(torch.ones(2), learned=True), y)
        np.testing.assert_allclose(output.numpy(), y.mean(0).log().numpy(), rtol=1e-4, atol=1e-4)
        for column in range(2):
            shape, _, _ = stats.gamma.fit(y[:, column].numpy(), floc=0)
            assert likelihood.shape[column].item() == pytest.approx(shape, rel=1e-3)
