"""How a loss reduces the examples' losses: right where it is told, and never told where it may be wrong."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import bayesadam as ba
from bayesadam.curvature import reduction_of
from bayesadam.curvature.reduction import ignored_labels

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
    "squared error": lambda: F.mse_loss(model(x), ys),
    "logits": lambda: F.binary_cross_entropy_with_logits(model(x), ys),
    "vector": lambda: each().mean(),
    "matrix": lambda: (model(x) - ys).square().mean(),
    "micro-batch": lambda: each().mean() / 3,
    "weighted": lambda: 0.5 * cross(),
    "wider": lambda: cross().double(),
    "gaussian": lambda: F.gaussian_nll_loss(model(x), ys, torch.ones_like(ys)),
}
SUMS = {
    "cross entropy": lambda: cross("sum"),
    "squared error": lambda: F.mse_loss(model(x), ys, reduction="sum"),
    "vector": lambda: each().sum(),
    "matrix": lambda: (model(x) - ys).square().sum(),
    "of means over the outputs": lambda: (model(x) - ys).square().mean(1).sum(),
    "two sums": lambda: cross("sum") + each().sum(),
}
UNKNOWN = {
    "a sum over M": lambda: each().sum() / M,
    "a mean times M": lambda: each().mean() * M,
    "batch mean": lambda: F.kl_div(model(x).log_softmax(1), ys + 0.25, reduction="batchmean"),
    "a mean by example": lambda: sum(F.mse_loss(model(x)[i], ys[i]) for i in range(M)),
    "a mean of one example only": lambda: F.mse_loss(model(x)[0], ys[0]),
    "a sum of columns' means": lambda: (model(x)[:, :3] - ys[:, :3]).square().mean(0).repeat(2).sum(),
    "a mean of columns' sums": lambda: (model(x) - ys).square().sum(0).repeat(3).mean(),
    "stacked losses": lambda: torch.stack([cross("sum")] * M).mean(),
    "a sum and a mean": lambda: cross() + each().sum(),
    "cross entropy with smoothing": lambda: cross(label_smoothing=0.1),
    "two means": lambda: cross() + each().mean(),
    "a weighted sum": lambda: (each() * torch.full((M,), 1 / M)).sum() * 1.0,
    "a logarithm": lambda: each().sum().log(),
}


@pytest.mark.parametrize(
    ("loss", "reduction"),
    [
        *((loss, "mean") for loss in MEANS.values()),
        *((loss, "sum") for loss in SUMS.values()),
        *((loss, None) for loss in UNKNOWN.values()),
    ],
    ids=[*(f"mean: {name}" for name in MEANS), *(f"sum: {name}" for name in SUMS), *UNKNOWN],
)
def test_reductions(loss, reduction):
    assert reduction_of(loss(), M) == reduction


@pytest.mark.parametrize("size", [None, 0, 1, 5])
def test_another_number_of_examples_tells_nothing(size):
    assert reduction_of(each().mean(), size) is None
    assert reduction_of(torch.tensor(1.0), size) is None


def test_a_large_graph_is_not_searched():
    y = model(x)
    for _ in range(1500):
        y = y + 1.0
    assert reduction_of(y.sum(1).sum(), M) is None


def test_outputs_as_many_as_examples():
    """The mean over examples, summed over as many outputs, must not pass for a sum over examples."""
    square = nn.Linear(3, M)
    assert reduction_of(square(x).square().mean(0).sum(), M) is None


class TestIgnoredLabels:
    """A mean over the labels that count: the squares have the factor M / m."""

    LABELS = torch.tensor([0, -100, 1, -100, 2, 3])

    @pytest.mark.parametrize("smoothing", [0.0, 0.1])
    def test_are_warned_of_if_the_loss_is_seen(self, smoothing):
        def squares(rows, labels):
            found = ba.PerExampleSquares(model)
            found.start()
            loss = F.cross_entropy(model(rows), labels, label_smoothing=smoothing)
            found.backward(0.5 * loss)
            found.stop()
            return found.mean_squares(model.weight).clone()

        counts = self.LABELS >= 0
        right = squares(x[counts], self.LABELS[counts])
        with pytest.warns(UserWarning, match="^2 of 6 examples have a label that the mean of the loss leaves out, but"):
            found = squares(x, self.LABELS)
        torch.testing.assert_close(found, 6 / 4 * right)

    def test_nothing_is_said_where_it_is_not_so(self):
        ones = torch.full((M, 2), -100)
        ones[:, 0] = 0
        for loss, size in (
            (cross(), M),
            (F.cross_entropy(model(x), self.LABELS, reduction="sum"), M),
            (F.cross_entropy(model(x).view(M, 2, 2).movedim(2, 1), ones), M),
            (F.mse_loss(model(x), ys), M),
            (F.cross_entropy(model(x), self.LABELS), None),
        ):
            assert ignored_labels(loss, size) == 0
