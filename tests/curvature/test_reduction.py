"""How a loss reduces the examples' losses: right where it is told, and never told where it may be wrong."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bayesadam.curvature import reduction_of

M, K = 6, 4
model = nn.Linear(3, K)
x = torch.randn(M, 3, generator=torch.Generator().manual_seed(0))
labels, ys = torch.zeros(M, dtype=torch.long), torch.zeros(M, K)


def cross(reduction="mean", **options):
    return F.cross_entropy(model(x), labels, reduction=reduction, **options)


def each():
    return (model(x) - ys).square().sum(1)


MEANS = {
    "cross entropy": cross,
    "of tokens": lambda: F.cross_entropy(model(torch.randn(M, 5, 3)).flatten(0, 1), labels.repeat(5)),
    "squared error": lambda: F.mse_loss(model(x), ys),
    "l1": lambda: F.l1_loss(model(x), ys),
    "logits": lambda: F.binary_cross_entropy_with_logits(model(x), ys),
    "vector": lambda: each().mean(),
    "first axis, then nothing": lambda: each().mean(0),
    "matrix": lambda: (model(x) - ys).square().mean(),
    "micro-batch": lambda: each().mean() / 3,
    "weighted": lambda: 0.5 * cross(),
    "with a constant": lambda: cross() + 1.0,
    "wider": lambda: cross().double(),
    "gaussian": lambda: F.gaussian_nll_loss(model(x), ys, torch.ones_like(ys)),
    "vector of shape (1,)": lambda: each().mean(0, keepdim=True).squeeze(),
}
SUMS = {
    "cross entropy": lambda: cross("sum"),
    "squared error": lambda: F.mse_loss(model(x), ys, reduction="sum"),
    "vector": lambda: each().sum(),
    "matrix": lambda: (model(x) - ys).square().sum(),
    "of means over the outputs": lambda: (model(x) - ys).square().mean(1).sum(),
    "two sums": lambda: cross("sum") + each().sum(),
    "with a constant": lambda: cross("sum") - 1.0,
}
UNKNOWN = {
    "a sum over M": lambda: each().sum() / M,
    "a mean times M": lambda: each().mean() * M,
    "batch mean": lambda: F.kl_div(model(x).log_softmax(1), ys + 0.25, reduction="batchmean"),
    "a scaled mean": lambda: cross() * 65536.0,
    "a mean by example": lambda: sum(F.mse_loss(model(x)[i], ys[i]) for i in range(M)),
    "a mean of one example only": lambda: F.mse_loss(model(x)[0], ys[0]),
    "a sum of columns' means": lambda: (model(x)[:, :3] - ys[:, :3]).square().mean(0).repeat(2).sum(),
    "a mean of columns' sums": lambda: (model(x) - ys).square().sum(0).repeat(3).mean(),
    "stacked losses": lambda: torch.stack([cross("sum")] * M).mean(),
    "stacked products": lambda: torch.stack([each() @ torch.ones(M)] * M).mean(),
    "joined losses": lambda: torch.cat([cross("sum")[None]] * M).mean(),
    "a sum and a mean": lambda: cross() + each().sum(),
    "cross entropy with smoothing": lambda: cross(label_smoothing=0.1),
    "two means": lambda: cross() + each().mean(),
    "a sum, with a penalty": lambda: cross("sum") + 0.1 * model.weight.square().sum(),
    "a difference": lambda: cross("sum") - each().sum(),
    "a weighted sum": lambda: (each() * torch.full((M,), 1 / M)).sum() * 1.0,
    "a logarithm": lambda: each().sum().log(),
    "a product": lambda: cross() * cross(),
    "a negative mean": lambda: each().mean() * -1.0,
    "a matrix product": lambda: each() @ torch.full((M,), 1 / M),
}


@pytest.mark.parametrize("name", MEANS)
def test_means(name):
    assert reduction_of(MEANS[name](), M) == "mean"


@pytest.mark.parametrize("name", SUMS)
def test_sums(name):
    assert reduction_of(SUMS[name](), M) == "sum"


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown(name):
    assert reduction_of(UNKNOWN[name](), M) is None


@pytest.mark.parametrize("size", [None, 0, 1])
def test_one_example_tells_nothing(size):
    assert reduction_of(cross(), size) is None


def test_another_number_of_examples_tells_nothing():
    assert reduction_of(each().mean(), 5) is None


def test_a_loss_without_graph_tells_nothing():
    assert reduction_of(torch.tensor(1.0), M) is None


def test_a_large_graph_is_not_searched():
    y = model(x)
    for _ in range(1500):
        y = y + 1.0
    assert reduction_of(y.sum(1).sum(), M) is None


def test_outputs_as_many_as_examples():
    """The mean over examples, summed over as many outputs, must not pass for a sum over examples."""
    square = nn.Linear(3, M)
    assert reduction_of(square(x).square().mean(0).sum(), M) is None
