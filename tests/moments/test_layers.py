"""Max pooling, embeddings, and what is named in place of layers without a rule."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate
from scipy.stats import norm
from torch import nn
from torch.nn import functional as F

import bayesadam as ba
from bayesadam.functional import moments as maps
from bayesadam.moments import Graph, Moments
from bayesadam.moments.replacements import _REPLACEMENTS, replacement
from moments.references import close, draw, spread


def by_integrals(first, second):
    """Mean and variance of the larger of two independent Gaussians, each a mean and a standard deviation."""
    (m, s), (n, t) = first, second

    def density(x):
        return norm.pdf(x, m, s) * norm.cdf(x, n, t) + norm.pdf(x, n, t) * norm.cdf(x, m, s)

    ends = (min(m - 9 * s, n - 9 * t), max(m + 9 * s, n + 9 * t))
    options = {"points": sorted([m, n]), "limit": 500, "epsabs": 1e-13, "epsrel": 1e-12}
    mean = integrate.quad(lambda x: x * density(x), *ends, **options)[0]
    return mean, integrate.quad(lambda x: (x - mean) ** 2 * density(x), *ends, **options)[0]


def clark(m, v, n, w):
    """Equations (2) to (4) of Clark 1961, without a correlation, as they stand there."""
    a = math.sqrt(v + w)
    alpha = (m - n) / a
    first = m * norm.cdf(alpha) + n * norm.cdf(-alpha) + a * norm.pdf(alpha)
    second = (m**2 + v) * norm.cdf(alpha) + (n**2 + w) * norm.cdf(-alpha) + (m + n) * a * norm.pdf(alpha)
    return first, second - first**2


class TestMaximum:
    @pytest.mark.parametrize("pair", [((0, 1), (0, 1)), ((1, 2), (0.5, 0.3)), ((-3, 0.5), (1, 2)), ((2, 1), (-1, 1))])
    def test_of_two_is_exact(self, pair):
        (m, s), (n, t) = pair
        args = [torch.tensor(float(value), dtype=torch.float64) for value in (m, s**2, n, t**2)]
        for ours in (maps.maximum(*args), maps.maximum(*args[2:], *args[:2])):
            np.testing.assert_allclose([float(part) for part in ours], clark(m, s**2, n, t**2), rtol=1e-11)
            np.testing.assert_allclose([float(part) for part in ours], by_integrals(*pair), rtol=1e-8)

    def test_single_precision_keeps_small_variances(self):
        """The variance of Clark's equations is a difference of second moments; here none of them is formed."""
        args = (1000.0, 1e-4, 1000.005, 4e-4)
        _, variance = maps.maximum(*(torch.tensor(value) for value in args))
        exact = clark(0.0, 1e-4, 0.005, 4e-4)[1]
        assert abs(float(variance) / exact - 1.0) < 0.05  # the means themselves are rounded to 6e-5
        assert (float(clark(*map(np.float32, args))[1]) / exact - 1.0) ** 2 > 1.0

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_without_variance_and_far_apart(self, dtype):
        """The larger one as it is, with gradients 1 and 0."""
        m, n = (torch.tensor(values, dtype=dtype, requires_grad=True) for values in ((3.0, -1.0, 2.0), (1.0, 5.0, 2.0)))
        for tiny in (0.0, 1e-40, 1e-30):
            v = torch.full((3,), tiny, dtype=dtype, requires_grad=True)
            mean, variance = maps.maximum(m, v, n, v.detach())
            close(mean[:2], torch.tensor([3.0, 5.0], dtype=dtype))
            assert (variance <= tiny * 1.0001).all()
            grads = torch.autograd.grad(mean.sum() + variance.sum(), [m, n, v])
            assert all(grad.isfinite().all() for grad in grads)
            close(grads[0][:2], torch.tensor([1.0, 0.0], dtype=dtype))
            close(grads[1][:2], torch.tensor([0.0, 1.0], dtype=dtype))

    def test_gradients(self):
        args = [draw(6, seed=1), spread(6, seed=2) + 0.1, draw(6, seed=3), spread(6, seed=4) + 0.1]
        assert torch.autograd.gradcheck(maps.maximum, [value.requires_grad_() for value in args])


def loop(mean, variance, kernel, stride, padding, dilation, ceil_mode):
    """Windows of a row, one after another, two values at a time by Clark's equations."""
    size, reach, found = len(mean), dilation * (kernel - 1) + 1, []
    start = -padding
    beyond = stride - 1 if ceil_mode else 0  # a window may end so much later, if it begins within the row
    while start + reach <= size + padding + beyond and start < size:
        slots = [(mean[i], variance[i]) if 0 <= i < size else None for i in range(start, start + reach, dilation)]
        while len(slots) > 1:
            pairs = []
            for a, b in zip(slots[::2], slots[1::2], strict=False):
                pairs.append(clark(*a, *b) if a and b else a or b)
            slots = pairs + ([slots[-1]] if len(slots) % 2 else [])
        found.append(slots[0])
        start += stride
    return torch.tensor(found, dtype=torch.float64).T


