"""Logistic regression of Khan et al. 2018, Fig. 2: the exact optimum, the metrics, and the experiments made short."""

import math
import os

import mpmath
import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit

from experiments import runner
from experiments.logistic_regression import paper
from experiments.logistic_regression.matlab import MatlabVadamRule
from experiments.logistic_regression.metrics import log_loss, symmetric_kl
from experiments.logistic_regression.mf_exact import Gaussian, kl_divergence, mf_exact, negative_elbo
from experiments.logistic_regression.quadrature import expectations
from experiments.logreg_breast_cancer.experiment import BreastCancer
from experiments.logreg_toy.data import draw, grid
from experiments.logreg_toy.experiment import Toy
from experiments.logreg_usps.experiment import USPS
from experiments.results import Store, finished

needs_data = pytest.mark.skipif(not os.environ.get("BAYESADAM_DATA"), reason="needs BAYESADAM_DATA")


class TestQuadrature:
    CASES = tuple((m, s) for s in (1e-6, 0.1, 1.0, 4.5, 30.0, 1e3) for m in (-60.0, -1.0, 0.3))

    @staticmethod
    def reference(mean, deviation):
        """Adaptive quadrature with 20 digits, cut where the integrand bends."""
        with mpmath.workdps(20):
            mean, deviation = mpmath.mpf(mean), mpmath.mpf(deviation)
            low, high = mean - 14 * deviation, mean + 14 * deviation
            cuts = {low, high, *(mean + k * deviation for k in (-6, -2, 0, 2, 6))}
            cuts |= {mpmath.mpf(c) for c in (-100, -60, -20, -5, 0, 5, 20, 60, 100) if low < c < high}

            def expected(function):
                def integrand(z):
                    t = (z - mean) / deviation
                    return function(z) * mpmath.exp(-t * t / 2) / (deviation * mpmath.sqrt(2 * mpmath.pi))

                return mpmath.quad(integrand, sorted(cuts))

            def sigmoid(z):
                return 1 / (1 + mpmath.exp(-z))

            return (
                expected(lambda z: max(z, 0) + mpmath.log1p(mpmath.exp(-abs(z)))),
                expected(sigmoid),
                expected(lambda z: sigmoid(z) * sigmoid(-z)),
            )

    @pytest.mark.parametrize(("mean", "deviation"), CASES)
    def test_all_three_are_exact_to_rounding(self, mean, deviation):
        found = expectations(np.array([mean]), np.array([deviation]))
        wanted = self.reference(mean, deviation)
        for value, exact in zip((found.softplus, found.sigmoid, found.slope), wanted, strict=True):
            assert abs(value[0] - float(exact)) <= 4e-15 * max(1.0, abs(float(exact)))

    def test_without_deviation_it_is_the_function(self):
        z = np.array([-700.0, -3.0, 0.0, 2.0, 700.0])
        found = expectations(z, np.zeros(5))
        np.testing.assert_allclose(found.softplus, np.logaddexp(0.0, z), rtol=1e-15, atol=1e-15)
        np.testing.assert_allclose(found.sigmoid, expit(z), atol=1e-15)

    def test_the_derivatives_are_those_of_the_value(self):
        mean, deviation, step = np.array([0.7, -3.0]), np.array([2.0, 0.4]), 1e-5

        def softplus(dm, ds):
            return expectations(mean + dm, deviation + ds).softplus

        found = expectations(mean, deviation)
        by_mean = (softplus(step, 0.0) - softplus(-step, 0.0)) / (2 * step)
        by_deviation = (softplus(0.0, step) - softplus(0.0, -step)) / (2 * step)
        np.testing.assert_allclose(found.sigmoid, by_mean, atol=1e-9)
        np.testing.assert_allclose(deviation * found.slope, by_deviation, atol=1e-9)


def small_problem(weights, points=12, seed=0):
    generator = np.random.default_rng(seed)
    x = 1.5 * generator.normal(size=(points, weights))
    return x, (generator.random(points) < expit(x.sum(1))).astype(float), np.linspace(0.3, 0.8, weights)


def brute_force_kl(parameters, x, y, prior, axis):
    """``KL(q || exact posterior)`` up to the evidence, on a dense grid of weights; nothing in common with the bound."""
    weights = x.shape[1]
    means, deviations = parameters[:weights], np.exp(parameters[weights:])
    mesh = np.stack([m.ravel() for m in np.meshgrid(*[axis] * weights, indexing="ij")])
    log_q = sum(
        -0.5 * ((t - m) / s) ** 2 - math.log(s * math.sqrt(2 * math.pi))
        for t, m, s in zip(mesh, means, deviations, strict=True)
    )
    logits = x @ mesh
    log_p = (y[:, None] * logits - np.logaddexp(0.0, logits)).sum(0)
    log_p += (-0.5 * prior[:, None] * mesh**2 + 0.5 * np.log(prior / (2 * np.pi))[:, None]).sum(0)
    return float(np.sum(np.exp(log_q) * (log_q - log_p)) * (axis[1] - axis[0]) ** weights)


