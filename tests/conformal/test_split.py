import math

import pytest
import torch

from bayesadam.conformal import adaptive_interval, split_interval
from bayesadam.functional.monotone import Log, Log1p
from bayesadam.predictive import GaussianPredictive, TransformedPredictive

GENERATOR = torch.Generator().manual_seed(0)


def gaussian(*shape):
    mean, std = (
        torch.randn(*shape, generator=GENERATOR).double(),
        torch.rand(*shape, generator=GENERATOR).double() + 0.1,
    )
    return GaussianPredictive(mean, 0.3 * std.square(), 0.7 * std.square())


def smallest(values, coverage):
    """The ``ceil((n + 1) coverage)``-th smallest."""
    return sorted(values)[math.ceil((len(values) + 1) * coverage) - 1]


def test_split_is_a_slow_loop():
    known, new, y = gaussian(30), gaussian(7), torch.randn(30, generator=GENERATOR).double()
    width = smallest([abs(float(y[i] - known.mean[i])) for i in range(30)], 0.8)
    for prediction in ((known, new), (known.mean, new.mean)):
        lower, upper = split_interval(prediction[0], y, prediction[1], coverage=0.8)
        torch.testing.assert_close(lower, new.mean - width, rtol=0, atol=1e-15)
        torch.testing.assert_close(upper, new.mean + width, rtol=0, atol=1e-15)


def test_adaptive_is_a_slow_loop_for_each_of_several_targets():
    known, new, y = gaussian(30, 2), gaussian(7, 2), torch.randn(30, 2, generator=GENERATOR).double()
    lower, upper = adaptive_interval(known, y, new, coverage=0.8)
    for k in range(2):
        errors = [abs(float(y[i, k] - known.mean[i, k])) / math.sqrt(float(known.variance[i, k])) for i in range(30)]
        half = smallest(errors, 0.8) * new.variance[:, k].sqrt()
        torch.testing.assert_close(lower[:, k], new.mean[:, k] - half)
        torch.testing.assert_close(upper[:, k], new.mean[:, k] + half)


@pytest.mark.parametrize("interval", [split_interval, adaptive_interval])
def test_transformed_targets_have_the_intervals_of_their_logarithms(interval):
    known, new, y = gaussian(30), gaussian(7), torch.randn(30, generator=GENERATOR).double()
    lower, upper = interval(known, y, new, coverage=0.8)
    transformed = [TransformedPredictive(base, [Log()]) for base in (known, new)]
    found = interval(transformed[0], y.exp(), transformed[1], coverage=0.8)
    torch.testing.assert_close(found[0], lower.exp())
    torch.testing.assert_close(found[1], upper.exp())


def test_coverage_of_many_small_data_sets_is_what_the_theorem_says():
    """A line through 15 rows of a curve with Cauchy noise, which no model here describes, and 19 rows to calibrate by.

    With 19 rows and a coverage of 0.8, or 0.9, the rank is a whole number, so that the coverage is exact.
    """
    sets, rows = 4_000, 19
    generator = torch.Generator().manual_seed(1)
    x = 4.0 * torch.rand(sets, 15 + rows + 1, generator=generator, dtype=torch.float64) - 2.0
    noise = torch.empty_like(x).cauchy_(generator=generator)
    y = x.square() + (0.1 + 0.3 * x.abs()) * noise
    design = torch.stack([torch.ones_like(x), x], dim=-1)
    weights = torch.linalg.lstsq(design[:, :15], y[:, :15, None]).solution
    mean = (design @ weights)[..., 0].T  # (rows, sets): every set is a target of its own
    known, new = slice(15, 15 + rows), slice(15 + rows, None)
    variance = (1.0 + x.T.abs()).square()
    predictions = [
        GaussianPredictive(mean[part], torch.zeros_like(mean[part]), variance[part]) for part in (known, new)
    ]
    for coverage in (0.8, 0.9):
        error = math.sqrt(coverage * (1 - coverage) / sets)
        for interval in (split_interval, adaptive_interval):
            lower, upper = interval(predictions[0], y.T[known], predictions[1], coverage=coverage)
            share = ((lower <= y.T[new]) & (y.T[new] <= upper)).double().mean().item()
            assert abs(share - coverage) < 4 * error


