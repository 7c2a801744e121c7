import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import bayesadam as ba
from bayesadam.sklearn.calibration import (
    KNOWN,
    conformal_quantile,
    effective_rows,
    settle_,
    temperature,
    tempered,
    variance_scales,
)


def loss(scales, residual, epistemic, aleatoric, weight):
    variance = scales[0] * epistemic + scales[1] * aleatoric
    return np.average(residual**2 / variance + np.log(variance), weights=weight)


@pytest.mark.parametrize("unit", [1.0, 1e-4, 1e5])
def test_scales_that_data_were_made_with(unit):
    generator = np.random.default_rng(0)
    epistemic, aleatoric = generator.gamma(1.0, 1.0, 20_000), np.full(20_000, 0.3)
    residual = unit * generator.standard_normal(20_000) * np.sqrt(2.5 * epistemic + 0.7 * aleatoric)
    a, b = variance_scales(residual, epistemic, aleatoric, np.ones(20_000))
    assert a == pytest.approx(2.5 * unit**2, rel=0.06)
    assert b == pytest.approx(0.7 * unit**2, rel=0.1)


def test_scales_are_the_maximum():
    generator = np.random.default_rng(1)
    epistemic, aleatoric, weight = generator.gamma(1.0, 1.0, (3, 60))
    residual = generator.standard_normal(60) * np.sqrt(0.5 * epistemic + 2.0 * aleatoric)
    found = variance_scales(residual, epistemic, aleatoric, weight)
    best = minimize(
        lambda p: loss(np.exp(p), residual, epistemic, aleatoric, weight), [0.0, 0.0], method="Nelder-Mead", tol=1e-10
    )
    assert loss(found, residual, epistemic, aleatoric, weight) <= best.fun + 1e-6


def test_a_variance_that_is_zero_has_no_scale():
    residual = np.array([1.0, -2.0, 2.0, 1.0])
    a, b = variance_scales(residual, np.zeros(4), np.full(4, 0.5), np.ones(4))
    assert a == 0.0
    assert 0.5 * b == pytest.approx(2.5, rel=1e-4)


def test_exact_predictions_give_no_infinite_density():
    a, b = variance_scales(np.zeros(5), np.ones(5), np.ones(5), np.ones(5))
    assert 0 <= a + b < 1e-10
    assert math.isfinite(a + b)


def test_temperature_that_data_were_made_with():
    generator = torch.Generator().manual_seed(0)
    logits = 3.0 * torch.randn(1, 40_000, 4, generator=generator, dtype=torch.float64)
    labels = torch.multinomial((logits[0] / 2.5).softmax(-1), 1, generator=generator)[:, 0]
    found = temperature(logits.log_softmax(-1), labels, torch.ones(40_000, dtype=torch.float64))
    assert found == pytest.approx(2.5, rel=0.03)


def test_tempered_is_normalised_and_keeps_the_order():
    log_probs = torch.randn(3, 5, 4, dtype=torch.float64).log_softmax(-1)
    for value in (0.3, 1.0, 4.0):
        found = tempered(log_probs, value)
        torch.testing.assert_close(found.exp().sum(-1), torch.ones(3, 5, dtype=torch.float64))
        assert torch.equal(found.argmax(-1), log_probs.argmax(-1))
    assert tempered(log_probs, 1.0) is log_probs


def test_conformal_quantile():
    scores = np.arange(1.0, 20.0)[::-1, None]
    assert conformal_quantile(scores, 0.95) == 19.0  # ceil(20 * 0.95)
    assert conformal_quantile(scores, 0.9) == 18.0
    assert conformal_quantile(scores, 0.5) == 10.0
    with pytest.raises(ValueError, match=r"coverage must be at most n / \(n \+ 1\) = 0.95 with 19 calibration rows"):
        conformal_quantile(scores, 0.96)
    # 100 * 0.55 is 55.00000000000001 in floating point, of which the ceiling would be 56.
    assert conformal_quantile(np.arange(1.0, 100.0)[:, None], 0.55) == 55.0


def test_effective_rows():
    assert effective_rows(np.full(7, 3.0)) == pytest.approx(7.0)
    assert effective_rows(np.array([1.0, 1.0, 1e-9])) == pytest.approx(2.0)