class TestMFExact:
    @pytest.mark.parametrize("weights", [1, 2])
    def test_it_is_the_minimum_of_the_kl_divergence_by_brute_force(self, weights):
        x, y, prior = small_problem(weights)
        axis = np.linspace(-9.0, 10.0, 1001 if weights == 1 else 121)
        found = mf_exact(x, y, prior)
        here = np.concatenate([found.posterior.mean, np.log(found.posterior.deviation)])
        assert brute_force_kl(here, x, y, prior, axis) == pytest.approx(found.negative_elbo, rel=1e-12)
        best = minimize(
            brute_force_kl,
            here + 0.3,
            args=(x, y, prior, axis),
            method="Nelder-Mead",
            options={"xatol": 1e-8, "fatol": 1e-14, "maxiter": 4000},
        )
        np.testing.assert_allclose(here, best.x, atol=2e-6)

    def test_different_starts_end_in_the_same_optimum(self):
        x, y, prior = small_problem(20, 60)
        first = mf_exact(x, y, prior)
        generator = np.random.default_rng(1)
        for deviation in (0.01, 3.0):
            start = Gaussian(generator.normal(size=20), np.full(20, deviation))
            other = mf_exact(x, y, prior, start)
            assert symmetric_kl(first.posterior, other.posterior) < 1e-11
            assert max(first.gradient, other.gradient) < 1e-5

    def test_the_bound_is_stationary_there_and_lower_elsewhere(self):
        x, y, prior = small_problem(4, 30)
        found = mf_exact(x, y, prior)
        q, step = found.posterior, 1e-4
        assert negative_elbo(q, x, y, prior) == pytest.approx(found.negative_elbo, rel=1e-14)
        for weight in range(4):
            for kind in ("mean", "deviation"):
                ends = []
                for sign in (1, -1):
                    parts = {"mean": q.mean.copy(), "deviation": q.deviation.copy()}
                    parts[kind][weight] += sign * step
                    ends.append(negative_elbo(Gaussian(**parts), x, y, prior))
                assert min(ends) > found.negative_elbo
                assert abs(ends[0] - ends[1]) / (2 * step) < 1e-6

    def test_without_data_it_is_the_prior(self):
        prior = np.array([1e-5, 25.0])
        found = mf_exact(np.zeros((1, 2)), np.zeros(1), prior)
        np.testing.assert_allclose(found.posterior.deviation, prior**-0.5, rtol=1e-6)
        assert found.negative_elbo == pytest.approx(math.log(2.0), abs=1e-10)


class TestMetrics:
    def test_divergences_are_those_of_torch_and_the_symmetric_one_is_the_average(self):
        generator = np.random.default_rng(0)
        one, other = (Gaussian(generator.normal(size=5), np.exp(generator.normal(size=5))) for _ in range(2))

        def reference(q, p):
            pair = [torch.distributions.Normal(*map(torch.from_numpy, (g.mean, g.deviation))) for g in (q, p)]
            return float(torch.distributions.kl_divergence(*pair).sum())

        assert kl_divergence(one, other) == pytest.approx(reference(one, other), rel=1e-13)
        average = (reference(one, other) + reference(other, one)) / 2
        assert symmetric_kl(one, other) == pytest.approx(average, rel=1e-13)
        assert symmetric_kl(one, one) == 0.0

    def test_the_log_loss_integrates_over_the_weight(self):
        q, axis = Gaussian(np.array([0.4]), np.array([1.3])), np.linspace(-14.0, 14.0, 20001)
        x, y = np.array([[2.0], [-0.7], [0.1]]), np.array([1.0, 0.0, 1.0])
        density = np.exp(-0.5 * ((axis - 0.4) / 1.3) ** 2) / (1.3 * math.sqrt(2 * math.pi))
        right = [np.trapezoid(density * expit((2 * t - 1) * a[0] * axis), axis) for a, t in zip(x, y, strict=True)]
        assert log_loss(q, x, y) == pytest.approx(-np.mean(np.log(right)), rel=1e-10)


def test_the_matlab_rule_is_the_matlab_codes():
    """``my_methods.m`` in its own units: gradients summed over the data, ``S = N s``; with its decay of the rates."""
    num_data, steps, alpha_0, beta_0 = 7, 30, 0.1, 0.3
    generator = np.random.default_rng(0)
    gradients = generator.normal(size=(steps, 3))
    gamma = np.array([1e-5, 0.5, 2.0])
    w, S, momentum = np.zeros(3), np.ones(3), np.zeros(3)
    rule = MatlabVadamRule()
    hyper = {"num_data": num_data, "prior_precision": torch.from_numpy(gamma)}
    mean = torch.zeros(3, dtype=torch.float64)
    state = rule.init(mean, hyper)
    np.testing.assert_allclose(rule.precision(state, hyper), 1.0 + gamma, rtol=1e-15)
    for t, mean_gradient in enumerate(gradients, 1):
        decay = 1.0 / (1.0 + t**0.55)
        alpha, beta = alpha_0 * decay, beta_0 * decay
        g = num_data * mean_gradient
        momentum = 0.9 * momentum + 0.1 * (g + gamma * w)
        S = (1 - beta) * S + beta * g**2 / num_data
        S_corrected = S / (1 - (1 - beta) ** t)
        w = w - alpha * (momentum / (1 - 0.9**t)) / (np.sqrt(S_corrected) + gamma)
        now = {**hyper, "lr": alpha, "betas": (0.9, 1.0 - beta), "step": t}
        grad = torch.from_numpy(mean_gradient.copy())
        rule.update_(mean, state, grad, rule.curvature(grad, None, state, now), now)
        np.testing.assert_allclose(mean, w, rtol=1e-12)
        np.testing.assert_allclose(rule.precision(state, now), S_corrected + gamma, rtol=1e-12)