def test_adaptive_intervals_follow_the_standard_deviation():
    known, new, y = gaussian(30), gaussian(7), torch.randn(30, generator=GENERATOR).double()
    lower, upper = adaptive_interval(known, y, new)
    widths = (upper - lower) / new.variance.sqrt()
    torch.testing.assert_close(widths, widths[:1].expand(7))


def test_single_precision_is_calculated_in_double():
    known, y = torch.full((20,), 1e6), torch.full((20,), 1e6) + torch.arange(20) / 16
    lower, upper = split_interval(known, y, torch.zeros(1), coverage=0.9)
    assert lower.dtype == torch.float64
    assert upper.item() == 18 / 16


@pytest.mark.parametrize("interval", [split_interval, adaptive_interval])
def test_both_predictions_have_the_same_transform(interval):
    base, y = gaussian(30), torch.ones(30, dtype=torch.float64)
    known = TransformedPredictive(base, [Log(high=9.0)])
    assert len(interval(known, y, TransformedPredictive(gaussian(7), [Log(high=9.0)]))[0]) == 7
    with pytest.raises(ValueError, match=r"^prediction must have the transform of calibration, \(Log\(.*, got none$"):
        interval(known, y, base)
    with pytest.raises(ValueError, match=r"^prediction must have the transform of calibration, none, got \(Log\("):
        interval(base, y, known)
    for other in (Log(high=8.0), Log1p(high=9.0)):
        with pytest.raises(ValueError, match="^prediction must have the transform of calibration"):
            interval(known, y, TransformedPredictive(base, [other]))


@pytest.mark.parametrize(("known", "new"), [((30, 3), (3,)), ((30,), (5, 3)), ((30, 3), (5, 1)), ((30, 1), (5,))])
def test_both_predictions_have_the_same_number_of_targets(known, new):
    """With other shapes the widths would be broadcast over rows or targets."""
    calibration, prediction, y = gaussian(*known), gaussian(*new), torch.ones(known)
    for interval, first, second in (
        (split_interval, calibration.mean, prediction.mean),
        (split_interval, calibration, prediction),
        (adaptive_interval, calibration, prediction),
    ):
        with pytest.raises(ValueError, match=r"^prediction must be of shape \(N, \*\(.*\)\) as calibration, got \("):
            interval(first, y, second)


def test_a_prediction_that_is_nan_is_an_error():
    known, y = gaussian(30), torch.ones(30)
    new = GaussianPredictive(torch.tensor([0.0, torch.nan]), torch.ones(2), torch.ones(2))
    transformed = [TransformedPredictive(base, [Log()]) for base in (known, new)]
    for interval, first, second in (
        (split_interval, known.mean, new.mean),
        (split_interval, known, new),
        (split_interval, *transformed),
        (adaptive_interval, known, new),
        (adaptive_interval, *transformed),
    ):
        with pytest.raises(ValueError, match="^prediction must be numbers, got nan$"):
            interval(first, y, second)


def test_errors():
    known, y = gaussian(30), torch.zeros(30)
    for interval in (split_interval, adaptive_interval):
        with pytest.raises(ValueError, match=r"target must be of shape \(30,\), got \(30, 1\)"):
            interval(known, y[:, None], known)
        with pytest.raises(ValueError, match="scores must be numbers, got nan"):
            interval(known, torch.full((30,), torch.nan), known)
        with pytest.raises(ValueError, match="coverage must be at most"):
            interval(known, y, known, coverage=0.99)
    certain = GaussianPredictive(torch.zeros(30), torch.zeros(30), torch.zeros(30))
    with pytest.raises(ValueError, match="standard deviations must be positive, got 0.0"):
        adaptive_interval(certain, y, certain)
