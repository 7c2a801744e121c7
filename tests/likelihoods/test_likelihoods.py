"""Likelihoods against torch.distributions and torch's own losses."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats
from torch import distributions as dist
from torch import nn
from torch.nn import functional

import bayesadam as ba
from bayesadam.optim import Vadam

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

    @pytest.mark.parametrize("shape", [(7,), (7, 3)])
    def test_leading_sample_axes_stay(self, shape):
        likelihood = ba.Gaussian(2.0)
        output, target = draw(5, 4, *shape), draw(*shape, seed=1)
        result = likelihood.log_prob(output, target)
        assert result.shape == (5, 4, 7)
        for i in range(5):
            for j in range(4):
                close(result[i, j], likelihood.log_prob(output[i, j], target))

    @pytest.mark.parametrize("precision", [2.0, [0.5, 2.0]])
    def test_gradients_with_learned_noise(self, precision):
        likelihood = ba.Gaussian(precision, learned=True)
        (noise,) = likelihood.parameters()
        output, target = draw(6, 2).requires_grad_(), draw(6, 2, seed=1)

        def loss(output, noise):
            return torch.func.functional_call(likelihood, {"log_noise_precision": noise}, (output, target))

        assert torch.autograd.gradcheck(loss, (output, noise.detach().requires_grad_()))

    @pytest.mark.parametrize("per_output", [False, True])
    def test_learned_precision_goes_to_the_residuals(self, per_output):
        output = draw(200, 2)
        target = output + torch.tensor([0.1, 3.0]) * draw(200, 2, seed=1)
        likelihood = ba.Gaussian([1.0, 1.0] if per_output else 1.0, learned=True)
        optimizer = torch.optim.LBFGS(likelihood.parameters(), max_iter=100, line_search_fn="strong_wolfe")

        def closure():
            optimizer.zero_grad()
            loss = likelihood.nll(output, target)
            loss.backward()
            return loss

        optimizer.step(closure)
        expected = 1 / (target - output).square().mean(*([0] if per_output else []))
        close(likelihood.noise_precision.detach(), expected, rtol=1e-5, atol=0)

    def test_learned_noise_trains_beside_a_perturbed_network(self):
        network, likelihood = nn.Linear(1, 1), ba.Gaussian(1.0, learned=True)
        optimizer = Vadam(
            [
                {"params": list(network.named_parameters())},
                {"params": list(likelihood.named_parameters()), "perturb": False},
            ],
            lr=0.05,
            num_data=200,
        )
        x = draw(200, 1)
        y = 2 * x + 0.1 * draw(200, 1, seed=1)
        for _ in range(300):
            with optimizer.sampled_params():
                optimizer.zero_grad()
                likelihood(network(x), y).backward()
            optimizer.step()
        assert 30 < likelihood.noise_precision < 130  # 100, less what the noise of the weights adds

    def test_fixed_noise_is_no_parameter_but_is_saved(self):
        assert not list(ba.Gaussian(2.0).parameters())
        for learned in (False, True):
            saved, fresh = ba.Gaussian([2.0, 7.0], learned=learned), ba.Gaussian([1.0, 1.0], learned=learned)
            fresh.load_state_dict(saved.state_dict())
            close(fresh.noise_precision, torch.tensor([2.0, 7.0]))

    @pytest.mark.parametrize(
        ("precision", "message"),
        [
            (0.0, "^noise_precision must be positive and finite, got 0.0$"),
            (-1, "^noise_precision must be positive and finite, got -1$"),
            (math.nan, "got nan$"),
            (math.inf, "got inf$"),
            ([1.0, -2.0], r"got \[1.0, -2.0\]$"),
        ],
    )
    def test_refuses_precisions(self, precision, message):
        with pytest.raises(ValueError, match=message):
            ba.Gaussian(precision)

    @pytest.mark.parametrize("shape", [(5, 1), (5, 2), (7,)])
    def test_refuses_another_number_of_outputs_than_of_precisions(self, shape):
        message = r"^noise_precision must be one number or one per output, got \(3,\) of them for outputs \("
        with pytest.raises(ValueError, match=message):
            ba.Gaussian([1.0, 2.0, 3.0]).nll(torch.zeros(shape), torch.zeros(shape))

    @pytest.mark.parametrize(
        ("output", "target"), [((5,), (5, 1)), ((5, 1), (5,)), ((5, 2), (5,)), ((5, 1), (5, 2)), ((), (5,))]
    )
    def test_refuses_shapes_that_would_broadcast(self, output, target):
        message = "^target must be of the output's shape {}, got {}$".format(*map(re_tuple, (output, target)))
        with pytest.raises(ValueError, match=message):
            ba.Gaussian().nll(torch.zeros(output), torch.zeros(target))


def re_tuple(shape):
    return str(tuple(shape)).replace("(", r"\(").replace(")", r"\)")


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

    def test_gradient(self):
        target = draw(5, 2, seed=1)
        likelihood = ba.HeteroscedasticGaussian()
        assert torch.autograd.gradcheck(lambda o: likelihood(o, target), draw(5, 4).requires_grad_())

    @pytest.mark.parametrize("log_variance", [-150.0, -95.0, -80.0, 80.0, 120.0, 1e4])
    def test_extreme_log_variances_in_float32(self, log_variance):
        output = torch.tensor([[0.5, log_variance]], requires_grad=True)
        loss = ba.HeteroscedasticGaussian().nll(output, torch.tensor([[0.5]]))
        loss.backward()
        close(loss.item(), 0.5 * (log_variance + math.log(2 * math.pi)), rtol=1e-6, atol=0)
        close(output.grad, torch.tensor([[0.0, 0.5]]), rtol=1e-6, atol=0)

    def test_errors(self):
        message = r"^output must have mean and log variance along its last axis, got the shape "
        for shape in ((5, 3), ()):
            with pytest.raises(ValueError, match=message + re_tuple(shape)):
                ba.HeteroscedasticGaussian().nll(torch.zeros(shape), torch.zeros(5, 1))
        with pytest.raises(ValueError, match=r"^target must be of the output's shape \(5, 1\), got \(5,\)$"):
            ba.HeteroscedasticGaussian().nll(torch.zeros(5, 2), torch.zeros(5))


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

    @pytest.mark.parametrize(
        ("output", "target", "message"),
        [
            ((3, 1), [0, 1, 0], r"^target must be of the output's shape \(3, 1\), got \(3,\)$"),
            ((3,), [[0], [1], [0]], r"^target must be of the output's shape \(3,\), got \(3, 1\)$"),
            ((3,), [0, 2, 1], r"^target must be in \[0, 1\], got 0.0 to 2.0$"),
            ((3,), [0.5, -0.5, 1], r"^target must be in \[0, 1\], got -0.5 to 1.0$"),
        ],
    )
    def test_errors(self, output, target, message):
        with pytest.raises(ValueError, match=message):
            ba.Bernoulli().nll(torch.zeros(output), torch.tensor(target))


class TestCategorical:
    @pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
    def test_against_cross_entropy(self, dtype):
        output, target = 3 * draw(7, 4), (torch.arange(7) % 4).to(dtype)
        close(ba.Categorical()(output, target), functional.cross_entropy(output, target.long()))
        close(ba.Categorical().log_prob(output, target), dist.Categorical(logits=output).log_prob(target.long()))
        close(ba.Categorical().log_probs(output), output.softmax(-1).log())

    def test_every_element_of_a_sequence_is_a_data_point(self):
        output, target = draw(5, 6, 4), torch.arange(30).view(5, 6) % 4
        close(ba.Categorical()(output, target), functional.cross_entropy(output.flatten(0, 1), target.flatten()))
        assert ba.Categorical().log_prob(output, target).shape == (5, 6)

    def test_leading_sample_axes_stay(self):
        output, target = draw(3, 2, 7, 4), torch.arange(7) % 4
        result = ba.Categorical().log_prob(output, target)
        assert result.shape == (3, 2, 7)
        close(result, dist.Categorical(logits=output).log_prob(target))

    def test_extreme_logits_in_float32(self):
        output = torch.tensor([[1e4, -1e4, 0.0], [1e4, -1e4, 0.0]], requires_grad=True)
        log_prob = ba.Categorical().log_prob(output, torch.tensor([0, 1]))
        close(log_prob.detach(), torch.tensor([0.0, -2e4]))
        log_prob.sum().backward()
        assert output.grad.isfinite().all()

    @pytest.mark.parametrize(
        ("target", "message"),
        [
            (torch.zeros(5, 1, dtype=torch.int64), r"^target must be of shape \(5,\), the logits' without .*\(5, 1\)$"),
            (torch.zeros(4, dtype=torch.int64), r"^target must be of shape \(5,\), the logits' without .*got \(4,\)$"),
            (torch.zeros(5, 3, dtype=torch.int64), r"^target must be of shape \(5,\), .*got \(5, 3\)$"),
            (torch.zeros(5), "^target must be integer class numbers, got dtype torch.float32$"),
            (
                torch.zeros(5, dtype=torch.complex64),
                "^target must be integer class numbers, got dtype torch.complex64$",
            ),
            (torch.tensor([0, 1, 2, 3, 0]), r"^target must be in \[0, 3\), got 0 to 3$"),
            (torch.tensor([0, 1, -100, 2, 0]), r"^target must be in \[0, 3\), got -100 to 2$"),
        ],
    )
    def test_errors(self, target, message):
        with pytest.raises(ValueError, match=message):
            ba.Categorical().nll(torch.zeros(5, 3), target)


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


@pytest.mark.parametrize(
    ("likelihood", "output", "target"),
    [
        (ba.Gaussian(2.0), draw(6), draw(6, seed=1)),
        (ba.HeteroscedasticGaussian(), draw(6, 2), draw(6, 1, seed=1)),
        (ba.Bernoulli(), draw(6), torch.arange(6) % 2),
        (ba.Categorical(), draw(6, 3), torch.arange(6) % 3),
    ],
)
def test_is_a_loss_module(likelihood, output, target):
    assert isinstance(likelihood, nn.Module)
    loss = likelihood(output.requires_grad_(), target)
    assert loss.shape == ()
    assert loss.equal(likelihood.nll(output, target))
    loss.backward()
    assert output.grad.abs().sum() > 0


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
