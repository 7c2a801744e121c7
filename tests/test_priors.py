"""Priors: densities and divergences against high precision, quadrature and brute force."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesadam import DiagonalGaussian, priors

FIXED = {
    "gaussian": priors.GaussianPrior(precision=2.5, mean=0.3),
    "mixture": priors.ScaleMixturePrior(pi=0.7, sigma1=1.3, sigma2=0.2),
    "learned": priors.LearnedGaussianPrior(mean=-0.2, std=0.8).double(),
    "posterior": priors.PosteriorPrior(
        DiagonalGaussian(
            {"w": torch.tensor([[0.1, -2.0, 0.4]]).double()}, {"w": torch.tensor([[0.5, 1.5, 0.1]]).double()}
        )
    ),
}
CLOSED = [name for name, prior in FIXED.items() if prior.closed_form]


def normal_log_density(x, mean, std):
    return -(mpmath.mpf(x - mean) ** 2) / (2 * mpmath.mpf(std) ** 2) - mpmath.log(std) - mpmath.log(2 * mpmath.pi) / 2


def mixture_log_density(x, pi, sigma1, sigma2):
    parts = [mpmath.exp(normal_log_density(x, 0, s)) * p for p, s in ((pi, sigma1), (1 - mpmath.mpf(pi), sigma2))]
    return mpmath.log(sum(parts))


def reference(name, x, position=0):
    """``log p(x)`` in high precision."""
    if name == "gaussian":
        return normal_log_density(x, 0.3, 2.5**-0.5)
    if name == "mixture":
        return mixture_log_density(x, 0.7, 1.3, 0.2)
    if name == "learned":
        return normal_log_density(x, -0.2, 0.8)
    return normal_log_density(x, (0.1, -2.0, 0.4)[position], (0.5, 1.5, 0.1)[position] ** 0.5)


def quadrature_kl(name, mean, std, position):
    """``KL(N(mean, std^2) || p)`` by numerical integration."""

    def integrand(x):
        log_q = normal_log_density(x, mean, std)
        return mpmath.exp(log_q) * (log_q - reference(name, x, position))

    points = [mean - 12 * std, mean - 4 * std, mean, mean + 4 * std, mean + 12 * std]
    return float(mpmath.quad(integrand, points))


@pytest.mark.parametrize("name", FIXED)
def test_log_densities_and_their_sum(name):
    value = torch.tensor([[0.7, -1.1, 0.05]], dtype=torch.float64)
    expected = [float(reference(name, x, i)) for i, x in enumerate(value[0].tolist())]
    torch.testing.assert_close(
        FIXED[name].log_density(value, "w")[0].detach(), torch.tensor(expected).double(), rtol=1e-7, atol=1e-7
    )
    total = FIXED[name].log_prob({"w": value})
    assert total.dtype == torch.float64
    assert total.shape == ()
    assert total.item() == pytest.approx(sum(expected), rel=1e-7)


@pytest.mark.parametrize("name", FIXED)
def test_log_prob_adds_up_all_tensors_and_leading_axes_broadcast(name):
    value = torch.randn(4, 1, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    prior = FIXED[name]
    assert prior.log_density(value, "w").shape == (4, 1, 3)
    if name != "posterior":
        parts = [prior.log_prob({"w": part}) for part in value]
        assert prior.log_prob(dict(zip("abcd", value, strict=True))).item() == pytest.approx(sum(parts).item())


@pytest.mark.parametrize("name", FIXED)
def test_gradients_of_log_prob(name):
    value = torch.tensor([[0.7, -1.1, 0.05]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: FIXED[name].log_prob({"w": v}), value)


@pytest.mark.parametrize("name", CLOSED)
def test_closed_form_divergence_against_quadrature(name):
    mean = torch.tensor([[0.4, -1.5, 0.0]], dtype=torch.float64)
    std = torch.tensor([[0.3, 1.2, 0.05]], dtype=torch.float64)
    expected = sum(
        quadrature_kl(name, m, s, i) for i, (m, s) in enumerate(zip(mean[0].tolist(), std[0].tolist(), strict=True))
    )
    got = FIXED[name].kl_divergence({"w": mean}, {"w": std})
    assert got.dtype == torch.float64
    assert got.item() == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("name", CLOSED)
def test_gradients_of_the_divergence(name):
    generator = torch.Generator().manual_seed(1)
    mean = torch.randn(1, 3, dtype=torch.float64, generator=generator).requires_grad_()
    std = torch.rand(1, 3, dtype=torch.float64, generator=generator).add_(0.1).requires_grad_()
    learned = tuple(p for p in FIXED[name].parameters())
    assert torch.autograd.gradcheck(
        lambda m, s, *_: FIXED[name].kl_divergence({"w": m}, {"w": s}), (mean, std, *learned)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sigmas", [1.0, 400.0])
def test_scale_mixture_far_out(dtype, sigmas):
    mpmath.mp.dps = 50
    prior = priors.ScaleMixturePrior(pi=0.75, sigma1=1.0, sigma2=0.0025)
    for scale in (1.0, 0.0025):
        value = torch.full((2,), sigmas * scale, dtype=dtype, requires_grad=True)
        exact = value[0].item()
        total = prior.log_prob({"w": value})
        expected = float(2 * mixture_log_density(exact, 0.75, 1.0, 0.0025))
        tolerance = 3e-6 if dtype == torch.float32 else 1e-14
        assert total.item() == pytest.approx(expected, rel=tolerance)
        assert 2 * prior.log_density(value)[0].item() == pytest.approx(expected, rel=tolerance)
        total.backward()
        slope = float(mpmath.diff(lambda x: mixture_log_density(x, 0.75, 1.0, 0.0025), mpmath.mpf(exact)))
        np.testing.assert_allclose(value.grad.numpy(), slope, rtol=2e-4 if dtype == torch.float32 else 1e-8, atol=1e-9)


def moments(seed=0, shapes=((3, 4), (5,), ()), dtype=torch.float64):
    """Means, not around 0, and standard deviations by name."""
    generator = torch.Generator().manual_seed(seed)
    draws = [torch.randn((2, *shape), generator=generator, dtype=torch.float64) for shape in shapes]
    mean = {f"w{i}": (draw[0] + 0.8).to(dtype) for i, draw in enumerate(draws)}
    return mean, {f"w{i}": (0.5 * draw[1]).exp().to(dtype) for i, draw in enumerate(draws)}


def flat(tensors):
    return torch.cat([value.detach().flatten() for value in tensors.values()]).double().tolist()


def best_gaussian(mean, std):
    """Mean and standard deviation of the best Gaussian, and the divergence from it, by slow sums."""
    pairs = list(zip(flat(mean), flat(std), strict=True))
    center = math.fsum(m for m, _ in pairs) / len(pairs)
    spread = math.sqrt(math.fsum(s**2 + (m - center) ** 2 for m, s in pairs) / len(pairs))
    terms = [math.log(spread / s) + (s**2 + (m - center) ** 2) / (2 * spread**2) - 0.5 for m, s in pairs]
    return center, spread, math.fsum(terms)


class TestEmpiricalGaussian:
    @settings(deadline=None, max_examples=15)
    @given(
        st.lists(st.lists(st.integers(1, 4), max_size=3), min_size=1, max_size=4),
        st.sampled_from([torch.float32, torch.float64]),
        st.integers(0, 9),
    )
    def test_is_the_divergence_from_the_best_gaussian(self, shapes, dtype, seed):
        mean, std = moments(seed, shapes, dtype)
        center, spread, expected = best_gaussian(mean, std)
        prior = priors.EmpiricalGaussianPrior()
        found = prior.kl_divergence(mean, dict(reversed(std.items())))
        assert found.dtype == torch.float64
        assert found.shape == ()
        tolerance = 1e-12 if dtype == torch.float64 else 1e-6
        assert found.item() == pytest.approx(expected, rel=tolerance, abs=len(flat(mean)) * tolerance)
        assert [value.item() for value in prior.optimum(mean, std)] == pytest.approx(
            [center, spread], rel=tolerance, abs=tolerance * spread
        )

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_gradients_are_those_for_a_fixed_prior(self, dtype):
        mean, std = moments(3, dtype=dtype)
        leaves = [value.requires_grad_() for value in (*mean.values(), *std.values())]
        found = torch.autograd.grad(3.0 * priors.EmpiricalGaussianPrior().kl_divergence(mean, std), leaves)
        center, spread, _ = best_gaussian(mean, std)
        expected = [3 * (m - center) / spread**2 for m in mean.values()]
        expected += [3 * (s / spread**2 - 1 / s) for s in std.values()]
        for slope, other in zip(found, expected, strict=True):
            assert slope.dtype == dtype
            torch.testing.assert_close(slope, other.detach(), rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=1e-6)

    def test_sums_are_taken_in_float64_and_nothing_cancels(self):
        generator = torch.Generator().manual_seed(5)
        mean = {"w": 1000 + 0.01 * torch.randn(640, 500, generator=generator)}
        std = {"w": torch.full((640, 500), 1e-3)}
        center, spread, expected = best_gaussian(mean, std)
        found = priors.EmpiricalGaussianPrior().optimum(mean, std)
        assert [value.item() for value in found] == pytest.approx([center, spread], rel=1e-4)
        assert priors.EmpiricalGaussianPrior().kl_divergence(mean, std).item() == pytest.approx(expected, rel=1e-4)

    @pytest.mark.parametrize("center", [0.0, -300.0])
    @pytest.mark.parametrize("spread", [1e-3, 1e-19, 1e-38])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_of_equal_means_and_tiny_deviations(self, center, spread, dtype):
        mean = {"a": torch.full((7, 3), center, dtype=dtype), "b": torch.full((), center, dtype=dtype)}
        std = {name: torch.full_like(value, spread) for name, value in mean.items()}
        leaves = [value.requires_grad_() for value in (*mean.values(), *std.values())]
        found = priors.EmpiricalGaussianPrior().kl_divergence(mean, std)
        slopes = torch.autograd.grad(1e3 * found, leaves)
        assert found.isfinite()
        assert all(slope.isfinite().all() for slope in slopes[:2])
        if spread > 1e-35:  # whose reciprocal, times 1000, float32 has
            assert all(slope.isfinite().all() for slope in slopes[2:])
        if center == 0 and spread > (1e-15 if dtype == torch.float32 else 1e-140):
            assert found.item() == pytest.approx(0.0, abs=22 * (2e-6 if dtype == torch.float32 else 1e-13))

    @settings(deadline=None, max_examples=8)
    @given(
        st.lists(st.lists(st.integers(1, 3), max_size=3), min_size=1, max_size=3),
        st.integers(1, 4),
        st.sampled_from([torch.float32, torch.float64]),
    )
    def test_mapped_over_the_members_of_a_population(self, shapes, count, dtype):
        mean, std = moments(6, [(count, *shape) for shape in shapes], dtype)
        leaves = [value.requires_grad_() for value in (*mean.values(), *std.values())]
        prior, weights = priors.EmpiricalGaussianPrior(), torch.arange(1.0, count + 1).double()
        mapped = torch.func.vmap(prior.kl_divergence)(mean, std)
        members = [[{name: value[i] for name, value in part.items()} for part in (mean, std)] for i in range(count)]
        looped = torch.stack([prior.kl_divergence(*member) for member in members])
        tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
        torch.testing.assert_close(mapped, looped, **tolerance)
        (mapped @ weights).backward()
        expected = torch.autograd.grad(looped @ weights, leaves)
        for leaf, other in zip(leaves, expected, strict=True):
            torch.testing.assert_close(leaf.grad, other, **tolerance)


def test_prior_from_a_number_a_prior_or_a_posterior():
    assert priors.as_prior(4.0).precision == 4.0
    assert priors.as_prior(FIXED["mixture"]) is FIXED["mixture"]
    q = DiagonalGaussian({"w": torch.zeros(2)}, {"w": torch.ones(2)})
    assert isinstance(priors.as_prior(q), priors.PosteriorPrior)
    for bad in ("gaussian", None, True):
        with pytest.raises(ValueError, match="prior must be a precision, one of bayesadam.priors"):
            priors.as_prior(bad)
    with pytest.raises(ValueError, match="prior must be positive and finite, got -1"):
        priors.as_prior(-1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: priors.GaussianPrior(0.0), r"precision must be positive and finite, got 0\.0"),
        (lambda: priors.GaussianPrior(math.inf), "precision must be positive and finite, got inf"),
        (lambda: priors.GaussianPrior(1.0, mean=math.nan), "mean must be finite, got nan"),
        (lambda: priors.ScaleMixturePrior(pi=1.0, sigma1=1.0, sigma2=0.1), r"pi must be in \(0, 1\), got 1\.0"),
        (lambda: priors.ScaleMixturePrior(pi=0.5, sigma1=-1.0, sigma2=0.1), "sigma1 must be positive and finite, got"),
        (lambda: priors.ScaleMixturePrior(pi=0.5, sigma1=1.0, sigma2=0.0), "sigma2 must be positive and finite, got"),
        (lambda: priors.ScaleMixturePrior(pi=0.5, sigma1=1.0, sigma2=2.0), r"sigma2 must be smaller than sigma1=1\.0,"),
        (lambda: priors.LearnedGaussianPrior(std=0.0), r"std must be positive and finite, got 0\.0"),
        (lambda: priors.LearnedGaussianPrior(mean=math.inf), "mean must be finite, got inf"),
        (
            lambda: priors.ScaleMixturePrior().kl_divergence({"w": torch.zeros(1)}, {"w": torch.ones(1)}),
            "kl must be 'sampled' with a prior without a closed form, got ScaleMixturePrior",
        ),
        (lambda: FIXED["posterior"].check({"v": torch.zeros(1)}), "prior must have the weights 'v', got none"),
        (lambda: FIXED["posterior"].check({"w": torch.zeros(3)}), r"prior of 'w' must be of shape \(3,\), got \(1,"),
        (
            lambda: priors.PosteriorPrior(DiagonalGaussian({"w": torch.zeros(1)}, {"w": torch.zeros(1)})).check(
                {"w": torch.zeros(1)}
            ),
            r"prior of 'w' must have positive variances, got 0",
        ),
        (lambda: priors.EmpiricalGaussianPrior().log_density(torch.ones(2)), "kl must be 'closed_form' with Empirical"),
        (lambda: priors.EmpiricalGaussianPrior().log_prob({"w": torch.ones(2)}), "kl must be 'closed_form' with Empi"),
        (
            lambda: priors.EmpiricalGaussianPrior().kl_divergence({}, {}),
            "means must have at least one weight, got none",
        ),
        (lambda: priors.EmpiricalGaussianPrior().optimum({}, {}), "means must have at least one weight, got none"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()


class Tight(priors.GaussianPrior):
    """Biases are nearer to 0."""

    def log_density(self, value, name=""):
        scale = 10.0 if name.endswith("bias") else 1.0
        return super().log_density(scale * value, name) + math.log(scale)


class TightMixture(priors.ScaleMixturePrior):
    def log_density(self, value, name=""):
        scale = 10.0 if name.endswith("bias") else 1.0
        return super().log_density(scale * value, name) + math.log(scale)


class ByMixin:
    def log_density(self, value, name=""):
        return 2.0 * super().log_density(value, name)


class TightByMixin(ByMixin, priors.LearnedGaussianPrior):
    pass


@pytest.mark.parametrize("make", [Tight, TightMixture, TightByMixin])
def test_a_prior_with_another_density_has_no_closed_form_of_its_parent(make):
    prior = make()
    weights = {
        "weight": torch.linspace(-1.0, 2.0, 6).view(3, 2).double(),
        "bias": torch.tensor([0.2, 0.5, -1.0]).double(),
    }
    expected = sum(prior.log_density(value, name).sum() for name, value in weights.items())
    assert prior.log_prob(weights).item() == pytest.approx(expected.item(), rel=1e-12)
    assert not prior.closed_form
    with pytest.raises(
        ValueError, match=f"kl must be 'sampled' with a prior without a closed form, got {make.__name__}"
    ):
        prior.kl_divergence(weights, weights)


def test_a_closed_form_is_of_the_class_that_defines_it():
    class Halved(priors.GaussianPrior):
        def kl_divergence(self, mean, std):
            return torch.tensor(3.0)

    class Plain(priors.GaussianPrior):
        pass

    class Named(priors.GaussianPrior):
        kl_divergence = priors.GaussianPrior.kl_divergence

    assert Halved.closed_form
    assert Named.closed_form
    assert Halved().kl_divergence({}, {}) == 3.0
    assert not Plain.closed_form
    assert not type("Later", (Halved,), {}).closed_form
