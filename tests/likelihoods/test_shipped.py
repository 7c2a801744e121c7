"""The likelihoods of `bayesadam.likelihoods` against scipy.stats, quadrature and autograd."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate, stats

import bayesadam as ba
from likelihoods.models import draw

F64 = {"dtype": torch.float64}
EXACT = {"rtol": 1e-11, "atol": 1e-12}


def close(a, b, **tolerances):
    torch.testing.assert_close(a, torch.as_tensor(b, **F64), **(tolerances or EXACT))


@pytest.fixture(autouse=True)
def _float64(set_default_dtype):
    """Likelihoods keep their parameters in the default dtype."""
    set_default_dtype(torch.float64)


COUNTS = torch.tensor([0.0, 1, 2, 3, 5, 9, 20], **F64)
AMOUNTS = torch.tensor([1e-3, 0.2, 0.7, 1.0, 2.5, 9.0, 40.0], **F64)
ERRORS = torch.tensor([-30.0, -2.0, -0.1, 0.0, 0.4, 3.0, 100.0], **F64)
OUTPUT = torch.tensor([-1.5, 0.3, 0.0, 2.0, 1.0, 2.5, 3.0], **F64)


def negative_binomial(z, dispersion=0.4):
    mean = np.exp(z)
    return stats.nbinom(1 / dispersion, 1 / (1 + dispersion * mean))


# Likelihood, targets, and scipy's distribution given an output.
CASES = {
    "poisson": (lambda **k: ba.likelihoods.Poisson(), COUNTS, lambda z: stats.poisson(np.exp(z))),
    "negative_binomial": (lambda **k: ba.likelihoods.NegativeBinomial(0.4, **k), COUNTS, negative_binomial),
    "student_t": (lambda **k: ba.likelihoods.StudentT(3.5, scale=0.8, **k), ERRORS, lambda z: stats.t(3.5, z, 0.8)),
    "log_normal": (
        lambda **k: ba.likelihoods.LogNormal(4.0, **k),
        AMOUNTS,
        lambda z: stats.lognorm(0.5, scale=np.exp(z)),
    ),
    "gamma": (lambda **k: ba.likelihoods.Gamma(2.5, **k), AMOUNTS, lambda z: stats.gamma(2.5, scale=np.exp(z) / 2.5)),
}
KINDS = sorted(CASES)
LEARNED = [kind for kind in KINDS if kind != "poisson"]


def case(kind, **options):
    make, targets, reference = CASES[kind]
    return make(**options), targets, reference(OUTPUT.numpy())


def log_pdf(kind, reference, y):
    return reference.logpmf(y) if kind in ("poisson", "negative_binomial") else reference.logpdf(y)


def expected_square_of_the_score(kind, likelihood, z):
    """At an output, by a sum over the counts or an integral; of positive targets over their logarithms."""
    own = CASES[kind][2](z)

    def square(targets):
        values = torch.as_tensor(targets, **F64).reshape(-1)
        return likelihood.score(torch.full_like(values, z), values).square().numpy()

    if likelihood.discrete:
        points = np.arange(0, own.ppf(1 - 1e-13) * 2 + 50)
        return (own.pmf(points) * square(points)).sum()
    if kind == "student_t":
        low, middle, high, term = -math.inf, z, math.inf, lambda t: own.pdf(t) * square(t)[0]
    else:
        low, middle, high = np.log(own.ppf([1e-12, 0.5, 1 - 1e-12]))
        term = lambda u: own.pdf(np.exp(u)) * np.exp(u) * square(np.exp(u))[0]  # noqa: E731
    return sum(integrate.quad(term, *piece, limit=200)[0] for piece in ((low, middle), (middle, high)))


@pytest.mark.parametrize("kind", KINDS)
class TestAgainstScipy:
    def test_density(self, kind):
        likelihood, y, reference = case(kind)
        expected = log_pdf(kind, reference, y.numpy())
        close(likelihood.log_prob(OUTPUT, y), expected)
        close(likelihood.nll(OUTPUT, y), -expected.mean())
        rows = likelihood.log_prob(torch.stack([OUTPUT, OUTPUT + 0.1]).unsqueeze(1), y[None])
        close(rows[0, 0], expected.sum())  # summed over the outputs of a data point; sample axes stay
        assert rows.shape == (2, 1)
        one_by_one = torch.stack([likelihood.log_prob(z[None], t[None])[0] for z, t in zip(OUTPUT, y, strict=True)])
        close(one_by_one, expected)

    def test_moments(self, kind):
        likelihood, _, reference = case(kind)
        mean, variance = likelihood.moments(OUTPUT)
        close(mean, reference.mean())
        close(variance, reference.var())

    def test_distribution_function(self, kind):
        likelihood, y, reference = case(kind)
        for values in (y, y + 0.5, y * 1e3, -y - 0.5):
            close(likelihood.cdf(OUTPUT, values), reference.cdf(values.numpy()), rtol=1e-9, atol=1e-14)

    @pytest.mark.parametrize("level", [0.001, 0.3, 0.5, 0.999])
    def test_quantiles(self, kind, level):
        likelihood, _, reference = case(kind)
        found = ba.predictive.MixturePredictive(OUTPUT[None], likelihood).quantile(level)
        close(found, reference.ppf(level), rtol=1e-9, atol=1e-12)

    def test_samples_have_the_moments(self, kind):
        likelihood, _, _ = case(kind)
        output, count = OUTPUT[:3], 200_000
        state = torch.get_rng_state()
        draws = likelihood.sample(output.expand(count, 3), seed=5)
        assert torch.get_rng_state().equal(state)
        assert draws.equal(likelihood.sample(output.expand(count, 3), seed=5))
        reference = CASES[kind][2](output.numpy())
        z = (draws.mean(0).numpy() - reference.mean()) / np.sqrt(reference.var() / count)
        assert np.abs(z).max() < 4
        # The variance of the sample variance needs the fourth moment, which heavy tails may not have: ranks instead.
        below = (draws <= torch.as_tensor(reference.ppf(0.75))).double().mean(0).numpy()
        level = reference.cdf(reference.ppf(0.75))
        assert np.abs((below - level) / np.sqrt(level * (1 - level) / count)).max() < 4

    def test_score_is_the_derivative(self, kind):
        likelihood, y, _ = case(kind)
        leaf = OUTPUT.clone().requires_grad_()
        (expected,) = torch.autograd.grad(likelihood.log_prob(leaf, y).sum(), leaf)
        found = likelihood.score(leaf, y)
        close(found, expected)
        assert not found.requires_grad
        close(likelihood.score(OUTPUT.expand(3, 7), y[None]), expected.expand(3, 7))
        close(ba.likelihoods.Likelihood.score(likelihood, OUTPUT, y), expected)

    def test_fisher_information_is_the_expected_square_of_the_score(self, kind):
        likelihood, y, _ = case(kind)
        factor = likelihood.fisher_factor(OUTPUT.view(7, 1), y.view(7, 1))
        assert factor.shape == (7, 1, 1, 1)
        expected = [expected_square_of_the_score(kind, likelihood, z) for z in OUTPUT.tolist()]
        close(factor.flatten() ** 2, expected, rtol=1e-6, atol=0)

    def test_expected_densities_by_quadrature(self, kind):
        """Of two outputs per data point, against the trapezoidal rule on a fine grid."""
        likelihood, y, _ = case(kind)
        mean, variance, y = OUTPUT[:6].view(3, 2), (0.3 + 0.1 * draw(3, 2)).square(), y[:6].view(3, 2)
        grid = torch.linspace(-9, 9, 4001)
        weights = torch.exp(-0.5 * grid.square()) * (grid[1] - grid[0]) / math.sqrt(2 * math.pi)
        terms = likelihood.element_log_density(mean + variance.sqrt() * grid.view(-1, 1, 1), y)
        expected = (weights.view(-1, 1, 1) * terms).sum(0).sum(-1)
        close(likelihood.expected_log_density(mean, variance, y), expected, rtol=1e-7, atol=1e-7)
        expected = (weights.view(-1, 1, 1) * terms.exp()).sum(0).log().sum(-1)
        close(likelihood.log_expected_density(mean, variance, y), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", LEARNED)
def test_gradients_of_learned_ones(kind):
    likelihood, y, _ = case(kind, learned=True)
    names, values = zip(*likelihood.named_parameters(), strict=True)
    assert all(name.startswith("log_") for name in names)
    target = y[[1, 3, 4]]

    def loss(output, *values):
        return torch.func.functional_call(likelihood, dict(zip(names, values, strict=True)), (output, target))

    leaves = [value.detach().requires_grad_() for value in values]
    assert torch.autograd.gradcheck(loss, (OUTPUT[:3].clone().requires_grad_(), *leaves))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (ba.likelihoods.NegativeBinomial, "dispersion"),
        (ba.likelihoods.StudentT, "degrees"),
        (ba.likelihoods.StudentT, "scale"),
        (ba.likelihoods.LogNormal, "noise_precision"),
        (ba.likelihoods.Gamma, "shape"),
    ],
)
def test_one_number_per_output(make, name):
    several = make(**{name: [0.5, 3.0]})
    y, z = torch.tensor([[1.0, 2.0], [3.0, 1.0]]), draw(2, 2)
    parts = [make(**{name: value}).log_prob(z[:, i], y[:, i]) for i, value in enumerate((0.5, 3.0))]
    close(several.log_prob(z, y), parts[0] + parts[1])
    close(getattr(several, name), [0.5, 3.0])
    factors = [make(**{name: v}).fisher_factor(z[:, i], y[:, i]).flatten() for i, v in enumerate((0.5, 3.0))]
    close(several.fisher_factor(z, y).view(2, 2), torch.stack(factors, 1))


@pytest.mark.parametrize("kind", KINDS)
def test_whole_numbers_of_any_dtype(kind):
    torch.set_default_dtype(torch.float32)
    z, likelihood = draw(4), case(kind)[0].double()
    for dtype in (torch.int64, torch.int32, torch.uint8):
        y = torch.tensor([1, 3, 1, 7], dtype=dtype)
        close(likelihood.log_prob(z, y), likelihood.log_prob(z, y.double()))
        close(likelihood.score(z, y), likelihood.score(z, y.double()))
        variance = z.square()
        expected = likelihood.expected_log_density(z, variance, y.double())
        close(likelihood.expected_log_density(z, variance, y), expected)


@pytest.mark.parametrize(
    "likelihood", [ba.Gaussian(4.0), ba.Gaussian([1.0, 4.0], learned=True), ba.likelihoods.StudentT(3.0, scale=0.5)]
)
def test_density_in_other_units(likelihood):
    shift, factor = torch.tensor([3.0, -1.0]), torch.tensor([10.0, 0.2])
    z, y = draw(5, 2), draw(5, 2, seed=1)
    changed = likelihood.double().rescaled(factor)
    expected = likelihood.log_prob(z, y) - factor.log().sum()
    close(changed.log_prob(shift + factor * z, shift + factor * y), expected, rtol=1e-6, atol=1e-6)
    assert [p.requires_grad for p in changed.parameters()] == [True] * len(list(likelihood.parameters()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("degrees", [0.5, 4.0, 63.0, 65.0, 1e4, 1e6, 1.1e6, 1e8, 1e12, 1e20])
def test_students_t_with_many_degrees_of_freedom(degrees, dtype):
    likelihood = ba.likelihoods.StudentT(degrees, scale=2.0).to(dtype)
    output, target = torch.full((5,), 0.5, dtype=dtype), torch.tensor([-6.0, -1.0, 0.5, 2.0, 9.0], dtype=dtype)
    exact = stats.norm(0.5, 2.0) if degrees > 1e15 else stats.t(degrees, 0.5, 2.0)
    tolerance = 2e-5 if dtype is torch.float32 else 1e-9
    expected = torch.tensor(exact.logpdf(target.double().numpy()))
    torch.testing.assert_close(
        likelihood.element_log_density(output, target).double(), expected, rtol=0, atol=tolerance
    )
    expected = torch.tensor(exact.cdf(target.double().numpy()))
    torch.testing.assert_close(likelihood.cdf(output, target).double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [0.3, 10.0, 31.0, 33.0, 1e4, 1e6])
def test_amounts_of_almost_no_variance(shape, dtype):
    mean, width = np.exp(2.0), shape**-0.5
    target = torch.tensor(mean * np.exp(width * np.linspace(-2.0, 2.0, 5)), dtype=dtype)
    output = torch.full((5,), 2.0, dtype=dtype)
    found = ba.likelihoods.Gamma(shape).to(dtype).element_log_density(output, target).double()
    # the rounding of log(y / mean) in units of the width
    tolerance = 3.0 * torch.finfo(dtype).eps / width * 4.0 + (1e-5 if dtype is torch.float32 else 1e-9)
    close(found, stats.gamma(shape, scale=mean / shape).logpdf(target.double().numpy()), rtol=1e-6, atol=tolerance)


LOG_RATES = np.array([-60.0, -8.0, -0.5, 0.0, 1.5, 9.0, 16.0, 16.1181, 16.2, 20.0, 60.0])
MANY_COUNTS = np.array([0.0, 1.0, 2.0, 30.0, 1e3, 1e5, 1e7])[:, None]


def exact_counts(log_rate, count, dispersion):
    """Log density by 60 digits, and its derivative by the log rate."""
    with mpmath.workdps(60):
        z, y, d = mpmath.mpf(float(log_rate)), mpmath.mpf(float(count)), mpmath.mpf(dispersion)
        rate = mpmath.exp(z)
        if not d:
            return float(y * z - rate - mpmath.loggamma(y + 1)), float(y - rate)
        chance = mpmath.loggamma(y + 1 / d) - mpmath.loggamma(1 / d) - mpmath.loggamma(y + 1)
        density = chance + y * mpmath.log(d * rate / (1 + d * rate)) - mpmath.log(1 + d * rate) / d
        return float(density), float((y - rate) / (1 + d * rate))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dispersion", [0.0, 1e-18, 1e-12, 1e-3, 0.031, 1.0, 1e4])
def test_counts_keep_their_digits(dispersion, dtype):
    """They lose no more than the rounding of ``log y`` times the derivative does."""
    likelihood = ba.likelihoods.NegativeBinomial(dispersion) if dispersion else ba.likelihoods.Poisson()
    output = torch.tensor(LOG_RATES, dtype=dtype).expand(len(MANY_COUNTS), -1).clone().requires_grad_()
    target = torch.tensor(MANY_COUNTS, dtype=dtype).expand_as(output)
    found = likelihood.element_log_density(output, target)
    (slope,) = torch.autograd.grad(found.sum(), output)
    exact = np.vectorize(exact_counts)(output.detach().numpy(), target.numpy(), dispersion)
    density, derivative = map(torch.tensor, exact)
    eps = torch.finfo(dtype).eps
    # rounding of the logarithms of the count, the rate and the dispersion
    allowed = eps * (30.0 + 60.0 * density.abs() + 30.0 * derivative.abs())
    assert ((found.double() - density).abs() <= allowed).all()
    curvature = target.double() + 1.0 if not dispersion else (target.double() + 1.0).clamp_max(1.0 / dispersion)
    assert ((slope.double() - derivative).abs() <= eps * (100.0 * derivative.abs() + 100.0 * curvature)).all()
