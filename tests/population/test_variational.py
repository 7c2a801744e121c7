"""Bayes by Backprop in a population finds what can be known exactly, also where numbers are extreme."""

import pytest
import torch
from torch import nn

from bayesadam import population
from bayesadam.core.rule import Hyper
from bayesadam.population.draws import Draws
from population.conftest import train
from population.problems import F32, F64, draw, models_of, noise_of, regression


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
        state = self.RULE.init(torch.zeros(2, dtype=dtype), Hyper(initial_precision=precision))
        found = self.RULE.precision(state, Hyper())
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
        state = self.RULE.init(torch.zeros(1, dtype=dtype), Hyper(initial_precision=1.0))
        state["rho"].fill_(rho)
        hp = Hyper(lr=0.0, beta1=0.9, beta2=0.99, eps=1e-8, num_data=10.0, temperature=temperature,
                   prior_precision=3.0, prior_mean=0.0, beta1_product=0.9, beta2_product=0.99)  # fmt: skip
        zero, half = torch.zeros(1, dtype=dtype), torch.full((1,), 0.5, dtype=dtype)
        _, state = self.RULE.update(zero, state, zero, half, hp)
        due = torch.full((1,), float(expected) / 10, dtype=dtype)
        torch.testing.assert_close(state["rho_exp_avg"], due, rtol=20 * torch.finfo(dtype).eps, atol=1e-37)


def test_starts_as_other_methods_do():
    options = {"epochs": 1, "lr": 0.0, "prior_precision": 17.0, "betas": (0.9, 1 - 1e-15)}
    nets = [train(models_of(), regression(), noise_of(4.0), method=method, **options) for method in ("bbb", "vadam")]
    for name, variance in nets[0].variance.items():
        torch.testing.assert_close(variance, nets[1].variance[name], rtol=1e-9, atol=0.0)
        assert nets[0].mean[name].equal(nets[1].mean[name])
