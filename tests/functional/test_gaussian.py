"""The Gaussian formulae against torch.distributions, and against 60-digit arithmetic where float64 loses digits."""

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Normal
from torch.distributions import kl_divergence as torch_kl

from bayesadam.functional import gaussian

INF = math.inf
VARIANCES = [1e-30, 1e-9, 1.0, 1e9, 1e30]


def tensors(*values, dtype=torch.float64):
    return [torch.tensor(value, dtype=dtype) for value in values]


def exact(number):
    """The value of a formula of ``mpf`` numbers, computed with 60 digits."""
    with mpmath.workdps(60):
        return float(number(mpmath.mpf))


def exact_kl(mean, variance, prior_mean, prior_variance):
    def kl(mpf):
        ratio, shift = mpf(variance) / mpf(prior_variance), mpf(mean) - mpf(prior_mean)
        return (ratio - 1 - mpmath.log(ratio) + shift**2 / mpf(prior_variance)) / 2

    return exact(kl)


@pytest.fixture
def batch():
    """Value, mean, variance, another mean and another variance: 1000 of each, over six orders of magnitude."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 1000, generator=generator, dtype=torch.float64)
    return x[0], x[1], x[2].mul(3.0).exp(), x[3], x[4].mul(3.0).exp()


def test_values_are_torchs(batch):
    value, mean, variance, prior_mean, prior_variance = batch
    normal, prior = Normal(mean, variance.sqrt()), Normal(prior_mean, prior_variance.sqrt())
    for found, expected in (
        (gaussian.log_prob(value, mean, variance), normal.log_prob(value)),
        (gaussian.entropy(variance), normal.entropy()),
        (gaussian.kl_divergence(mean, variance, prior_mean, prior_variance), torch_kl(normal, prior)),
    ):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


class TestArguments:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_low_precision_is_computed_in_float64(self, batch, dtype):
        low = [x.to(dtype) for x in batch]
        high = [x.double() for x in low]
        for function, arguments in (
            (gaussian.log_prob, [0, 1, 2]),
            (gaussian.entropy, [2]),
            (gaussian.kl_divergence, [1, 2, 3, 4]),
        ):
            found = function(*(low[i] for i in arguments))
            assert found.dtype == torch.float64
            assert torch.equal(found, function(*(high[i] for i in arguments)))

    def test_gradients(self):
        mean, prior_mean = torch.tensor([[0.3, -2.0], [0.1, 0.7]], dtype=torch.float64, requires_grad=True)
        variance, prior_variance = torch.tensor([[0.5, 3.0], [0.52, 1.0]], dtype=torch.float64, requires_grad=True)
        value = torch.tensor([1.0, -0.5], dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(gaussian.log_prob, (value, mean, variance))
        assert torch.autograd.gradcheck(gaussian.entropy, (variance,))
        assert torch.autograd.gradcheck(gaussian.kl_divergence, (mean, variance, prior_mean, prior_variance))


class TestExtremes:
    @pytest.mark.parametrize("deviation", [0.0, 1e-20, 1.0, 1e20])
    @pytest.mark.parametrize("variance", VARIANCES)
    def test_log_prob(self, variance, deviation):
        expected = exact(
            lambda mpf: -(mpf(deviation) ** 2 / mpf(variance) + mpmath.log(2 * mpmath.pi * mpf(variance))) / 2
        )
        assert gaussian.log_prob(*tensors(deviation, 0.0, variance)).item() == pytest.approx(
            expected, rel=1e-13, abs=0.0
        )

    @pytest.mark.parametrize("variance", VARIANCES)
    def test_entropy(self, variance):
        expected = exact(lambda mpf: (mpmath.log(2 * mpmath.pi * mpf(variance)) + 1) / 2)
        assert gaussian.entropy(*tensors(variance)).item() == pytest.approx(expected, rel=1e-13, abs=0.0)

    @pytest.mark.parametrize("shift", [0.0, 1e-20, 1.0, 1e20])
    @pytest.mark.parametrize("prior_variance", VARIANCES)
    @pytest.mark.parametrize("variance", VARIANCES)
    def test_kl_divergence(self, variance, prior_variance, shift):
        found = gaussian.kl_divergence(*tensors(shift, variance, 0.0, prior_variance)).item()
        assert found == pytest.approx(exact_kl(shift, variance, 0.0, prior_variance), rel=1e-12, abs=0.0)

    @pytest.mark.parametrize("variance", VARIANCES)
    @pytest.mark.parametrize("sign", [-1, 1])
    @pytest.mark.parametrize("size", [1e-15, 1e-8, 0.01, 0.0999, 0.1001, 0.3])
    def test_kl_divergence_is_accurate_relative_to_itself_near_equality(self, variance, size, sign):
        other = variance * (1 + sign * size)
        found = gaussian.kl_divergence(*tensors(0.0, other, 0.0, variance)).item()
        assert 0 < found == pytest.approx(exact_kl(0.0, other, 0.0, variance), rel=3e-12, abs=0.0)


@settings(deadline=None)
@given(st.integers(-(10**6), 10**6), st.floats(1e-30, 1e30))
def test_the_divergence_from_itself_is_zero(mean, variance):
    assert gaussian.kl_divergence(*tensors(mean / 1000, variance, mean / 1000, variance)) == 0


class TestPointMasses:
    def test_log_prob_is_that_of_the_counting_measure(self):
        found = gaussian.log_prob(*tensors([1.0, 1.0 + 1e-15, 2.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]))
        assert found.tolist() == [0.0, -INF, -INF]

    def test_entropy_is_zero(self):
        assert gaussian.entropy(*tensors([0.0, 1.0])).tolist() == [0.0, 0.5 * math.log(2 * math.pi * math.e)]

    @pytest.mark.parametrize(
        ("mean", "variance", "prior_mean", "prior_variance", "expected"),
        [
            (3.0, 0.0, 0.0, 1.0, 0.0),  # a pruned weight is not part of the random ones
            (3.0, 0.0, 3.0, 0.0, 0.0),
            (3.0, 0.0, 4.0, 0.0, INF),
            (3.0, 1e-30, 3.0, 0.0, INF),
            (3.0, 1.0, 4.0, 0.0, INF),
        ],
    )
    def test_kl_divergence(self, mean, variance, prior_mean, prior_variance, expected):
        assert gaussian.kl_divergence(*tensors(mean, variance, prior_mean, prior_variance)).item() == expected

    def test_gradients_beside_them_are_finite(self):
        value, mean, prior_mean = tensors([1.0, 2.0], [1.0, 1.0], [0.0, 0.0])
        variance = torch.tensor([0.0, 2.0], dtype=torch.float64, requires_grad=True)
        total = (
            gaussian.log_prob(value, mean, variance)
            + gaussian.entropy(variance)
            + gaussian.kl_divergence(mean, variance, prior_mean, torch.ones(2))
        )
        # 0.5 (deviation^2 / v^2 - 1 / v) + 0.5 / v + 0.5 (1 - 1 / v) for the second, and nothing for the point mass
        assert torch.autograd.grad(total.sum(), variance)[0].tolist() == pytest.approx([0.0, 0.125 + 0.25])