class TestMaxPooling:
    @pytest.mark.parametrize("ceil_mode", [False, True])
    @pytest.mark.parametrize(
        ("kernel", "stride", "padding", "dilation"),
        [(2, 2, 0, 1), (3, 2, 1, 1), (4, 3, 2, 1), (3, 1, 1, 2), (2, 5, 0, 3)],
    )
    def test_of_a_row_is_a_loop(self, kernel, stride, padding, dilation, ceil_mode):
        model = nn.MaxPool1d(kernel, stride, padding, dilation, ceil_mode=ceil_mode)
        mean, variance = draw(1, 1, 11, seed=kernel), spread(1, 1, 11, seed=stride) + 0.01
        ours = Graph(nn.Sequential(model)).run(nn.Sequential(model), {}, (Moments(mean, variance),), {})
        assert ours.mean.shape == model(mean).shape
        expected = loop(
            mean.flatten().tolist(), variance.flatten().tolist(), kernel, stride, padding, dilation, ceil_mode
        )
        close(ours.mean.flatten(), expected[0], rtol=1e-9, atol=1e-9)
        close(ours.variance.flatten(), expected[1], rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("axes", [1, 2, 3])
    def test_a_small_variance_is_the_plain_maximum(self, axes):
        """Shapes and places of the windows, in all dimensions, by a layer and by the function."""
        options = {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}
        layer, function = getattr(nn, f"MaxPool{axes}d")(**options), getattr(F, f"max_pool{axes}d")

        class Functional(nn.Module):
            def forward(self, x):
                return function(x, **options)

        x = draw(2, 3, *(6, 7, 8)[:axes])
        for model in (nn.Sequential(layer), Functional()):
            graph = Graph(model)
            close(graph.run(model, {}, (x,), {}).mean, layer(x), rtol=0.0, atol=0.0)
            assert graph.run(model, {}, (x,), {}).variance is None
            ours = graph.run(model, {}, (Moments(x, torch.full_like(x, 1e-16)),), {})
            close(ours.mean, layer(x), rtol=0.0, atol=1e-6)

    @pytest.mark.parametrize("name", ["layers", "in place", "functions", "method"])
    def test_is_before_relu(self, name):
        """The same network, whose moments are closer to those of samples than in the order in which it is written."""

        class Functional(nn.Module):
            def forward(self, x):
                return F.max_pool2d(x.relu() if name == "method" else F.relu(x), 2) + 1.0

        x = Moments(draw(1, 1, 6, 6), spread(1, 1, 6, 6, seed=1) + 0.1)
        layers = nn.Sequential(nn.ReLU(inplace=name == "in place"), nn.MaxPool2d(2))
        model, shift = (layers, 0.0) if name in ("layers", "in place") else (Functional(), 1.0)
        ours = Graph(model).run(model, {}, (x,), {})
        first = maps.relu(*maps.max_pool(x.mean, x.variance, (2, 2)))
        close(ours.mean, first[0] + shift)
        close(ours.variance, first[1])
        noise = torch.randn(40_000, *x.mean.shape[1:], generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        samples = layers(x.mean + x.variance.sqrt() * noise)
        as_written = maps.max_pool(*maps.relu(x.mean, x.variance), (2, 2))
        for place, true in enumerate((samples.mean(0), samples.var(0))):
            error, other = ((found[place] - true).abs().mean() for found in (first, as_written))
            assert error < 0.7 * other

    def test_relu_stays_where_something_else_uses_it(self):
        class Twice(nn.Module):
            def forward(self, x):
                x = F.relu(x)
                return torch.cat([F.max_pool1d(x, 2), x], -1)

        x = Moments(draw(1, 1, 6), spread(1, 1, 6, seed=1) + 0.1)
        ours, model = Graph(Twice()).run(Twice(), {}, (x,), {}), maps.relu(x.mean, x.variance)
        close(ours.mean, torch.cat([maps.max_pool(*model, (2,))[0], model[0]], -1))


class TestEmbedding:
    @pytest.mark.parametrize("padding", [None, 3])
    def test_means_and_variances_of_rows(self, padding):
        model = nn.Sequential(nn.Embedding(5, 3, padding_idx=padding), nn.Flatten(), nn.Linear(6, 2)).double()
        weights = {
            name: Moments(p.detach(), spread(*p.shape, seed=i)) for i, (name, p) in enumerate(model.named_parameters())
        }
        tokens = torch.tensor([[0, 4], [2, 1], [3, 3]])
        ours = Graph(model).run(model, weights, (tokens,), {})
        for row, own in enumerate(tokens.tolist()):
            table = weights["0.weight"]
            parts = [(table.mean[i], (i != padding) * table.variance[i]) for i in own]
            mean, variance = (torch.cat([part[k] for part in parts]) for k in (0, 1))
            w, b = weights["2.weight"], weights["2.bias"]
            close(ours.mean[row], w.mean @ mean + b.mean)
            second = w.variance @ (mean**2 + variance) + w.mean**2 @ variance + b.variance
            close(ours.variance[row], second)


def test_replacements_exist():
    """Every name that a message gives is there, and every layer that it gives in place of another has a rule."""
    from bayesadam.moments.rules import MODULES

    assert replacement(nn.LSTM).startswith("bayesadam.variational(model)")
    assert replacement(nn.Dropout2d) == "nn.Dropout"
    for types, instead in _REPLACEMENTS.items():
        assert not set(types) & set(MODULES)
        for word in instead.replace(",", " ").replace(":", " ").split():
            if word.startswith("nn."):
                assert getattr(nn, word.removeprefix("nn.")) in MODULES
    assert callable(ba.variational)
    assert callable(ba.Categorical)


def test_batch_norm_after_training_mode():
    """What its message says: a network in training mode with the layer itself in eval mode."""
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    net = ba.fawn(model).train()
    with pytest.raises(RuntimeError, match=r"call \.eval\(\) of this layer after train\(\) of the network"):
        net(torch.zeros(4, 2))
    model[1].eval()
    assert net(torch.zeros(4, 2)).variance.gt(0).all()
