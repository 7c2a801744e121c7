import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import bayesadam as ba
from bayesadam.tables.estimators.calibration import (
    PRIOR,
    output_scale,
    pool,
    scaled,
    tempered,
    variance_scales,
)


def penalised(point, residual, epistemic, aleatoric, weight, pattern=0.0, center=(0.0, 0.0), known=PRIOR):
    """Half of what is minimised, from its definition."""
    variance = np.exp(point[0]) * epistemic + np.exp(point[1] + point[2] * pattern) * aleatoric
    fit = 0.5 * (weight * (residual**2 / variance + np.log(variance))).sum()
    return fit + 0.25 * known * ((np.array(point[:2]) - np.array(center)) ** 2).sum()


@pytest.mark.parametrize(("seed", "rows"), [(0, 8), (1, 60), (2, 300), (3, 2_000)])
def test_scales_are_the_maximum(seed, rows):
    generator = np.random.default_rng(seed)
    epistemic, aleatoric, weight = generator.gamma(1.0, 1.0, (3, rows))
    pattern = generator.standard_normal(rows)
    residual = generator.standard_normal(rows) * np.sqrt(0.5 * epistemic + 2.0 * aleatoric * np.exp(0.6 * pattern))
    data = (residual, epistemic, aleatoric, weight)
    found = variance_scales(*data, pattern=pattern)
    bounds = [(math.log(1e-3), math.log(1e3)), (math.log(1e-6), math.log(1e6)), (0.0, 1.0)]
    best = minimize(penalised, [0.0, 0.0, 0.5], (*data, pattern), bounds=bounds, method="L-BFGS-B", tol=1e-12)
    point = [math.log(found.epistemic), math.log(found.aleatoric), found.strength]
    assert penalised(point, *data, pattern) <= best.fun + 1e-6
    without = variance_scales(*data)
    best = minimize(lambda p: penalised((*p, 0.0), *data), [0.0, 0.0], method="Nelder-Mead", tol=1e-10)
    point = [math.log(without.epistemic), math.log(without.aleatoric), 0.0]
    assert penalised(point, *data) <= best.fun + 1e-6


def test_known_noise_keeps_its_scale():
    generator = np.random.default_rng(2)
    epistemic, aleatoric, weight = generator.gamma(1.0, 1.0, (3, 80))
    residual = generator.standard_normal(80) * np.sqrt(3.0 * epistemic + 4.0 * aleatoric)
    found = variance_scales(residual, epistemic, aleatoric, weight, fixed_noise=True)
    assert found.aleatoric == 1.0
    best = minimize(
        lambda p: penalised((p[0], 0.0, 0.0), residual, epistemic, aleatoric, weight), [0.0], method="Nelder-Mead"
    )
    assert math.log(found.epistemic) == pytest.approx(best.x[0], abs=1e-3)


class TestTwoPartsThatRowsDoNotTellApart:
    """Their sum is known, and how it is shared is the prior's; no factor runs off to 0 or to infinity."""

    def test_far_rows_tell_them_apart(self):
        """They differ where a tenth of the rows is far from the others."""
        generator = np.random.default_rng(1)
        epistemic = np.where(np.arange(2_000) % 10 == 0, 2.0, 0.02)
        residual = generator.standard_normal(2_000) * np.sqrt(0.25 * epistemic + 0.4)
        near = epistemic < 1.0
        few = variance_scales(residual[near], epistemic[near], np.full(1_800, 0.4), np.ones(1_800))
        found = variance_scales(residual, epistemic, np.full(2_000, 0.4), np.ones(2_000))
        assert found.epistemic == pytest.approx(0.25, rel=0.4)
        assert found.error < 0.25 < 0.8 < few.error

    def test_no_error_left(self):
        """Of residuals that are all 0 the factors are what the prior and the bounds leave."""
        few = variance_scales(np.zeros(5), np.ones(5), np.ones(5), np.ones(5))
        many = variance_scales(np.zeros(5_000), np.ones(5_000), np.ones(5_000), np.ones(5_000))
        grouped = variance_scales(np.zeros(5_000), np.ones(5_000), np.ones(5_000), np.full(5_000, 1e-3))
        assert grouped.epistemic == pytest.approx(few.epistemic)
        assert 0.1 < few.epistemic < 1.0
        assert many.epistemic == pytest.approx(1e-3)
        assert 0.0 < many.aleatoric < 1e-3


