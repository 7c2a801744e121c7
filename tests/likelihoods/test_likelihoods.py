"""Likelihoods against torch.distributions and torch's own losses."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats
from torch import distributions as dist
from torch.nn import functional

import bayesadam as ba

F64 = {"dtype": torch.float64}
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), **F64)


def close(a, b, **tolerances):
    torch.testing.assert_close(a, b, **(tolerances or EXACT))


@pytest.fixture
def float64():
    """Likelihoods keep their noise in the default dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("float64")
class TestGaussian:
    @pytest.mark.parametrize(("precision", "shape"), [(4.0, (7,)), (4.0, (7, 3)), ([0.5, 2.0, 30.0], (7, 3))])
    def test_log_prob_and_nll(self, precision, shape):
        likelihood = ba.Gaussian(precision)
        output, target = draw(*shape), draw(*shape, seed=1)
        terms = dist.Normal(output, torch.tensor(precision) ** -0.5).log_prob(target)
        expected = terms if len(shape) == 1 else terms.sum(-1)
        close(likelihood.log_prob(output, target), expected)
        close(likelihood.nll(output, target), -expected.mean())
        close(likelihood(output, target), -expected.mean())
        mean, variance = likelihood.moments(output)
        assert mean is output
        close(variance, (1 / torch.tensor(precision)).expand(shape))

    @pytest.mark.parametrize("precision", [2.0, [0.5, 2.0]])
    def test_gradients_with_learned_noise(self, precision):
        likelihood = ba.Gaussian(precision, learned=True)
        (noise,) = likelihood.parameters()
        output, target = draw(6, 2).requires_grad_(), draw(6, 2, seed=1)

        def loss(output, noise):
            return torch.func.functional_call(likelihood, {"log_noise_precision": noise}, (output, target))

        assert torch.autograd.gradcheck(loss, (output, noise.detach().requires_grad_()))

    def test_fixed_noise_is_no_parameter_but_is_saved(self):
        assert not list(ba.Gaussian(2.0).parameters())
        for learned in (False, True):
            saved, fresh = ba.Gaussian([2.0, 7.0], learned=learned), ba.Gaussian([1.0, 1.0], learned=learned)
            fresh.load_state_dict(saved.state_dict())
            close(fresh.noise_precision, torch.tensor([2.0, 7.0]))


def test_gaussian_follows_the_dtype_of_the_output():
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for likelihood in (ba.Gaussian(2.0), ba.Gaussian(2.0, learned=True)):
            assert likelihood.nll(torch.zeros(3, dtype=dtype), torch.ones(3, dtype=dtype)).dtype == dtype
    close(ba.Gaussian(4.0).moments(draw(3))[1], torch.full((3,), 0.25, **F64), rtol=3e-7, atol=0)


class TestHeteroscedastic:
    @pytest.mark.parametrize("outputs", [1, 3])
    def test_log_prob_nll_and_moments(self, outputs):
        likelihood = ba.HeteroscedasticGaussian()
        output, target = draw(4, 7, 2 * outputs), draw(7, outputs, seed=1)
        mean, log_variance = output[..., :outputs], output[..., outputs:]
        normal = dist.Normal(mean, (log_variance / 2).exp())
        expected = normal.log_prob(target).sum(-1)
        close(likelihood.log_prob(output, target), expected)
        close(likelihood(output[0], target), -expected[0].mean())
        close(likelihood.moments(output)[0], normal.mean)
        close(likelihood.moments(output)[1], normal.variance)

    @pytest.mark.parametrize("log_variance", [-150.0, -95.0, -80.0, 80.0, 120.0, 1e4])
    def test_extreme_log_variances_in_float32(self, log_variance):
        output = torch.tensor([[0.5, log_variance]], requires_grad=True)
        loss = ba.HeteroscedasticGaussian().nll(output, torch.tensor([[0.5]]))
        loss.backward()
        close(loss.item(), 0.5 * (log_variance + math.log(2 * math.pi)), rtol=1e-6, atol=0)
        close(output.grad, torch.tensor([[0.0, 0.5]]), rtol=1e-6, atol=0)


