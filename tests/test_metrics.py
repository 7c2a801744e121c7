"""Metrics against scikit-learn, scipy, numerical integration and loops; figures show the numbers they are given."""

import math
import sys
from functools import partial

import numpy as np
import pytest
import sklearn.metrics
import torch
from matplotlib.figure import Figure
from scipy import integrate, stats

import bayesadam as ba
from bayesadam import metrics, plots
from posterior.kinds import F64, draw


def classes(count=200, number=4, seed=0):
    """Class probabilities ``(N, C)`` and targets that agree with them more often than not."""
    logits = 2 * draw(count, number, seed=seed)
    target = (logits + 2 * draw(count, number, seed=seed + 1)).argmax(-1)
    return logits.softmax(-1), target


SCORES = (metrics.accuracy, metrics.brier_score, metrics.expected_calibration_error)


class TestRegression:
    @pytest.mark.parametrize("shape", [(50,), (50, 3)])
    def test_rmse(self, shape):
        mean, target = draw(*shape), draw(*shape, seed=1)
        expected = math.sqrt(sklearn.metrics.mean_squared_error(target.flatten(), mean.flatten()))
        assert metrics.rmse(mean, target) == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.bool])
    def test_differences_do_not_wrap(self, dtype):
        one, two = torch.tensor([0, 1], dtype=dtype), torch.tensor([1, 1], dtype=dtype)
        assert metrics.rmse(one, two) == pytest.approx(math.sqrt(0.5))
        assert metrics.crps(one, two, two) == pytest.approx(metrics.crps(one.double(), two.double(), two.double()))

    def test_crps_against_numerical_integration(self):
        mean, variance, target = draw(6), draw(6, seed=1).exp(), 3 * draw(6, seed=2)

        def score(m, s, y):
            below = integrate.quad(lambda x: stats.norm.cdf(x, m, s) ** 2, -60, y, points=[m], limit=200, epsabs=1e-12)
            above = integrate.quad(lambda x: stats.norm.sf(x, m, s) ** 2, y, 60, points=[m], limit=200, epsabs=1e-12)
            return below[0] + above[0]

        scores = [
            score(m, v**0.5, y) for m, v, y in zip(mean.tolist(), variance.tolist(), target.tolist(), strict=True)
        ]
        assert metrics.crps(mean, variance, target) == pytest.approx(np.mean(scores), rel=1e-9)

    def test_coverage_and_width(self):
        lower, upper = torch.tensor([0.0, 0.0, 0.0, 1.0]), torch.tensor([1.0, 2.0, 3.0, 1.0])
        target = torch.tensor([1.0, -0.1, 0.0, math.nan])  # the borders belong to the interval, nan to none
        assert metrics.coverage(lower, upper, target) == 0.5


class TestLogLikelihood:
    def regression(self, *shape):
        return ba.predictive.RegressionPredictive(draw(4, *shape), draw(4, *shape, seed=1).exp()), draw(*shape, seed=2)

    def check(self, prediction, target, terms):
        """``terms``: log densities of every sample and data point, ``(S, N)``."""
        pointwise = np.log(np.exp(terms).mean(0)).mean()
        joint = np.log(np.exp(terms.sum(1)).mean()) / terms.shape[1]
        assert metrics.log_likelihood(prediction, target) == pytest.approx(pointwise, rel=1e-12)
        assert metrics.nll(prediction, target) == pytest.approx(-pointwise, rel=1e-12)
        assert metrics.joint_log_likelihood(prediction, target) == pytest.approx(joint, rel=1e-12)
        assert abs(joint - pointwise) > 1e-3

    @pytest.mark.parametrize("shape", [(7,), (7, 2)])
    def test_regression(self, shape):
        prediction, target = self.regression(*shape)
        terms = stats.norm.logpdf(target, prediction.means, prediction.variances.sqrt())
        self.check(prediction, target, terms.reshape(4, 7, -1).sum(-1))

    @pytest.mark.parametrize("shape", [(7,), (4, 2)])
    def test_classification_where_every_element_of_a_sequence_is_a_data_point(self, shape):
        log_probs = (2 * draw(4, *shape, 3)).log_softmax(-1)
        target = torch.arange(math.prod(shape)).view(shape) % 3
        terms = [[row[i] for row, i in zip(s.view(-1, 3).tolist(), target.flatten(), strict=True)] for s in log_probs]
        self.check(ba.predictive.ClassificationPredictive(log_probs), target, np.array(terms))