def test_the_toy_grid_is_the_posterior():
    problem = draw(0)
    assert problem.x.shape == (60, 2)
    axis, mass = grid(problem, 30.0, 0.5)
    assert mass.sum() == pytest.approx(1.0, abs=1e-12)
    row, column = np.unravel_index(mass.argmax(), mass.shape)

    def log_joint(first, second):
        logits = problem.x @ np.array([first, second])
        return (problem.y * logits - np.logaddexp(0.0, logits)).sum() - 0.005 * (first**2 + second**2)

    ratio = math.log(mass[row, column] / mass[row, column + 3])
    assert ratio == pytest.approx(log_joint(axis[column], axis[row]) - log_joint(axis[column + 3], axis[row]), abs=1e-9)


def run(experiment, folder):
    summary = runner.run(experiment, jobs=1, runs=folder / "runs")
    assert summary.failed == {}
    assert summary.not_finite == {}
    return finished(experiment.units(), Store.of(experiment, folder / "runs"))


def short(kind, folder, *args, **options):
    """The experiment with another folder for results."""

    class Short(kind):
        folder = property(lambda self: where)

    where = folder
    return Short(*args, **options)


def median(results, key, metric="symmetric_kl"):
    return float(np.median([run[metric] for run in results[key].result["runs"]]))


@needs_data
def test_usps_made_short(tmp_path):
    experiment = short(USPS, tmp_path, 2, 1000, iterations=100, half_life=50)
    results = run(experiment, tmp_path)
    assert set(results) == {"mf-exact", "von", "vogn-1", "vadam-matlab", "vadam"}
    for result in results.values():
        assert len(result.result["runs"]) == 2
    assert median(results, "mf-exact") == 0.0
    exact = median(results, "mf-exact", "negative_elbo")
    assert 0.25 < exact < 0.3
    for key in set(results) - {"mf-exact"}:
        assert median(results, key, "negative_elbo") > exact
    assert median(results, "von") < min(median(results, key) for key in ("vogn-1", "vadam", "vadam-matlab"))
    report = experiment.report(results)
    text = "\n".join(table.markdown() for table in report.tables)
    for published in ("0.2682", "0.1430", "26.3"):
        assert published in text
    assert set(report.figures) == {"box-plots"}


@needs_data
def test_breast_cancer_made_short(tmp_path):
    experiment = short(BreastCancer, tmp_path, 2, 20_000, lr=0.2, rate=0.2, iterations=400, half_life=100)
    results = run(experiment, tmp_path)
    assert len(results) == 13
    assert max(run["symmetric_kl"] for run in results["von"].result["runs"]) < 5.0
    exact = results["mf-exact"].result["runs"]
    assert exact[0] == exact[1]  # one half of the data, two seeds
    assert results["von"].config["splits"] == [0, 1]
    report = experiment.report(results)
    text = "\n".join(table.markdown() for table in report.tables)
    for published in ("0.5091", "9.819", "0.8709"):
        assert published in text
    assert set(report.figures) == {"symmetric-kl"}


def test_the_toy_made_short(tmp_path):
    experiment = short(Toy, tmp_path, 2, 2000, iterations=100, half_life=30)
    results = run(experiment, tmp_path)
    assert set(results) == {"mf-exact", "von", "von-full", "vogn-1", "vadam-matlab", "vadam"}
    covariance = np.array(results["von-full"].result["runs"][0]["covariance"])
    assert covariance[0, 1] == pytest.approx(covariance[1, 0], rel=1e-9)
    assert np.linalg.eigvalsh(covariance).min() > 0
    report = experiment.report(results)
    assert "posteriors" in report.figures
    assert "1.33" in report.tables[0].markdown()  # 5.88 / 4.42, the paper's Vadam


def test_the_papers_boxes_are_there():
    assert paper.box("usps_3v5", "VOGN-1", "symmetric_kl")["med"] == pytest.approx(8.04, abs=0.01)
    assert set(paper.box("breast_cancer_scale", "VOGN-1", "symmetric_kl")) == {"mean", "q1", "q3"}
    assert paper.box("usps_3v5", "", "symmetric_kl") == {}
    assert paper.toy("Vadam")["sd_1"] == pytest.approx(3.63, abs=0.01)
