"""Curvature that a rule cannot compute itself: squared gradients of data points, and second derivatives."""

from unittest.mock import patch

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam import population
from bayesadam.population import curvature
from bayesadam.population.batches import Batch
from bayesadam.population.losses import Losses
from population.conftest import ROUNDING, TOLERANCE, all_alone, compare, exactly, train
from population.problems import F32, F64, RAGGED, draw, mlp, models_of, noise_of, regression
from population.test_members import LIKELIHOODS, NETWORKS, OWN, inputs_of

EXACT = {"hessian": "exact", "correction": "elementwise"}
METHODS = {
    "vogn": {"method": "vogn", "lr": 0.02},
    "vogn with momentum": {"method": "vogn", "lr": 0.02, "betas": (0.9, 0.95)},
    "von": {"method": "von", "lr": 0.05, **EXACT},
    "von as it is": {"method": "von", "lr": 0.05, "hessian": "exact", "betas": (0.0, 0.99)},
    "van": {"method": "van", "lr": 0.05, **EXACT},
    "ngvi": {"method": "ngvi", "lr": 0.05, **EXACT},
    "natural von": {"method": "natural_von", "lr": 0.01, **EXACT},
}
NUMBERS = {name: OWN[name] for name in ("lr", "betas", "prior_precision", "num_data")}
NUMBERS["temperature"] = [1.0, 0.5, 0.1, 0.3]
MAKES = {
    "a layer": lambda: nn.Linear(3, 2).to(F64),
    "a perceptron": mlp,
    "any network": lambda: nn.Sequential(nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 2)).to(F64),
}


SAMPLES = [(1, False), (3, False), (4, True)]


