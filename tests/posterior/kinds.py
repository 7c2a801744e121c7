"""A posterior of every kind over the same weights, and what they are as dense matrices in float64."""

import math

import torch

import bayesadam as ba
from bayesadam.posterior import BernoulliPosterior, Mixture, PartialGaussian

BOUND = 4.5
F64 = {"dtype": torch.float64}
EXACT = {"rtol": 1e-10, "atol": 1e-10}
SHAPES = {"z.weight": (5, 4), "a": (), "empty": (0, 2), "m/bias": (3,)}  # not in alphabetic order
SIZE = 24
POINTS = [0, 7, 20, 23]  # of 24 weights; 20 is the whole tensor "a"


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), **F64).to(dtype)


def flat(tensors, *leading):
    """All tensors side by side in float64, ``(*leading, D)``."""
    return torch.cat([t.double().reshape(*leading, math.prod(t.shape[len(leading) :])) for t in tensors.values()], -1)


def close(a, b, **tolerances):
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=a.dtype), **(tolerances or EXACT))


def assert_same(a, b):
    """Two dicts of tensors are equal in names, their order, dtypes and every bit."""
    assert list(a) == list(b)
    for name, value in a.items():
        assert (value.dtype, value.shape) == (b[name].dtype, b[name].shape)
        assert value.contiguous().view(-1).view(torch.uint8).equal(b[name].contiguous().view(-1).view(torch.uint8))


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def around(model, variance=0.01):
    """A mean-field Gaussian whose means are the weights of a model."""
    mean = weights(model)
    return ba.DiagonalGaussian(mean, {name: torch.full_like(p, variance) for name, p in mean.items()})


def means(shapes=SHAPES, seed=0, dtype=torch.float64):
    return {name: draw(*shape, seed=seed + i, dtype=dtype) for i, (name, shape) in enumerate(shapes.items())}


def positive(mean, seed):
    return {n: draw(*m.shape, seed=seed + i).exp().to(m.dtype) for i, (n, m) in enumerate(mean.items())}


def correlated(size, seed=0):
    """A covariance with correlations of all sizes and standard deviations over two orders of magnitude."""
    root = draw(size, size, seed=seed) + 0.3 * torch.eye(size, **F64)
    spread = draw(size, seed=seed + 1000).exp()
    return spread * (root @ root.T / size) * spread[:, None]


def without(covariance, points):
    covariance = covariance.clone()
    covariance[list(points)], covariance[:, list(points)] = 0.0, 0.0
    return covariance


def zeroed(tensors, points, *leading):
    """Zeros at these numbers of the weights."""
    left = torch.ones(sum(math.prod(t.shape[len(leading) :]) for t in tensors.values()))
    left[list(points)] = 0.0
    parts = left.split([math.prod(t.shape[len(leading) :]) for t in tensors.values()])
    return {
        n: t * part.view(t.shape[len(leading) :]).to(t.dtype)
        for (n, t), part in zip(tensors.items(), parts, strict=True)
    }


def diagonal(mean=None, seed=0, points=(), **hyperparameters):
    mean = means(seed=seed) if mean is None else mean
    variance = zeroed(positive(mean, seed + 10), points)
    return ba.DiagonalGaussian(mean, variance, hyperparameters=hyperparameters)


def dense(mean=None, seed=0, points=(), **hyperparameters):
    mean = means(seed=seed) if mean is None else mean
    covariance = without(correlated(sum(m.numel() for m in mean.values()), seed), points)
    return ba.DenseGaussian(mean, covariance, hyperparameters=hyperparameters)


def low_rank(mean=None, seed=0, points=(), rank=3, spread=1.0, **hyperparameters):
    mean = means(seed=seed) if mean is None else mean
    variance = {name: spread * value for name, value in positive(mean, seed + 10).items()}
    factors = {n: draw(rank, *m.shape, seed=seed + 20 + i).to(m.dtype) for i, (n, m) in enumerate(mean.items())}
    return ba.LowRankGaussian(
        mean, zeroed(variance, points), zeroed(factors, points, rank), hyperparameters=hyperparameters
    )


