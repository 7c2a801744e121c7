"""Bayes by Backprop: a member is the fit by autograd and ``torch.optim.Adam``, and finds what can be known exactly."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.func import functional_call

import bayesadam as ba
from bayesadam import noise, population
from bayesadam.population.draws import Draws
from population.conftest import (
    BATCH,
    F32,
    F64,
    ROUNDING,
    TOLERANCE,
    draw,
    mlp,
    models_of,
    noise_of,
    option,
    regression,
    train,
)

OWN = {
    "lr": [0.01, 0.02, 0.03, 0.04],
    "betas": [(0.9, 0.99), (0.8, 0.95), (0.5, 0.9), (0.0, 0.97)],
    "eps": [1e-8, 1e-2, 0.1, 0.0],
    "prior_precision": [1.0, 2.0, 0.5, 10.0],
    "initial_precision": [20.0, 15.0, 30.0, 25.0],
    "num_data": [13, 70, 2.5, 20],
    "temperature": [1.0, 0.5, 0.1, 0.0],
    "seed": [11, 2**63, 0, 5],
}


class Slow:
    """One fit in plain PyTorch: the loss with its divergence, autograd through the samples, and ``torch.optim.Adam``.

    Attributes:
        mean, variance: By weight name.
        learned: Parameters of the likelihood: they have the weights' prior, and no noise.
        losses: Mean negative log-likelihood at the samples, of every epoch.
    """

    def __init__(
        self,
        model,
        data,
        likelihood,
        *,
        epochs,
        lr,
        seed=0,
        batch_size=BATCH,
        betas=(0.9, 0.999),
        eps=1e-8,
        mc_samples=1,
        antithetic=False,
        prior_precision=1.0,
        initial_precision=None,
        temperature=1.0,
        num_data=None,
    ):
        x, y = data
        num_data = num_data or len(x)
        initial_precision = initial_precision or max(num_data, prior_precision)
        self.likelihood = copy.deepcopy(likelihood)
        learned = list(self.likelihood.parameters())
        numbers = {name: i for i, (name, _) in enumerate(model.named_parameters())}
        start = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
        frozen = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
        self.mean = {name: p.clone().requires_grad_() for name, p in start.items()}
        rho = math.log(math.expm1(initial_precision**-0.5))
        rhos = {name: torch.full_like(p, rho).requires_grad_() for name, p in start.items()}
        adam = torch.optim.Adam([*self.mean.values(), *rhos.values(), *learned], lr=lr, betas=betas, eps=eps)
        self.losses, step = [], 0
        for epoch in range(epochs):
            losses = []
            for rows in torch.from_numpy(population.order(len(x), seed=seed, epoch=epoch)).split(batch_size):
                rows = rows if batch_size < len(x) else torch.arange(len(x))
                found = []
                for sample in range(mc_samples):
                    theta = {}
                    for name, mean in self.mean.items():
                        at = sample // 2 if antithetic else sample
                        drawn = noise.normal(seed, step, at, numbers[name], mean.shape)
                        drawn = drawn.to(mean) * (-1.0 if antithetic and sample % 2 else 1.0)
                        theta[name] = mean + nn.functional.softplus(rhos[name]) * drawn
                    output = functional_call(model, {**theta, **frozen}, x[rows])
                    found.append(self.likelihood(output, y[rows]))
                prior = Normal(*torch.tensor([0.0, prior_precision**-0.5], dtype=F64))
                divergence = sum(
                    kl_divergence(Normal(mean, nn.functional.softplus(rhos[name])), prior).sum()
                    for name, mean in self.mean.items()
                )
                divergence += sum(0.5 * prior_precision * p.square().sum() for p in learned)
                loss = sum(found) / mc_samples
                adam.zero_grad()
                (loss + temperature * divergence / num_data).backward()
                adam.step()
                losses.append(loss.item())
                step += 1
            self.losses.append(sum(losses) / len(losses))
        self.variance = {name: nn.functional.softplus(rho).square() for name, rho in rhos.items()}


def compare(models, data, likelihood, tolerance=TOLERANCE[F64], **options):
    """Train together, and each member slowly; a list holds one value per member."""
    options = {"epochs": 3, "lr": 0.02, "seed": [3, 4, 5, 6], **options}
    nets = train(models, data, likelihood, method="bbb", **options)
    for i, (model, pair) in enumerate(zip(models, data, strict=True)):
        own = {name: option(value, i) for name, value in options.items()}
        slow = Slow(model, pair, option(likelihood, i), **own)
        for found, expected in ((nets.mean, slow.mean), (nets.variance, slow.variance)):
            assert list(found) == list(expected)
            for name, value in expected.items():
                torch.testing.assert_close(found[name][i], value.detach(), **tolerance)
        learned = [parameter.detach() for parameter in slow.likelihood.parameters()]
        found = [parameter.detach() for parameter in nets.likelihoods[i].parameters()]
        torch.testing.assert_close(found, learned, **tolerance)
        torch.testing.assert_close(nets.history["loss"][i], torch.tensor(slow.losses, dtype=F64), **tolerance)
    return nets


def part_frozen():
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2)).to(F64)
    net[0].bias.requires_grad_(False)
    return net


class Residual(nn.Module):
    """Not a plain perceptron."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3).to(F64), nn.Linear(3, 2).to(F64)

    def forward(self, x):
        return self.last(x + self.first(x).tanh())