def test_tempered_is_normalised_and_keeps_the_order():
    log_probs = torch.randn(3, 5, 4, dtype=torch.float64).log_softmax(-1)
    for value in (0.3, 1.0, 4.0):
        found = tempered(log_probs, value)
        torch.testing.assert_close(found.exp().sum(-1), torch.ones(3, 5, dtype=torch.float64))
        assert torch.equal(found.argmax(-1), log_probs.argmax(-1))
    assert tempered(log_probs, 1.0) is log_probs


@pytest.mark.parametrize("factor", [0.1, 4.0])
def test_output_scale_that_counts_were_drawn_with(factor):
    generator = torch.Generator().manual_seed(0)
    count, members, std = 800, 2, 0.5

    def normal(*shape):
        return torch.randn(*shape, 1, generator=generator, dtype=torch.float64)

    mean = 2.0 + 0.5 * normal(count)
    targets = torch.poisson((mean + factor**0.5 * std * normal(count) - 0.5 * factor * std**2).exp(), generator)
    places = [torch.arange(count).roll(-300 * member)[:500] for member in range(members)]
    outputs = [mean[rows] + std * normal(500, len(rows)) for rows in places]
    weight = torch.ones(count, dtype=torch.float64)
    found = output_scale(outputs, places, ba.likelihoods.Poisson(), targets, weight)
    assert found.epistemic == pytest.approx(factor, rel=0.35)
    assert (found.aleatoric, found.strength) == (1.0, 0.0)
    assert 0.03 < found.error < 0.4
    fewer = output_scale(outputs, places, ba.likelihoods.Poisson(), targets, 0.1 * weight)
    assert fewer.error > 1.3 * found.error


@pytest.mark.parametrize("factor", [0.25, 1.0, 9.0])
def test_scaled_outputs(factor):
    outputs = torch.randn(20, 3, 2, dtype=torch.float64)
    found = scaled(outputs, factor, ba.likelihoods.Gamma())
    torch.testing.assert_close(found.mean(0), outputs.mean(0))
    torch.testing.assert_close(found.var(0), factor * outputs.var(0))
    counts = scaled(outputs, factor, ba.likelihoods.Poisson())
    torch.testing.assert_close(counts.var(0), factor * outputs.var(0))
    torch.testing.assert_close(counts.exp().mean(0), outputs.mean(0).exp())


def test_weights_of_a_pool():
    """The best by its definition, of two components and two other models."""
    generator = torch.Generator().manual_seed(2)
    log_probs = torch.randn(2, 60, 3, generator=generator, dtype=torch.float64).log_softmax(-1)
    linear = torch.randn(2, 60, 3, generator=generator, dtype=torch.float64).log_softmax(-1)
    labels = torch.multinomial((0.5 * log_probs[0] + linear[1]).softmax(-1), 1, generator=generator)[:, 0]
    weight = torch.rand(60, generator=generator, dtype=torch.float64)

    def loss(point):
        total = 0.0
        for row, label in enumerate(labels.tolist()):
            density = 0.0
            for own in log_probs[:, row]:
                logits = point[0] * own + point[1] * linear[0, row] + point[2] * linear[1, row]
                density += 0.5 * float(logits.softmax(0)[label])
            total -= float(weight[row]) * math.log(density)
        return total + 2.0 * ((point[0] - 1.0) ** 2 + point[1] ** 2 + point[2] ** 2)

    share, weights = pool(log_probs, linear, labels, weight)
    best = minimize(
        loss, [1.0, 0.1, 0.5], method="Nelder-Mead", bounds=[(0.05, 2), (0, 2), (0, 2)], options={"maxiter": 60}
    )
    assert loss([share, *weights]) <= best.fun + 1e-4
    assert weights[1] > 0.3
