"""``q.report()``: what a Gaussian posterior knows, in numbers and in words."""

import math

import numpy as np
import pytest
import torch

import bayesadam as ba
from bayesadam.posterior.report import PER_TENSOR, quantiles
from posterior.kinds import GAUSSIANS


def posterior(shares=(0.25, 0.75), priors=(2.0, 4.0), **hyperparameters):
    """Two tensors of 300 and 100 weights; one weight of the first is pruned."""
    generator = torch.Generator().manual_seed(0)
    mean = {"w": torch.randn(30, 10, generator=generator), "b": torch.randn(100, generator=generator)}
    variance = {name: 0.2 * torch.rand(value.shape, generator=generator) + 0.01 for name, value in mean.items()}
    mean["w"][0, 0] = variance["w"][0, 0] = 0.0
    told = {
        name: {"start_share": share, "prior_precision": prior}
        for name, share, prior in zip(mean, shares, priors, strict=True)
    }
    return ba.DiagonalGaussian(mean, variance, hyperparameters={PER_TENSOR: told, **hyperparameters})


def test_numbers_are_those_of_the_tensors():
    q = posterior()
    report = q.report()
    assert [(row.name, row.shape, row.num_weights, row.num_random) for row in (*report.rows, report.total)] == [
        ("w", (30, 10), 300, 299),
        ("b", (100,), 100, 100),
        ("all", (), 400, 399),
    ]
    spreads, ratios, determined = [], [], []
    for row, share, prior in zip(report.rows, (0.25, 0.75), (2.0, 4.0), strict=True):
        variance = q.variance[row.name].double().numpy().ravel()
        mean = np.abs(q.mean[row.name].double().numpy().ravel())[variance > 0]
        spreads.append(np.sqrt(variance[variance > 0]))
        ratios.append(mean / spreads[-1])
        determined.append(sum(1.0 - prior * v - share for v in variance if v > 0))
        assert row.width == pytest.approx(np.quantile(spreads[-1], [0.01, 0.5, 0.99], method="lower"))
        assert row.signal_to_noise == pytest.approx(np.quantile(ratios[-1], [0.01, 0.5, 0.99], method="lower"))
        assert (row.start_share, row.prior_precision) == (share, prior)
        assert row.determined == pytest.approx(max(determined[-1], 0.0), rel=1e-5)
    assert determined[0] > 0 > determined[1]  # one is clipped
    total = report.total
    assert total.width == pytest.approx(np.quantile(np.concatenate(spreads), [0.01, 0.5, 0.99], method="lower"))
    assert total.signal_to_noise == pytest.approx(
        np.quantile(np.concatenate(ratios), [0.01, 0.5, 0.99], method="lower")
    )
    assert total.start_share == pytest.approx((299 * 0.25 + 100 * 0.75) / 399)
    assert total.determined == pytest.approx(determined[0], rel=1e-5)
    assert total.prior_precision is None


def test_determined_is_the_trace_in_linear_regression():
    """MacKay's gamma is the sum of ``l / (l + lambda)`` over the eigenvalues ``l`` of the data's precision."""
    values = torch.tensor([0.0, 0.5, 3.0, 1e6], dtype=torch.float64)
    q = ba.DiagonalGaussian(
        {"w": torch.zeros(4)}, {"w": 1.0 / (values + 2.0)}, hyperparameters={"prior_precision": 2.0}
    )
    assert q.report().total.determined == pytest.approx((values / (values + 2.0)).sum().item(), rel=1e-12)
    far = ba.DiagonalGaussian(
        {"w": torch.zeros(4)}, {"w": torch.full((4,), 1e-9)}, hyperparameters={"prior_precision": 2.0}
    )
    assert far.report().total.determined == pytest.approx(4.0, rel=1e-8)


@pytest.mark.parametrize("other", ["init", [1.0], {"w": 1.0}, True])
def test_what_is_no_number_is_not_known(other):
    told = {"w": {"start_share": other, "prior_precision": other}}
    for hyperparameters in ({"prior_precision": other, PER_TENSOR: told}, {PER_TENSOR: other}):
        q = ba.DiagonalGaussian({"w": torch.ones(3)}, {"w": torch.ones(3)}, hyperparameters=hyperparameters)
        (row,) = q.report().rows
        assert (row.start_share, row.prior_precision, row.determined) == (None, None, None)


def test_what_is_not_known_is_none():
    q = ba.DiagonalGaussian({"w": torch.ones(3)}, {"w": torch.ones(3)}, hyperparameters={"method": "by hand"})
    (row,) = q.report().rows
    assert (row.start_share, row.prior_precision, row.determined) == (None, None, None)
    assert row.width == row.signal_to_noise == (1.0, 1.0, 1.0)
    assert q.report().sentences == ()
    assert str(q.report()).splitlines()[-1].split()[:2] == ["all", "3"]
    half = posterior()
    del half.hyperparameters[PER_TENSOR]["b"]
    total = half.report().total
    assert (total.start_share, total.determined) == (0.25, None)


def test_point_masses_have_no_width():
    point = ba.DiagonalGaussian.point_mass({"w": torch.ones(2, 3)}, hyperparameters={"prior_precision": 1.0})
    report = point.report()
    assert report.rows[0].width is report.rows[0].signal_to_noise is report.total.determined is None
    assert report.sentences == ("No weight is random: this is one network.",)
    assert "not random" in str(report)


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (0.98, "98% of the width still comes from the initial precision: the posterior has not learned it."),
        (0.3, "30% of the width still comes from the initial precision: the posterior has learned it in part."),
        (0.04, "4% of the width comes from the initial precision: the gradients determine the rest."),
        (0.004, "Less than 1% of the width comes from the initial precision: the gradients determine the rest."),
    ],
)
def test_sentences_say_what_the_numbers_mean(share, said):
    report = posterior(shares=(share, share), priors=(0.0, 0.0)).report()
    assert report.sentences[0] == said
    determined = 399 * (1 - share)
    assert report.sentences[1] == f"The data determine about {determined:.0f} of 399 random weights ({1 - share:.0%})."
    assert str(report).endswith("\n\n" + "\n".join(report.sentences))


def test_the_table_is_complete():
    lines = str(posterior().report()).splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["tensor", "w", "b", "all"]
    assert {"30 x 10", "25%"} <= {cell.strip() for cell in lines[1].split("  ")}


def test_quantiles_are_values_and_may_be_infinite():
    values = torch.arange(101.0)
    assert quantiles(values.flip(0)) == (1.0, 50.0, 99.0)
    assert quantiles(torch.tensor([3.0])) == (3.0, 3.0, 3.0)
    assert quantiles(torch.tensor([1.0, math.inf, math.inf]))[1:] == (math.inf, math.inf)
    assert quantiles(torch.zeros(0)) is None


@pytest.mark.parametrize("kind", ["dense", "low rank", "kronecker"])
def test_every_gaussian_has_one_by_its_marginal_variances(kind):
    told = {"prior_precision": 0.01, PER_TENSOR: {"a": {"start_share": 0.5, "prior_precision": 0.02}}}
    q = GAUSSIANS[kind](**told)
    report = q.report()
    assert report == ba.DiagonalGaussian(q.mean, q.variance, hyperparameters=told).report()
    assert [row.start_share for row in report.rows] == [None, 0.5, None, None]
    assert [row.prior_precision for row in report.rows] == [0.01, 0.02, 0.01, 0.01]