class TestEqualsAutograd:
    @pytest.mark.parametrize(("mc_samples", "antithetic"), [(1, False), (5, False), (4, True)])
    def test_everything_differs_among_members(self, mc_samples, antithetic):
        likelihood = [noise_of(*pair) for pair in [(1.0, 4.0), (2.0, 2.0), (0.5, 9.0), (3.0, 0.1)]]
        compare(models_of(), regression(), likelihood, mc_samples=mc_samples, antithetic=antithetic, **OWN)

    def test_float32(self):
        models, data = models_of(lambda: mlp(dtype=F32)), regression(dtype=F32)
        compare(models, data, ba.Gaussian(4.0), TOLERANCE[F32], mc_samples=2, **OWN)

    @pytest.mark.parametrize("make", [part_frozen, Residual])
    def test_networks(self, make):
        compare(models_of(make), regression(), noise_of(4.0), mc_samples=2)

    def test_a_learned_noise(self):
        compare(models_of(), regression(), noise_of(1.0, 4.0, learned=True), mc_samples=2, **OWN)

    def test_full_batch(self):
        compare(models_of(), regression(), noise_of(4.0), batch_size=20, epochs=5, mc_samples=2)

    def test_many_steps_with_a_wide_posterior(self):
        """Where ``sigma`` and its logarithm are far from each other."""
        compare(models_of(), regression(), noise_of(0.1), epochs=20, lr=0.1, prior_precision=0.04,
                initial_precision=0.05, mc_samples=2)  # fmt: skip


class TestConjugate:
    """Linear regression, all data in every step: the optimal factorised Gaussian is known.

    The noise is that of a quadrature, exact for these gradients: nothing else is random. At temperature ``tau`` the
    optimum minimises ``E_q[sum_i f_i] + tau KL``: precisions ``diag(X'X b / tau) + lambda``, and the mean of the exact
    posterior with ``lambda tau`` for ``lambda``.
    """

    @pytest.fixture(autouse=True)
    def quadrature(self, monkeypatch):
        signs = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=F64)
        signs = torch.kron(signs, signs)
        signs = torch.cat([signs, -signs])
        monkeypatch.setattr(Draws, "take", lambda self, seeds, *_: signs.expand(len(seeds), -1, -1))

    @pytest.mark.parametrize("temperature", [1.0, 0.3])
    def test_finds_the_optimum(self, temperature):
        precisions, prior = [2.0, 0.5, 8.0], [1.0, 3.0, 0.2]
        x = draw(40, 3, seed=1)
        y = x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=F64) + 0.5 + 0.7 * draw(40, 1, seed=2)
        nets = train(
            models_of(lambda: nn.Linear(3, 1).to(F64), 3),
            (x, y),
            [noise_of(precision) for precision in precisions],
            method="bbb",
            epochs=1000,
            batch_size=40,
            lr=0.05,
            lr_schedule=lambda done: 1.0 - done,
            mc_samples=8,
            prior_precision=prior,
            initial_precision=50.0,
            temperature=temperature,
        )
        design = torch.cat([x, torch.ones(40, 1, dtype=F64)], dim=1)
        for i, (precision, own) in enumerate(zip(precisions, prior, strict=True)):
            gram = precision * design.T @ design
            mean = torch.linalg.solve(gram + temperature * own * torch.eye(4, dtype=F64), precision * design.T @ y)
            variance = (gram.diagonal() / temperature + own).reciprocal()
            found = torch.cat([nets.mean["weight"][i, 0], nets.mean["bias"][i]])
            torch.testing.assert_close(found, mean[:, 0], rtol=1e-6, atol=1e-6)
            found = torch.cat([nets.variance["weight"][i, 0], nets.variance["bias"][i]])
            torch.testing.assert_close(found, variance, rtol=1e-6, atol=0.0)