def test_noise_that_was_learned_before_counts_as_so_many_rows():
    learned, before = ba.Gaussian(8.0, learned=True), ba.Gaussian(2.0)
    settle_(learned, before, 3.0 * KNOWN)
    assert learned.noise_precision.item() == pytest.approx(2.0**0.25 * 8.0**0.75)


@pytest.mark.parametrize("residual", [0.0, 0.5, 3.0])
def test_a_row_hardly_moves_scales_that_are_known(residual):
    before = np.array([0.4, 1.3])
    found = variance_scales(np.array([residual]), np.array([0.1]), np.array([0.5]), np.ones(1), before)
    np.testing.assert_allclose(found, before, rtol=0.3)
    assert (np.array(found) > before).all() == (residual == 3.0)


def test_known_scales_are_a_normal_prior_of_their_logarithms():
    generator = np.random.default_rng(1)
    epistemic, aleatoric, weight = generator.gamma(1.0, 1.0, (3, 60))
    residual = generator.standard_normal(60) * np.sqrt(0.5 * epistemic + 2.0 * aleatoric)
    before = np.array([1.5, 0.5])

    def target(p):
        drawn = 0.5 * KNOWN / effective_rows(weight) * ((p - np.log(before)) ** 2).sum()
        return loss(np.exp(p), residual, epistemic, aleatoric, weight) + drawn

    found = variance_scales(residual, epistemic, aleatoric, weight, before)
    best = minimize(target, [0.0, 0.0], method="Nelder-Mead", tol=1e-10)
    np.testing.assert_allclose(np.log(found), best.x, atol=1e-4)


def test_many_rows_find_a_scale_that_was_0():
    generator = np.random.default_rng(0)
    epistemic, aleatoric = generator.gamma(1.0, 1.0, 20_000), np.full(20_000, 0.3)
    residual = generator.standard_normal(20_000) * np.sqrt(2.5 * epistemic + 0.7 * aleatoric)
    a, b = variance_scales(residual, epistemic, aleatoric, np.ones(20_000), np.array([1e-9, 3.0]))
    assert a == pytest.approx(2.5, rel=0.1)
    assert b == pytest.approx(0.7, rel=0.2)


def test_a_temperature_that_is_known():
    generator = torch.Generator().manual_seed(0)
    logits = 3.0 * torch.randn(1, 40_000, 4, generator=generator, dtype=torch.float64)
    labels = torch.multinomial((logits[0] / 2.5).softmax(-1), 1, generator=generator)[:, 0]
    log_probs = logits.log_softmax(-1)
    for rows in range(0, 40, 2):
        few = slice(rows, rows + 2)
        found = temperature(log_probs[:, few], labels[few], torch.ones(2, dtype=torch.float64), 2.5)
        assert found == pytest.approx(2.5, rel=0.2)
        assert found == pytest.approx(
            temperature(log_probs[:, few], labels[few], torch.full((2,), 9.0, dtype=torch.float64), 2.5)
        )
    assert temperature(log_probs, labels, torch.ones(40_000, dtype=torch.float64), 0.5) == pytest.approx(2.5, rel=0.03)


def test_how_strongly_an_earlier_temperature_holds():
    """The logarithm's distance counts a quarter of ``KNOWN`` rows of mean weight."""
    generator = torch.Generator().manual_seed(1)
    log_probs = torch.randn(2, 30, 3, generator=generator, dtype=torch.float64).log_softmax(-1)
    labels = torch.randint(0, 3, (30,), generator=generator)
    weight = torch.rand(30, generator=generator, dtype=torch.float64)
    force = 0.25 * KNOWN * float(weight.sum()) / effective_rows(weight.numpy())

    def penalised(point):
        parts = (log_probs / math.exp(point[0])).log_softmax(-1)
        density = parts.logsumexp(0)[torch.arange(30), labels]
        return force * (point[0] - math.log(0.7)) ** 2 - float((weight * density).sum())

    best = minimize(penalised, [0.0], method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-10}).x[0]
    assert temperature(log_probs, labels, weight, 0.7) == pytest.approx(math.exp(best), rel=1e-3)
    free = temperature(log_probs, labels, weight)
    assert abs(math.log(free / 0.7)) > 3 * abs(best - math.log(0.7)) > 0.003
