"""Metrics against scikit-learn, scipy, numerical integration and loops; figures show the numbers they are given."""

import math
import sys

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from scipy import integrate, stats

import bayesadam as ba
from bayesadam import metrics, plots

F64 = {"dtype": torch.float64}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed), **F64)


def classes(count=200, number=4, seed=0):
    """Class probabilities ``(N, C)`` and targets that agree with them more often than not."""
    logits = 2 * draw(count, number, seed=seed)
    target = (logits + 2 * draw(count, number, seed=seed + 1)).argmax(-1)
    return logits.softmax(-1), target


class TestRegression:
    @pytest.mark.parametrize("shape", [(50,), (50, 3)])
    def test_rmse(self, shape):
        mean, target = draw(*shape), draw(*shape, seed=1)
        expected = math.sqrt(sklearn.metrics.mean_squared_error(target.flatten(), mean.flatten()))
        assert metrics.rmse(mean, target) == pytest.approx(expected, rel=1e-12)

    def test_squares_do_not_overflow_float32(self):
        mean = torch.full((10,), 1e20)
        assert metrics.rmse(mean, torch.zeros_like(mean)) == pytest.approx(1e20, rel=1e-6)

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.bool])
    def test_differences_do_not_wrap(self, dtype):
        one, two = torch.tensor([0, 1], dtype=dtype), torch.tensor([1, 1], dtype=dtype)
        assert metrics.rmse(one, two) == pytest.approx(math.sqrt(0.5))
        assert metrics.interval_width(two, one) == -0.5
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

    def test_crps_of_a_narrow_gaussian_is_the_absolute_error(self):
        mean, target = draw(20), draw(20, seed=1)
        found = metrics.crps(mean, torch.full_like(mean, 1e-16), target)
        assert found == pytest.approx((mean - target).abs().mean().item(), abs=1e-7)
        mean[0] = target[0]
        found = metrics.crps(mean, torch.zeros_like(mean), target)
        assert found == pytest.approx((mean - target).abs().mean().item(), rel=1e-12)

    def test_coverage_and_width(self):
        lower, upper = torch.tensor([0.0, 0.0, 0.0, 1.0]), torch.tensor([1.0, 2.0, 3.0, 1.0])
        target = torch.tensor([1.0, -0.1, 0.0, math.nan])  # the borders belong to the interval, nan to none
        assert metrics.coverage(lower, upper, target) == 0.5
        assert metrics.interval_width(lower, upper) == 1.5

    @pytest.mark.parametrize("place", [0, 1])
    def test_intervals_that_are_nan_or_empty_have_no_score(self, place):
        ends = [torch.zeros(2), torch.ones(2)]
        ends[place][0] = math.nan
        target = torch.full((2,), 0.5)
        assert math.isnan(metrics.coverage(*ends, target))
        assert math.isnan(metrics.interval_width(*ends))
        assert math.isnan(metrics.coverage(ends[0][:0], ends[1][:0], target[:0]))
        assert math.isnan(metrics.interval_width(ends[0][:0], ends[1][:0]))

    def test_predictions_that_are_nan_or_empty_have_no_score(self):
        mean, one = torch.tensor([math.nan, 0.0]), torch.ones(2)
        for call in (metrics.rmse, lambda m, y: metrics.crps(m, y, y), lambda m, y: metrics.crps(y, m, y)):
            assert math.isnan(call(mean, one))
            assert math.isnan(call(mean[:0], one[:0]))

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda a, b: metrics.rmse(a, b), "^mean must be of the target's shape"),
            (lambda a, b: metrics.crps(a, b, b), "^mean must be of the target's shape"),
            (lambda a, b: metrics.crps(b, a, b), "^variance must be of the target's shape"),
            (lambda a, b: metrics.coverage(a, b, b), "^lower must be of the target's shape"),
            (lambda a, b: metrics.coverage(b, a, b), "^upper must be of the target's shape"),
            (lambda a, b: metrics.interval_width(a, b), "^lower must be of the upper's shape"),
        ],
    )
    def test_refuses_shapes_that_would_broadcast(self, call, message):
        with pytest.raises(ValueError, match=message + r" \(5, 1\), got \(5,\)$"):
            call(torch.ones(5), torch.ones(5, 1))


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

    def test_classification_with_several_labels(self):
        log_probs = ba.Bernoulli().log_probs(2 * draw(4, 7, 2))
        target = torch.arange(14).view(7, 2) % 2
        p = log_probs.exp().numpy()[..., 1]
        terms = stats.bernoulli.logpmf(target.numpy(), p).sum(-1)
        self.check(ba.predictive.ClassificationPredictive(log_probs, binary=True), target, terms)

    @pytest.mark.parametrize(
        "prediction",
        [
            ba.predictive.RegressionPredictive(torch.zeros(4, 0), torch.ones(4, 0)),
            ba.predictive.ClassificationPredictive(torch.zeros(4, 0, 3)),
            ba.predictive.MixturePredictive(torch.zeros(4, 0), ba.likelihoods.StudentT(4.0, scale=1.0)),
        ],
        ids=lambda prediction: type(prediction).__name__,
    )
    def test_no_data_have_no_score(self, prediction):
        target = torch.zeros(0, dtype=torch.int64)
        for metric in (metrics.log_likelihood, metrics.joint_log_likelihood, metrics.nll):
            assert math.isnan(metric(prediction, target))

    def test_identical_samples_make_no_difference_between_the_two(self):
        prediction, target = self.regression(7)
        same = ba.predictive.RegressionPredictive(
            prediction.means[:1].expand(4, 7), prediction.variances[:1].expand(4, 7)
        )
        joint, pointwise = metrics.joint_log_likelihood(same, target), metrics.log_likelihood(same, target)
        assert joint == pytest.approx(pointwise, rel=1e-12)


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
        for metric in (metrics.accuracy, metrics.brier_score, metrics.expected_calibration_error):
            for labels in (target, target.bool(), target.int(), target.float()):
                assert metric(p, labels) == metric(both, target)

    @pytest.mark.parametrize("binary", [False, True])
    @pytest.mark.parametrize("share", [1, 4])
    def test_what_is_nan_or_empty_has_no_score(self, binary, share):
        """An argmax takes nan for the largest, of class 0; a score must not."""
        probs, target = classes()
        if binary:
            probs, target = probs[:, 0], target % 2
        bad = probs.clone()
        bad[::share] = math.nan
        for metric in (metrics.accuracy, metrics.brier_score, metrics.expected_calibration_error):
            assert math.isnan(metric(bad, target))
            assert math.isnan(metric(probs[:0], target[:0]))

    def test_one_class_that_is_nan(self):
        probs, target = torch.tensor([[0.1, 0.9], [math.nan, 0.9]]), torch.tensor([1, 1])
        assert math.isnan(metrics.accuracy(probs, target))
        assert math.isnan(metrics.expected_calibration_error(probs, target))
        confidence, correct, share = metrics.calibration_curve(probs, target, bins=2)
        assert share.tolist() == [0.5, 0.5]
        assert confidence[0].isnan()
        assert correct[0].isnan()
        assert correct[1] == 1

    METRICS = (metrics.accuracy, metrics.brier_score, metrics.expected_calibration_error)

    @pytest.mark.parametrize("metric", METRICS)
    def test_refuses_what_is_no_probability(self, metric):
        target = torch.tensor([0, 1])
        with pytest.raises(ValueError, match=r"^probs must be in \[0, 1\], got -3.0$"):
            metric(torch.tensor([-3.0, 3.0]), target)
        with pytest.raises(ValueError, match=r"^probs must be in \[0, 1\], got 1.5$"):
            metric(torch.tensor([[-0.01, 1.01], [-0.5, 1.5]]).flip(1), target)
        with pytest.raises(ValueError, match=r"^probs must have the sum 1 over the classes, got 0.5$"):
            metric(torch.tensor([[0.5, 0.5], [0.25, 0.25]]), target)
        with pytest.raises(ValueError, match=r"^probs must be in \[0, 1\], got inf$"):
            metric(torch.tensor([[math.nan, 0.5], [math.inf, 0.0]]), target)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
    @pytest.mark.parametrize("number", [2, 10, 1000, 30_000])
    def test_accepts_probabilities_in_half_precision(self, number, dtype):
        probs, target = classes(50, number)
        rounded = (probs.to(dtype), (0.5 * probs[:, 0]).to(dtype), torch.full((50, number), 1 / number).to(dtype))
        for values in rounded:
            labels = target if values.ndim == 2 else target % 2
            for metric in self.METRICS:
                assert metric(values, labels) == pytest.approx(metric(values.double(), labels), abs=0.02)

    def test_classes_of_a_small_type(self):
        probs = torch.full((2, 300), 1 / 300)
        target = torch.tensor([0, 44], dtype=torch.uint8)  # 300 is 44 in uint8
        assert metrics.accuracy(probs, target) == 0.5

    @pytest.mark.parametrize("bad", [0.7, math.nan])
    def test_refuses_targets_that_are_no_classes(self, bad):
        for metric in (metrics.accuracy, metrics.brier_score, metrics.expected_calibration_error):
            with pytest.raises(ValueError, match=f"^target must be class numbers, got {bad}"):
                metric(torch.tensor([0.5, 0.5]), torch.tensor([0.0, bad], **F64))

    @pytest.mark.parametrize("bad", [-1, 2, 255])
    @pytest.mark.parametrize("metric", [metrics.accuracy, metrics.brier_score, metrics.expected_calibration_error])
    def test_refuses_classes_that_do_not_exist(self, metric, bad):
        for probs in (torch.tensor([0.5, 0.5]), torch.full((2, 2), 0.5)):
            with pytest.raises(ValueError, match=f"^target must be class numbers below 2, got {bad}$"):
                metric(probs, torch.tensor([0, bad]))

    def test_perfect_and_worst_predictions(self):
        probs = torch.eye(3)
        right, wrong = torch.arange(3), (torch.arange(3) + 1) % 3
        assert [metrics.accuracy(probs, y) for y in (right, wrong)] == [1.0, 0.0]
        assert [metrics.brier_score(probs, y) for y in (right, wrong)] == [0.0, 2.0]
        assert [metrics.expected_calibration_error(probs, y) for y in (right, wrong)] == [0.0, 1.0]

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

    @pytest.mark.parametrize("bins", [1, 7, 15, 100])
    def test_calibration_error_by_a_loop(self, bins):
        probs, target = classes(500)
        confidence, predicted = probs.max(-1)
        expected = ece_by_loop(confidence.tolist(), (predicted == target).tolist(), bins)
        assert metrics.expected_calibration_error(probs, target, bins=bins) == pytest.approx(expected, rel=1e-10)
        if bins == 15:
            assert metrics.expected_calibration_error(probs, target) == pytest.approx(expected, rel=1e-10)
            assert expected > 0.02

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.tuples(st.integers(0, 16), st.booleans()), min_size=1, max_size=20))
    def test_calibration_error_on_borders(self, points):
        """Sixteenths are exact in binary, and all on borders of 8 bins or in the middle of a bin."""
        p, target = [k / 16 for k, _ in points], [int(y) for _, y in points]
        confidence = [max(x, 1 - x) for x in p]
        correct = [(x > 0.5) == y for x, y in zip(p, target, strict=True)]
        found = metrics.expected_calibration_error(torch.tensor(p), torch.tensor(target), bins=8)
        assert found == pytest.approx(ece_by_loop(confidence, correct, 8), abs=1e-12)

    @pytest.mark.parametrize("bins", [0, -1])
    def test_refuses_bins(self, bins):
        for metric in (metrics.calibration_curve, metrics.expected_calibration_error):
            with pytest.raises(ValueError, match=f"^bins must be at least 1, got {bins}$"):
                metric(*classes(), bins=bins)

    @pytest.mark.parametrize(
        "metric",
        [metrics.accuracy, metrics.brier_score, metrics.calibration_curve, metrics.expected_calibration_error],
    )
    @pytest.mark.parametrize(
        ("probs", "target"),
        [((5, 3), (5, 1)), ((5,), (5, 1)), ((5, 1), (5,)), ((5, 1), (5, 1)), ((5, 3), (4,)), ((5, 3), ()), ((), ())],
    )
    def test_refuses_shapes(self, metric, probs, target):
        message = r"^probs must be \(N, C\) with at least 2 classes, or \(N,\) of class 1, for targets \(N,\), got \("
        with pytest.raises(ValueError, match=message):
            metric(torch.zeros(probs), torch.zeros(target, dtype=torch.int64))


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

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.uint8, torch.int64])
    def test_auroc_in_any_type(self, dtype):
        inside, outside = torch.tensor([1, 3, 3], dtype=dtype), torch.tensor([2, 3, 5], dtype=dtype)
        assert metrics.ood_auroc(inside, outside) == pytest.approx(6 / 9)

    def test_auroc_of_infinite_scores(self):
        inside, outside = torch.tensor([-math.inf, 1.0, math.inf]), torch.tensor([2.0, math.inf])
        assert metrics.ood_auroc(inside, outside) == pytest.approx(4.5 / 6)

    def test_auroc_of_nan_or_nothing(self):
        scores, bad = torch.tensor([1.0, 2.0]), torch.tensor([math.nan, 1.0])
        for inside, outside in ((bad, scores), (scores, bad), (scores[:0], scores), (scores, scores[:0])):
            assert math.isnan(metrics.ood_auroc(inside, outside))

    def test_without_scikit_learn(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
        with pytest.raises(ImportError, match=r'^ood_auroc needs scikit-learn: pip install "bayesadam\[sklearn\]"$'):
            metrics.ood_auroc(torch.zeros(2), torch.ones(2))


@pytest.mark.parametrize("grad", [False, True])
def test_results_are_floats(grad):
    probs, target = classes()
    probs, values = probs.requires_grad_(grad), draw(5).requires_grad_(grad)
    prediction = ba.predictive.RegressionPredictive(values[None], values[None].exp())
    for value in (
        metrics.rmse(values, values),
        metrics.log_likelihood(prediction, values),
        metrics.joint_log_likelihood(prediction, values),
        metrics.nll(prediction, values),
        metrics.crps(values, values.exp(), values),
        metrics.accuracy(probs, target),
        metrics.brier_score(probs, target),
        metrics.expected_calibration_error(probs, target),
        metrics.coverage(values, values, values),
        metrics.interval_width(values, values),
        metrics.ood_auroc(values, values),
    ):
        assert type(value) is float
    assert not any(part.requires_grad for part in metrics.calibration_curve(probs, target))


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

    def test_entropy_histogram(self, axes):
        entropy = torch.cat([torch.zeros(3), torch.full((7,), math.log(4))])
        plots.entropy_histogram(axes, {"a": entropy}, classes=4)
        heights = [patch.get_height() * patch.get_width() for patch in axes.patches[:30]]
        np.testing.assert_allclose([heights[0], heights[-1]], [0.3, 0.7], rtol=1e-5)

    def test_signal_to_noise(self, axes):
        q = ba.DiagonalGaussian({"w": torch.tensor([10.0, 1e-9, 0.0, 1.0])}, {"w": torch.tensor([1.0, 1.0, 1.0, 0.0])})
        plots.signal_to_noise(axes, {"one": q})
        outline = axes.patches[0].get_xy()
        assert outline[:, 0].min() == pytest.approx(-60)  # -180 dB
        assert outline[:, 0].max() == pytest.approx(20)