class TestNumbers:
    RULE = population.BayesByBackprop.rule

    @pytest.mark.parametrize("dtype", [F32, F64])
    @pytest.mark.parametrize("precision", [1e-12, 1.0, 1e12])
    def test_starts_at_the_initial_precision(self, precision, dtype):
        state = self.RULE.init(torch.zeros(2, dtype=dtype), {"initial_precision": precision})
        found = self.RULE.precision(state, {})
        torch.testing.assert_close(found, torch.full((2,), precision, dtype=dtype), rtol=40 * torch.finfo(dtype).eps,
                                   atol=0.0)  # fmt: skip

    @pytest.mark.parametrize("rho", [-800.0, -60.0, 0.0, 30.0, 800.0])
    @pytest.mark.parametrize(("temperature", "dtype"), [(0.0, F32), (1.0, F32), (1.0, F64)])
    def test_the_gradient_of_rho_at_extremes(self, temperature, dtype, rho):
        """By one step whose first average is a tenth of it, against numbers of 50 digits."""
        from mpmath import mp, mpf

        mp.dps = 50
        sigma = mp.log1p(mp.exp(mpf(rho)))
        slope = 1 / (1 + mp.exp(-mpf(rho)))
        expected = slope * mpf("0.5") + mpf(temperature) / 10 * (3 * sigma * slope - slope / sigma)
        state = self.RULE.init(torch.zeros(1, dtype=dtype), {"initial_precision": 1.0})
        state["rho"].fill_(rho)
        hp = {"lr": 0.0, "betas": (0.9, 0.99), "eps": 1e-8, "num_data": 10.0, "temperature": temperature,
              "prior_precision": 3.0, "prior_mean": 0.0, "beta1_product": 0.9, "beta2_product": 0.99}  # fmt: skip
        zero, half = torch.zeros(1, dtype=dtype), torch.full((1,), 0.5, dtype=dtype)
        self.RULE.update_(zero.clone(), state, zero.clone(), half, hp)
        due = torch.full((1,), float(expected) / 10, dtype=dtype)
        torch.testing.assert_close(state["rho_exp_avg"], due, rtol=20 * torch.finfo(dtype).eps, atol=1e-37)


class TestResult:
    def test_posteriors(self):
        models = models_of(part_frozen)
        nets = train(models, regression(), noise_of(1.0, learned=True), method="bbb", epochs=2)
        for member, q in enumerate(nets.posteriors):
            assert isinstance(q, ba.DiagonalGaussian)
            assert list(q.mean) == list(q.variance) == ["0.weight", "2.weight", "2.bias"]
            assert q.hyperparameters["method"] == "BayesByBackprop"
            for name, variance in q.variance.items():
                scale = nn.functional.softplus(nets.state["rho"][name][member])
                torch.testing.assert_close(variance, scale.square(), **ROUNDING)
        values = [likelihood.noise_precision.item() for likelihood in nets.likelihoods]
        assert len({1.0, *values}) == 5

    def test_starts_as_other_methods_do(self):
        options = {"epochs": 1, "lr": 0.0, "prior_precision": 17.0, "betas": (0.9, 1 - 1e-15)}
        nets = [
            train(models_of(), regression(), noise_of(4.0), method=method, **options) for method in ("bbb", "vadam")
        ]
        for name, variance in nets[0].variance.items():
            torch.testing.assert_close(variance, nets[1].variance[name], rtol=1e-9, atol=0.0)
            assert nets[0].mean[name].equal(nets[1].mean[name])