def ece_by_loop(confidence, correct, bins):
    """Guo et al. 2017, eq. 3, bin by bin: bin m is ((m - 1) / M, m / M]."""
    total = 0.0
    for m in range(1, bins + 1):
        inside = [(c, k) for c, k in zip(confidence, correct, strict=True) if (m - 1) / bins < c <= m / bins]
        if inside:
            c, k = np.mean(inside, 0)
            total += len(inside) / len(confidence) * abs(c - k)
    return total


class TestClassification:
    def test_accuracy_and_brier_score(self):
        probs, target = classes()
        predicted = probs.argmax(-1)
        assert metrics.accuracy(probs, target) == pytest.approx(sklearn.metrics.accuracy_score(target, predicted))
        expected = sklearn.metrics.brier_score_loss(target, probs, labels=range(4), scale_by_half=False)
        assert metrics.brier_score(probs, target) == pytest.approx(expected, rel=1e-12)
        assert 0.3 < metrics.accuracy(probs, target) < 0.9

    def test_binary_probabilities(self):
        p = torch.tensor([0.9, 0.2, 0.6, 0.4], **F64)
        target = torch.tensor([1, 0, 0, 1])
        both = torch.stack([1 - p, p], -1)
        assert metrics.accuracy(p, target) == 0.5
        assert metrics.brier_score(p, target) == pytest.approx(2 * (0.01 + 0.04 + 0.36 + 0.36) / 4, rel=1e-12)
        for metric in SCORES:
            for labels in (target, target.bool(), target.int(), target.float()):
                assert metric(p, labels) == metric(both, target)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("number", [2, 30_000])
    def test_accepts_probabilities_in_half_precision(self, number, dtype):
        probs, target = classes(50, number)
        rounded = (probs.to(dtype), (0.5 * probs[:, 0]).to(dtype), torch.full((50, number), 1 / number).to(dtype))
        for values in rounded:
            labels = target if values.ndim == 2 else target % 2
            for metric in SCORES:
                assert metric(values, labels) == pytest.approx(metric(values.double(), labels), abs=0.02)

    def test_calibration_by_hand(self):
        """Two of three are right at 0.6, one of one at 0.8, two of two at 1.0; five bins."""
        p = torch.tensor([0.59, 0.6, 0.55, 0.79, 1.0, 1.0], **F64)
        target = torch.tensor([1, 1, 0, 1, 1, 1])
        confidence, correct, share = metrics.calibration_curve(p, target, bins=5)
        torch.testing.assert_close(share, torch.tensor([0, 0, 3 / 6, 1 / 6, 2 / 6], **F64))
        nan = math.nan
        torch.testing.assert_close(confidence, torch.tensor([nan, nan, 0.58, 0.79, 1.0], **F64), equal_nan=True)
        torch.testing.assert_close(correct, torch.tensor([nan, nan, 2 / 3, 1.0, 1.0], **F64), equal_nan=True)
        error = metrics.expected_calibration_error(p, target, bins=5)
        assert error == pytest.approx(3 / 6 * (2 / 3 - 0.58) + 1 / 6 * 0.21, rel=1e-12)

    def test_a_confidence_on_a_border_belongs_to_the_bin_below(self):
        p = torch.tensor([0.5, 0.75, 0.7500001, 1.0, 0.0, 0.25])
        _, _, share = metrics.calibration_curve(p, torch.ones(6), bins=4)  # confidences .5 .75 .75+ 1 1 .75
        assert (6 * share).tolist() == [0, 1, 2, 3]

    @pytest.mark.parametrize("bins", [7, 15])
    def test_calibration_error_by_a_loop(self, bins):
        probs, target = classes(500)
        confidence, predicted = probs.max(-1)
        expected = ece_by_loop(confidence.tolist(), (predicted == target).tolist(), bins)
        assert metrics.expected_calibration_error(probs, target, bins=bins) == pytest.approx(expected, rel=1e-10)
        if bins == 15:
            assert metrics.expected_calibration_error(probs, target) == pytest.approx(expected, rel=1e-10)
            assert expected > 0.02