class TestBernoulli:
    @pytest.mark.parametrize("shape", [(7,), (7, 3)])
    @pytest.mark.parametrize("labels", ["bool", "int", "float", "soft"])
    def test_against_binary_cross_entropy(self, shape, labels):
        output, soft = 3 * draw(*shape), torch.sigmoid(draw(*shape, seed=1))
        target = {"bool": soft > 0.5, "int": (soft > 0.5).int(), "float": (soft > 0.5).double(), "soft": soft}[labels]
        terms = functional.binary_cross_entropy_with_logits(output, target.double(), reduction="none")
        expected = terms if len(shape) == 1 else terms.sum(-1)
        close(ba.Bernoulli().log_prob(output, target), -expected)
        close(ba.Bernoulli()(output, target), expected.mean())

    def test_leading_sample_axes_and_classes(self):
        output, target = draw(4, 7), torch.arange(7) % 2
        close(ba.Bernoulli().log_prob(output, target), dist.Bernoulli(logits=output).log_prob(target.double()))
        log_probs = ba.Bernoulli().log_probs(output)
        assert log_probs.shape == (4, 7, 2)
        p = torch.sigmoid(output)
        close(log_probs.exp(), torch.stack([1 - p, p], -1))

    def test_extreme_logits_in_float32(self):
        output = torch.tensor([1e4, 1e4, -1e4, -1e4], requires_grad=True)
        target = torch.tensor([1, 0, 1, 0])
        log_prob = ba.Bernoulli().log_prob(output, target)
        close(log_prob.detach(), torch.tensor([0.0, -1e4, -1e4, 0.0]))
        log_prob.sum().backward()
        close(output.grad, torch.tensor([0.0, -1.0, 1.0, 0.0]))

    def test_small_probabilities_keep_their_digits(self):
        """log(1 - sigmoid(-40)) is -4e-18, not 0."""
        log_prob = ba.Bernoulli().log_prob(torch.tensor([-40.0]), torch.tensor([0]))
        close(log_prob, -torch.tensor([math.exp(-40.0)]), rtol=1e-5, atol=0)

    @pytest.mark.parametrize("shape", [(6,), (6, 1)])
    def test_expected_densities_of_soft_labels(self, shape):
        """Hard labels beside them keep the approximation by probits."""
        mean = torch.tensor([-8.0, -8.0, 2.0, 0.3, -8.0, 3.0]).double().view(shape)
        variance = torch.tensor([25.0, 25.0, 4.0, 0.01, 25.0, 2.0]).double().view(shape)
        target = torch.tensor([0.3, 0.99, 0.5, 0.2, 0.0, 1.0]).double().view(shape)
        found = ba.Bernoulli().log_expected_density(mean, variance, target).flatten()
        z = np.linspace(-60.0, 60.0, 200_001)
        m, v, y = (part.flatten().numpy()[:, None] for part in (mean, variance, target))
        logs = -y * np.logaddexp(0.0, -z) - (1.0 - y) * np.logaddexp(0.0, z) + stats.norm(m, np.sqrt(v)).logpdf(z)
        expected = torch.tensor(special.logsumexp(logs, axis=1) + np.log(z[1] - z[0]))
        close(found[:4], expected[:4], rtol=1e-6, atol=1e-6)
        close(found[4:], expected[4:], rtol=0.0, atol=0.02)
        hard = ba.Bernoulli().log_expected_density(mean[4:], variance[4:], target[4:] > 0.5).flatten()
        assert torch.equal(found[4:], hard)


class TestCategorical:
    @pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
    def test_against_cross_entropy(self, dtype):
        output, target = 3 * draw(7, 4), (torch.arange(7) % 4).to(dtype)
        close(ba.Categorical()(output, target), functional.cross_entropy(output, target.long()))
        close(ba.Categorical().log_prob(output, target), dist.Categorical(logits=output).log_prob(target.long()))
        close(ba.Categorical().log_probs(output), output.softmax(-1).log())

    def test_extreme_logits_in_float32(self):
        output = torch.tensor([[1e4, -1e4, 0.0], [1e4, -1e4, 0.0]], requires_grad=True)
        log_prob = ba.Categorical().log_prob(output, torch.tensor([0, 1]))
        close(log_prob.detach(), torch.tensor([0.0, -2e4]))
        log_prob.sum().backward()
        assert output.grad.isfinite().all()


@settings(max_examples=50, deadline=None)
@given(samples=st.integers(1, 4), points=st.integers(1, 5), outputs=st.integers(1, 4))
def test_samples_and_points_are_independent(samples, points, outputs):
    """log_prob of all at once is log_prob one by one, for any sizes, also where axes happen to be equal."""
    target = draw(points, outputs, seed=1)
    labels = (target > 0).long()
    for likelihood, output, y in [
        (ba.Gaussian(3.0), draw(samples, points, outputs), target),
        (ba.HeteroscedasticGaussian(), draw(samples, points, 2 * outputs), target),
        (ba.Bernoulli(), draw(samples, points, outputs), labels),
        (ba.Categorical(), draw(samples, points, outputs), labels[:, 0] * (outputs > 1)),
    ]:
        result = likelihood.log_prob(output, y)
        assert result.shape == (samples, points)
        one_by_one = [[likelihood.nll(o[n : n + 1], y[n : n + 1]) for n in range(points)] for o in output]
        close(result, -torch.tensor(one_by_one, **F64))


CASES = [
    (ba.Gaussian(2.0), draw(3, 6), draw(3, 6, seed=1), torch.zeros(5)),
    (ba.HeteroscedasticGaussian(), draw(3, 6, 4), draw(3, 6, 2, seed=1), torch.zeros(6, 4)),
    (ba.Bernoulli(), draw(3, 6, 2), torch.arange(36).view(3, 6, 2) % 2, torch.full((6, 2), 2)),
    (ba.Categorical(), draw(3, 6, 3), torch.arange(18).view(3, 6) % 3, torch.full((6,), 3)),
]


@pytest.mark.parametrize(("likelihood", "outputs", "targets", "wrong"), CASES)
class TestCheckAndDensity:
    def test_log_prob_is_a_check_and_a_density(self, likelihood, outputs, targets, wrong):
        for output, target in zip(outputs, targets, strict=True):
            assert likelihood.check(output, target) is None
            assert likelihood.log_density(output, target).equal(likelihood.log_prob(output, target))
        messages = set()
        for method in (likelihood.check, likelihood.log_prob, likelihood.nll):
            with pytest.raises(ValueError, match="^target must be ") as refusal:
                method(outputs[0], wrong)
            messages.add(str(refusal.value))
        assert len(messages) == 1

    def test_the_density_reads_no_values(self, likelihood, outputs, targets, wrong):
        """It runs where values are not at hand, as under vmap."""
        found = torch.func.vmap(likelihood.log_density)(outputs, targets)
        close(found, torch.stack([likelihood.log_prob(o, y) for o, y in zip(outputs, targets, strict=True)]))