def orthogonal(size, seed=0):
    return torch.linalg.qr(draw(size, size, seed=seed)).Q.contiguous()


def kronecker(mean=None, seed=0, points=(), **hyperparameters):
    """With bases of both sides, of one, and of none; its point masses are a whole tensor."""
    mean = means(seed=seed) if mean is None else mean
    values, left, right = positive(mean, seed + 10), {}, {}
    for name, value in mean.items():
        if value.ndim and value.numel():
            left[name] = orthogonal(len(value), seed + 3).to(value.dtype)
        if value.ndim == 2 and value.numel():
            right[name] = orthogonal(value.shape[1], seed + 4).to(value.dtype)
    if points:
        values["m/bias"] = torch.zeros_like(values["m/bias"])
    return ba.KroneckerGaussian(mean, values, left, right, hyperparameters=hyperparameters)


def partial(kind):
    """Every other tensor is fixed."""

    def make(mean=None, seed=0, points=(), **hyperparameters):
        mean = means(seed=seed) if mean is None else mean
        names = list(mean)[::2]
        random = kind({name: mean[name] for name in names}, seed, points[:2] if kind is not kronecker else ())
        random.hyperparameters.update(hyperparameters)
        return PartialGaussian(random, {n: m for n, m in mean.items() if n not in names}, order=list(mean))

    return make


def bernoulli(mean=None, seed=0, points=(), **hyperparameters):
    """Weights that are ``scale`` or 0."""
    scale = means(seed=seed) if mean is None else mean
    p = {n: draw(*s.shape, seed=seed + 30 + i).sigmoid().to(s.dtype) for i, (n, s) in enumerate(scale.items())}
    return BernoulliPosterior(zeroed(p, points), scale, hyperparameters=hyperparameters)


def mixture(mean=None, seed=0, points=(), **hyperparameters):
    inner = Mixture([diagonal(mean, seed + 100, points), low_rank(mean, seed + 300, points)])
    return Mixture(
        [diagonal(mean, seed, points), dense(mean, seed + 200, points), inner], hyperparameters=hyperparameters
    )


GAUSSIANS = {
    "diagonal": diagonal,
    "dense": dense,
    "low rank": low_rank,
    "kronecker": kronecker,
    "partial, dense": partial(dense),
    "partial, diagonal": partial(diagonal),
    "partial, kronecker": partial(kronecker),
}
KINDS = {**GAUSSIANS, "mixture": mixture, "bernoulli": bernoulli}


def kronecker_block(q, name):
    """The covariance of one tensor's weights, by the definition."""
    mean = q.mean[name]
    rows = mean.shape[0] if mean.ndim else 1
    left = q.left.get(name, torch.eye(rows)).double().contiguous()
    right = q.right.get(name, torch.eye(mean.numel() // max(1, rows))).double().contiguous()
    basis = torch.kron(left, right)
    return basis @ q.eigenvalues[name].double().flatten().diag() @ basis.T


def covariance(q):
    """Of all weights of a Gaussian of any kind."""
    if isinstance(q, ba.DenseGaussian):
        return q.covariance
    if isinstance(q, ba.LowRankGaussian):
        factors = flat(q.factors, q.rank)
        return flat(q.diagonal).diag() + factors.T @ factors
    if isinstance(q, ba.KroneckerGaussian):
        return torch.block_diag(*(kronecker_block(q, name) for name in q.mean))
    if isinstance(q, PartialGaussian):
        rows = torch.cat([flat({n: m}) * 0 + (n in q.random.mean) for n, m in q.mean.items()]).nonzero()[:, 0]
        whole = torch.zeros(q.num_weights, q.num_weights, **F64)
        whole[rows[:, None], rows] = covariance(q.random)
        return whole
    return flat(q.variance).diag()