class TestOutOfDistribution:
    def test_auroc(self):
        inside, outside = draw(60), draw(40, seed=1) + 0.7
        outside[:5] = inside[:5]  # ties count half
        expected = stats.mannwhitneyu(outside, inside).statistic / (60 * 40)
        assert metrics.ood_auroc(inside, outside) == pytest.approx(expected, rel=1e-12)
        labels = np.repeat([0, 1], [60, 40])
        assert metrics.ood_auroc(inside, outside) == sklearn.metrics.roc_auc_score(labels, torch.cat([inside, outside]))
        assert metrics.ood_auroc(outside, inside) == pytest.approx(1 - expected, rel=1e-12)
        assert metrics.ood_auroc(torch.zeros(2), torch.ones(3)) == 1.0

    def test_without_scikit_learn(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
        with pytest.raises(ImportError, match=r'^ood_auroc needs scikit-learn: pip install "bayesadam\[sklearn\]"$'):
            metrics.ood_auroc(torch.zeros(2), torch.ones(2))


NAN, ONES = torch.tensor([math.nan, 1.0]), torch.ones(2)


@pytest.mark.parametrize(
    ("metric", "arguments"),
    [
        (metrics.rmse, (NAN, ONES)),
        (metrics.crps, (NAN, ONES, ONES)),
        (metrics.crps, (ONES, NAN, ONES)),
        (metrics.coverage, (NAN, ONES, ONES)),
        (metrics.coverage, (ONES, NAN, ONES)),
        (metrics.ood_auroc, (NAN, ONES)),
        (metrics.ood_auroc, (ONES, NAN)),
        *((metric, (NAN, ONES)) for metric in SCORES),
        *((metric, (torch.tensor([[0.1, 0.9], [math.nan, 0.9]]), ONES.long())) for metric in SCORES),
    ],
)
def test_what_is_nan_or_empty_has_no_score(metric, arguments):
    """An argmax takes nan for the largest, of class 0; a score must not."""
    assert math.isnan(metric(*arguments))
    assert math.isnan(metric(*(argument[:0] for argument in arguments)))


A, B, CLASSES = torch.ones(5), torch.ones(5, 1), torch.tensor([0, 1])
SHAPES = r"^probs must be \(N, C\) with at least 2 classes, or \(N,\) of class 1, for targets \(N,\), got \("


@pytest.mark.parametrize(
    ("metric", "arguments", "message"),
    [
        (metrics.rmse, (A, B), r"^mean must be of the target's shape \(5, 1\), got \(5,\)$"),
        (metrics.crps, (A, B, B), "^mean must be of the target's shape"),
        (metrics.crps, (B, A, B), "^variance must be of the target's shape"),
        (metrics.coverage, (A, B, B), "^lower must be of the target's shape"),
        (metrics.coverage, (B, A, B), "^upper must be of the target's shape"),
        *((metric, (torch.zeros(5, 3), torch.zeros(5, 1).long()), SHAPES) for metric in SCORES),
        *((metric, (torch.zeros(5, 1), torch.zeros(5).long()), SHAPES) for metric in SCORES),
        (metrics.calibration_curve, (torch.zeros(()), torch.zeros(()).long()), SHAPES),
        *((m, (torch.tensor([-3.0, 3.0]), CLASSES), r"^probs must be in \[0, 1\], got -3.0$") for m in SCORES),
        (metrics.accuracy, (torch.full((2, 2), math.inf), CLASSES), r"^probs must be in \[0, 1\], got inf$"),
        *((m, (torch.full((2, 2), 0.25), CLASSES), "^probs must have the sum 1 over the .*, got 0.5$") for m in SCORES),
        *((m, (0.5 * ONES, torch.tensor([0.0, 0.75])), "^target must be class numbers, got 0.75") for m in SCORES),
        *((m, (0.5 * ONES, torch.tensor([0, -1])), "^target must be class numbers below 2, got -1$") for m in SCORES),
        *((m, (torch.full((2, 2), 0.5), torch.tensor([0, 2])), "^target must be .* below 2, got 2$") for m in SCORES),
        (metrics.ood_auroc, (B, A), r"^inside must have one score for each data point, got shape \(5, 1\)"),
        (metrics.ood_auroc, (A, B), r"^outside must have one score for each data point, got shape \(5, 1\)"),
        (partial(metrics.calibration_curve, bins=0), (0.5 * ONES, CLASSES), "^bins must be at least 1, got 0$"),
    ],
)
def test_refusals(metric, arguments, message):
    with pytest.raises(ValueError, match=message):
        metric(*arguments)


class TestPlots:
    """The numbers that reach the axes."""

    @pytest.fixture
    def axes(self):
        return Figure().subplots()

    def labels(self, axes):
        return axes.get_legend_handles_labels()[1]

    def test_regression_band(self, axes):
        x = torch.linspace(-1, 1, 5)
        prediction = ba.predictive.RegressionPredictive(draw(6, 5, 1), draw(6, 5, 1, seed=1).exp())
        assert plots.regression_band(axes, x, prediction, (torch.zeros(3), torch.ones(3))) is axes
        np.testing.assert_allclose(axes.lines[0].get_ydata(), prediction.mean[:, 0])
        for band, variance in zip(axes.collections[:2], (prediction.variance, prediction.epistemic), strict=True):
            corners = band.get_paths()[0].vertices
            half = 2 * variance.sqrt()
            for sign in (-1, 1):
                for point in torch.stack([x.double(), (prediction.mean + sign * half)[:, 0]], -1).numpy():
                    assert np.isclose(corners, point, rtol=0, atol=1e-6).all(1).any()
        assert self.labels(axes) == ["total, 2 sd", "epistemic, 2 sd", "mean", "training data"]

    def test_reliability(self, axes):
        probs, target = classes()
        plots.reliability(axes, {"one": (probs, target), "two": (probs, target)}, bins=8)
        confidence, correct, share = metrics.calibration_curve(probs, target, bins=8)
        points = axes.collections[0].get_offsets()
        np.testing.assert_allclose(np.ma.filled(points, math.nan), torch.stack([confidence, correct], -1))
        sizes = axes.collections[0].get_sizes()
        assert (np.argsort(sizes, kind="stable") == np.argsort(share.numpy(), kind="stable")).all()
        error = metrics.expected_calibration_error(probs, target, bins=8)
        assert f"{error:.3f}" != f"{metrics.expected_calibration_error(probs, target):.3f}"
        assert self.labels(axes)[1:] == [f"one (ECE {error:.3f})", f"two (ECE {error:.3f})"]

    def test_entropies_of_the_least_certain_are_in_the_last_bar(self, axes):
        """In float32 the entropy of equal probabilities is rounded up for seven classes."""
        even = -torch.full((50, 7), 1 / 7).xlogy(torch.tensor(1 / 7)).sum(-1)
        assert even[0].item() > math.log(7)
        plots.entropy_histogram(axes, {"one": torch.cat([even, torch.full((50,), 0.5)])}, 7)
        heights = [bar.get_height() for bar in axes.patches[:30]]
        width = math.log(7) / 30
        assert heights[-1] * width == pytest.approx(0.5)
