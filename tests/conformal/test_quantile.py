import pytest
import torch

from bayesadam.conformal import conformal_quantile


def test_it_is_the_score_of_the_rank():
    scores = torch.arange(1.0, 20.0).flip(0)
    for coverage, expected in ((0.95, 19.0), (0.9, 18.0), (0.5, 10.0), (0.01, 1.0)):  # ceil(20 coverage)
        assert conformal_quantile(scores, coverage) == expected
    # 100 * 0.55 is 55.00000000000001 in floating point, of which the ceiling would be 56.
    assert conformal_quantile(torch.arange(1.0, 100.0), 0.55) == 55.0


def test_several_scores_of_a_row():
    scores = torch.stack([torch.arange(9.0), 10.0 * torch.arange(9.0).flip(0)], dim=1)
    assert conformal_quantile(scores, 0.8).tolist() == [7.0, 70.0]


def test_infinite_scores_are_ordered():
    scores = torch.tensor([torch.inf, 1.0, 2.0])
    assert conformal_quantile(scores, 0.5) == 2.0
    assert conformal_quantile(scores, 0.75) == torch.inf


def test_too_few_rows_are_an_error():
    with pytest.raises(
        ValueError, match=r"coverage must be at most n / \(n \+ 1\) = 0.95 with 19 .*, got 0.96: the int"
    ):
        conformal_quantile(torch.arange(19.0), 0.96)
    with pytest.raises(ValueError, match="with 0 calibration rows"):
        conformal_quantile(torch.zeros(0), 0.1)


@pytest.mark.parametrize("coverage", [0.0, 1.0, -0.1, float("nan")])
def test_coverage_is_a_probability(coverage):
    with pytest.raises(ValueError, match=r"coverage must be in \(0, 1\), got"):
        conformal_quantile(torch.arange(19.0), coverage)


def test_nan_is_no_score():
    with pytest.raises(ValueError, match="scores must be numbers, got nan"):
        conformal_quantile(torch.tensor([1.0, torch.nan, 2.0]), 0.5)