class TestMembersAreSingleFits:
    @pytest.mark.parametrize(
        ("method", "make", "samples"),
        [(name, list(MAKES)[i % 3], SAMPLES[(i + i // 3) % 3]) for i, name in enumerate(METHODS)],
    )
    def test_everything_differs(self, method, make, samples):
        options = {**METHODS[method], **NUMBERS, "mc_samples": samples[0], "antithetic": samples[1]}
        compare(models_of(MAKES[make]), regression(), [noise_of(p) for p in (1.0, 4.0, 2.0, 9.0)], **options)

    @pytest.mark.parametrize("method", ["vogn", "von"])
    def test_float32(self, method):
        models, data = models_of(lambda: mlp(dtype=F32)), regression(dtype=F32)
        compare(models, data, noise_of(4.0, dtype=F32), TOLERANCE[F32], **METHODS[method])

    @pytest.mark.parametrize(
        ("name", "method"),
        [
            *((name, "vogn with momentum") for name in NETWORKS if name not in ("large tensors", "a weight twice")),
            *((name, "von") for name in ("frozen parts and buffers", "convolution", "embedding", "a weight twice")),
        ],
    )
    def test_network(self, name, method):
        """PerExampleSquares refuses the bare tensor that is a weight twice; for a population, see below."""
        make, kind = NETWORKS[name]
        data = [(inputs_of(kind, size, seed=i), draw(size, 2, seed=10 + i)) for i, size in enumerate(RAGGED)]
        options = METHODS[method] | {"epochs": 1, "lr": 0.001, "mc_samples": 2}
        compare(models_of(lambda: make().to(F64)), data, noise_of(4.0), **options)

    @pytest.mark.parametrize("method", ["vogn with momentum", "von"])
    @pytest.mark.parametrize("name", LIKELIHOODS)
    def test_likelihood(self, name, method):
        """Those that learn too, whose parameters have no noise but a curvature."""
        likelihood, make, targets = LIKELIHOODS[name]
        data = [(draw(size, 3, seed=i), targets(size, 10 + i)) for i, size in enumerate(RAGGED)]
        compare(models_of(make), data, likelihood, **METHODS[method] | {"lr": 0.01, "mc_samples": 2})


class Power(population.Objective):
    """Fourth powers of the errors of a linear function, scaled by a buffer of each member's own."""

    def __init__(self, scale):
        super().__init__()
        self.register_buffer("scale", torch.tensor(scale, dtype=F64))

    def losses(self, model, x, y):
        return self.scale * (model(x)[:, 0] - y).pow(4)


class Linear(Power):
    def losses(self, model, x, y):
        return self.scale * model(x)[:, 0]


def linear(scales, kind=Power):
    """Losses of linear functions of four inputs."""
    return Losses(models_of(lambda: nn.Linear(4, 1, bias=False).to(F64), len(scales)), [kind(s) for s in scales])


class TestObjective:
    @pytest.mark.parametrize(("numbers", "weighted"), [(1, True), (40, False), (2**22, True)])
    @pytest.mark.parametrize("kind", ["exact", "empirical_fisher"])
    def test_of_any_loss(self, kind, numbers, weighted, monkeypatch):
        """Against loops over members, samples, data points and coordinates, however much is done at a time."""
        monkeypatch.setattr(curvature, "_NUMBERS", numbers)
        theta, x, y, scale = draw(2, 3, 4), draw(2, 5, 4, seed=1), draw(2, 5, seed=2), (1.0, 3.0)
        weight = torch.tensor([[0.2] * 5, [0.5, 0.5, 0.0, 0.0, 0.0]], dtype=F64) if weighted else None
        found = linear(scale).gradients(theta, Batch(x, y, weight), kind)
        for member in range(2):
            sizes = slice(0, 2) if weighted and member == 1 else slice(0, 5)
            mine, its = x[member, sizes], y[member, sizes]
            for sample in range(3):

                def loss(own, mine=mine, its=its, member=member):
                    return scale[member] * (mine @ own - its).pow(4).mean()

                own = theta[member, sample]
                if kind == "exact":
                    expected = torch.func.hessian(loss)(own).diagonal()
                else:
                    points = zip(mine.split(1), its.split(1), strict=True)
                    expected = torch.stack([torch.func.grad(loss)(own, a, b).square() for a, b in points]).mean(0)
                torch.testing.assert_close(found.curvature[member, sample], expected, **ROUNDING)
                torch.testing.assert_close(found.grads[member, sample], torch.func.grad(loss)(own), **ROUNDING)
                torch.testing.assert_close(found.losses[member, sample], loss(own), **ROUNDING)

    @pytest.mark.parametrize("learned", [False, True])
    @pytest.mark.parametrize("kind", [None, "exact", "empirical_fisher"])
    @pytest.mark.parametrize("make", [MAKES["a layer"], mlp, lambda: NETWORKS["all activations"][0]().to(F64),
                                      lambda: NETWORKS["no biases"][0]().to(F64)])  # fmt: skip
    def test_closed_forms_are_the_general_ones(self, make, kind, learned):
        losses = Losses(models_of(make, 3), [noise_of(2.0, 5.0, learned=learned)] * 3)
        theta = 0.5 * draw(3, 4, losses.layout.numel)
        for weight in (None, torch.tensor([[0.25] * 4, [0.25] * 4, [1 / 3] * 3 + [0.0]], dtype=F64)):
            batch = Batch(draw(3, 4, 3, seed=1), draw(3, 4, 2, seed=2), weight)
            fast = losses.gradients(theta, batch, kind)
            with patch.object(losses, "_closed", None):
                slow = losses.gradients(theta, batch, kind)
            torch.testing.assert_close(tuple(fast), tuple(slow), rtol=1e-10, atol=1e-12)
            assert (fast.curvature is None) == (kind is None)

    @pytest.mark.parametrize("name", ["a weight twice", "convolution", "embedding"])
    def test_of_networks_by_a_loop(self, name):
        make, kind = NETWORKS[name]
        (model,) = models_of(lambda: make().to(F64), 1)
        x, y, likelihood = inputs_of(kind, 5, seed=1), draw(5, 2, seed=2), noise_of(4.0)
        losses = Losses([model], [likelihood])
        theta = nn.utils.parameters_to_vector(model.parameters()).detach()[None, None]
        found = losses.gradients(theta, Batch(x[None], y[None], None), "empirical_fisher")
        expected = torch.zeros_like(theta[0, 0])
        for one, its in zip(x.split(1), y.split(1), strict=True):
            grads = torch.autograd.grad(likelihood(model(one), its), list(model.parameters()))
            expected += torch.cat([grad.flatten() for grad in grads]).square() / 5
        torch.testing.assert_close(found.curvature[0, 0], expected, **ROUNDING)

    @pytest.mark.parametrize("dtype", [F32, F64])
    @pytest.mark.parametrize("kind", ["Bernoulli", "Categorical"])
    def test_slopes_keep_their_digits(self, kind, dtype):
        """Where a label is all but certain its probability is 1 in floating point, and the slope is its complement."""
        logits = torch.tensor([[-60.0, 3.0], [1.0, 20.0], [80.0, 45.0], [0.0, 0.3]], dtype=F64)
        if kind == "Bernoulli":
            likelihood, y = ba.Bernoulli(), torch.tensor([[0.0, 1.0], [0.2, 1.0], [1.0, 0.0], [0.0, 0.7]], dtype=F64)
            expected = y * torch.exp(-nn.functional.softplus(logits))
            expected -= (1.0 - y) * torch.exp(-nn.functional.softplus(-logits))
        else:
            likelihood, y = ba.Categorical(), torch.tensor([1, 1, 0, 0])
            other = torch.exp(-nn.functional.softplus(logits[range(4), y] - logits[range(4), 1 - y]))
            expected = torch.stack([-other, -other], dim=1)
            expected[range(4), y] *= -1.0
        slope = likelihood.score(logits[None, None].to(dtype), y[None, None])
        tolerance = 1e-5 if dtype == F32 else 1e-12
        torch.testing.assert_close(slope[0, 0].double(), expected, rtol=tolerance, atol=0)

    def test_a_loss_that_is_linear_has_no_curvature(self):
        found = linear([1.0], Linear).gradients(draw(1, 2, 4), Batch(draw(1, 5, 4), draw(1, 5), None), "exact")
        assert found.curvature.shape == (1, 2, 4)
        assert not found.curvature.any()


class TestPrecisionStaysPositive:
    """Without a correction, with a Hessian that is negative somewhere, a step may be impossible."""

    def problem(self):
        """Member 1 has a target that makes the Hessian of a tanh very negative; others are well."""
        models = models_of(lambda: nn.Sequential(nn.Linear(3, 2), nn.Tanh()).to(F64))
        data = regression()
        data[1] = data[1][0], data[1][1] - 1e4
        options = {"method": "von", "hessian": "exact", "betas": (0.0, 0.9), "lr": 1e-4, "initial_precision": 50.0}
        return models, data, noise_of(0.1), {**options, "epochs": 2}

    def test_raises_for_a_member_as_alone(self):
        models, data, likelihood, options = self.problem()
        with pytest.raises(FloatingPointError, match="posterior precision must stay positive"):
            all_alone(models[1:2], data[1:2], likelihood, seed=1, **options)
        message = (
            "the posterior precision of member 1 must stay positive, got a curvature that is too negative in its step "
            "0 (correction='elementwise' or a smaller 1 - betas[1] would help)"
        )
        with pytest.raises(FloatingPointError, match=exactly(message)):
            train(models, data, likelihood, **options)

    def test_stops_one_and_not_the_others(self):
        models, data, likelihood, options = self.problem()
        nets = train(models, data, likelihood, nonfinite="skip", **options)
        assert nets.stopped == ["epochs", "nonfinite", "epochs", "epochs"]
        for name, parameter in models[1].named_parameters():
            assert nets.mean[name][1].equal(parameter.detach())
        for variance in nets.variance.values():
            assert (variance[1] == 1 / 50.0).all()
        others = [0, 2, 3]
        fits = all_alone([models[i] for i in others], [data[i] for i in others], likelihood, seed=[0, 2, 3], **options)
        for i, fit in zip(others, fits, strict=True):
            for name, variance in fit.posterior().variance.items():
                torch.testing.assert_close(nets.variance[name][i], variance, **TOLERANCE[F64])
