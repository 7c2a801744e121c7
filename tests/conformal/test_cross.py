import math

import pytest
import torch

from bayesadam.conformal import cross_interval, split_interval

GENERATOR = torch.Generator().manual_seed(0)


def slow(left_out, targets, folds, predictions, coverage):
    """Barber et al. (2021): quantiles of ``prediction -+ error`` over the training rows, one new row at a time."""
    n = len(targets)
    alpha = 1.0 - coverage
    ends = []
    for x in range(predictions.shape[1]):
        lower, upper = [], []
        for i in range(n):
            error = abs(float(targets[i]) - float(left_out[i]))
            center = float(predictions[folds[i], x])
            lower.append(center - error)
            upper.append(center + error)
        ends.append(
            [
                sorted(lower)[math.floor(alpha * (n + 1) + 1e-9) - 1],
                sorted(upper)[math.ceil((1 - alpha) * (n + 1) - 1e-9) - 1],
            ]
        )
    return torch.tensor(ends, dtype=torch.float64).T


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.93])
def test_it_is_a_slow_loop(coverage):
    left_out, targets = torch.randn(2, 40, generator=GENERATOR, dtype=torch.float64)
    folds = torch.arange(40) % 5
    predictions = torch.randn(5, 11, generator=GENERATOR, dtype=torch.float64)
    expected = slow(left_out, targets, folds, predictions, coverage)
    found = cross_interval(left_out, targets, folds, predictions, coverage=coverage)
    torch.testing.assert_close(torch.stack(found), expected, rtol=0, atol=1e-14)


def test_several_targets_are_each_by_themselves_and_chunks_do_not_matter(monkeypatch):
    left_out, targets = torch.randn(2, 40, 2, generator=GENERATOR, dtype=torch.float64)
    folds = torch.arange(40) % 5
    predictions = torch.randn(5, 11, 2, generator=GENERATOR, dtype=torch.float64)
    monkeypatch.setattr("bayesadam.conformal.cross.AT_ONCE", 250)  # three rows at a time
    lower, upper = cross_interval(left_out, targets, folds, predictions, coverage=0.8)
    for k in range(2):
        expected = slow(left_out[:, k], targets[:, k], folds, predictions[..., k], 0.8)
        torch.testing.assert_close(torch.stack([lower[:, k], upper[:, k]]), expected, rtol=0, atol=1e-14)


def test_one_model_of_all_rows_is_the_split_interval():
    left_out, targets = torch.randn(2, 40, generator=GENERATOR, dtype=torch.float64)
    new = torch.randn(1, 6, generator=GENERATOR, dtype=torch.float64)
    found = cross_interval(left_out, targets, torch.zeros(40, dtype=torch.int64), new, coverage=0.8)
    expected = split_interval(left_out, targets, new[0], coverage=0.8)
    torch.testing.assert_close(torch.stack(found), torch.stack(expected))


@pytest.mark.parametrize("folds", [4, 24])
def test_coverage_of_many_small_data_sets(folds):
    """A parabola through 24 rows of another curve with heavy tails; with 24 folds it is the jackknife+.

    The theorems promise 0.6 and, for four folds, 1 - 0.4 - min(1.5 / 7, (1 - 4 / 24) / 5) = 0.433; it is about 0.8.
    """
    sets, rows = 1_500, 24
    generator = torch.Generator().manual_seed(2)
    x = 4.0 * torch.rand(sets, rows + 1, generator=generator, dtype=torch.float64) - 2.0
    heavy = torch.randn(3, *x.shape, generator=generator, dtype=torch.float64)
    y = torch.sin(3.0 * x) + 0.3 * heavy[0] / (0.5 * heavy[1:].square().sum(0)).sqrt()  # Student's t with 2 degrees
    design = torch.stack([torch.ones_like(x), x, x.square()], dim=-1)
    fold = torch.arange(rows) % folds
    weights = torch.stack(
        [
            torch.linalg.lstsq(design[:, :rows][:, fold != f], y[:, :rows][:, fold != f, None]).solution
            for f in range(folds)
        ]
    )
    predicted = (design @ weights)[..., 0]  # (folds, sets, rows + 1)
    left_out = predicted[fold, :, torch.arange(rows)]  # (rows, sets)
    lower, upper = cross_interval(left_out, y[:, :rows].T, fold, predicted[:, None, :, rows], coverage=0.8)
    covered = ((lower[0] <= y[:, rows]) & (y[:, rows] <= upper[0])).double().mean().item()
    error = math.sqrt(0.16 / sets)
    assert 0.8 - 4 * error < covered < 0.8 + 2 / (rows + 1) + 4 * error


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.bool])
def test_folds_of_any_whole_type_are_indices(dtype):
    """As an index, uint8 and bool would be a mask."""
    left_out, targets = torch.randn(2, 40, generator=GENERATOR, dtype=torch.float64)
    folds, predictions = torch.arange(40) % 2, torch.randn(2, 11, generator=GENERATOR, dtype=torch.float64)
    expected = cross_interval(left_out, targets, folds, predictions, coverage=0.8)
    found = cross_interval(left_out, targets, folds.to(dtype), predictions, coverage=0.8)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_errors():
    left_out, targets, folds, new = torch.zeros(20), torch.zeros(20), torch.arange(20) % 4, torch.zeros(4, 3)
    with pytest.raises(ValueError, match=r"target must be of shape \(20,\), got \(19,\)"):
        cross_interval(left_out, targets[1:], folds, new)
    with pytest.raises(ValueError, match=r"predictions must be of shape \(F, N, \*\(\)\), got \(4, 3, 1\)"):
        cross_interval(left_out, targets, folds, new[..., None])
    with pytest.raises(ValueError, match=r"predictions must be of shape \(F, N, \*\(\)\), got \(4,\)"):
        cross_interval(left_out, targets, folds, new[:, 0])
    with pytest.raises(ValueError, match=r"folds must be in \[0, 3\), got 0 to 3"):
        cross_interval(left_out, targets, folds, new[:3])
    with pytest.raises(ValueError, match=r"folds must be whole numbers of shape \(20,\), got torch.float32"):
        cross_interval(left_out, targets, folds.float(), new)
    with pytest.raises(ValueError, match=r"coverage must be in \[0.5, 1\) of cross-conformal intervals, got 0.4"):
        cross_interval(left_out, targets, folds, new, coverage=0.4)
    with pytest.raises(ValueError, match="coverage must be at most"):
        cross_interval(left_out, targets, folds, new, coverage=0.99)
    with pytest.raises(ValueError, match="errors must be numbers, got nan"):
        cross_interval(left_out, targets * torch.nan, folds, new, coverage=0.9)
    new[1, 2] = torch.nan  # of one model, which would be sorted behind all numbers
    with pytest.raises(ValueError, match="^predictions must be numbers, got nan$"):
        cross_interval(left_out, targets, folds, new, coverage=0.9)
