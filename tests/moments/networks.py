"""Networks, weights and data that the tests of moments share, and how a graph is run."""

import torch
from torch import nn

from bayesadam.moments import Graph, Moments
from modules import module_of
from moments.references import close, draw, spread


def make(function, **parts):
    """A module with this forward, in float64."""
    return module_of(function, **parts).double()


def linear(*sizes, seed=0):
    torch.manual_seed(seed)
    return nn.Linear(*sizes).double()


def mlp(outputs=2, dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, outputs)).to(dtype)


def data(outputs=2, count=20):
    x = draw(count, 4, seed=1)
    return x, torch.stack([x[:, 0].sin() + x[:, 1], x[:, 2] * x[:, 3], x[:, 3]], 1)[:, :outputs]


def random_weights(model, seed=0):
    return {
        name: Moments(p.detach().clone(), 0.1 * spread(*p.shape, seed=seed + i, dtype=p.dtype))
        for i, (name, p) in enumerate(model.named_parameters())
    }


def run(model, *args, weights=None, covariance=False, **kwargs):
    weights = random_weights(model) if weights is None else weights
    return Graph(model).run(model, weights, args, kwargs, covariance=covariance)


def layers(moments):
    """Of the two layers of ``mlp``: ``(weight mean, weight variance, bias mean, bias variance)`` of each."""
    return [[part for name in (f"{n}.weight", f"{n}.bias") for part in moments(name)] for n in (0, 2)]


def same(ours, theirs, **tolerances):
    """``theirs``: Moments, or a pair."""
    mean, variance = (theirs.mean, theirs.variance) if isinstance(theirs, Moments) else theirs
    close(ours.mean, mean, **tolerances)
    assert (ours.variance is None) == (variance is None)
    if variance is not None:
        assert ours.variance.shape == ours.mean.shape
        close(ours.variance, variance, **tolerances)
