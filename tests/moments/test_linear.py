"""Moments through linear maps: against slow loops, dense maps and samples; networks side by side; covariances."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats
from torch.autograd import gradcheck
from torch.func import vmap
from torch.nn import functional

from bayesadam.functional import moments as maps
from moments.references import F64, close, draw, linear_loop, log_prob_by_recursion, spread

#: Which of inputs, weights, bias and bias have a variance, a variance, a mean and a variance.
KINDS = [kind for kind in itertools.product((False, True), repeat=4) if kind[2] or not kind[3]]


def layer(kind, lead=(5,), stack=(), seed=0):
    """Arguments of ``linear``."""
    some = [
        draw(*stack, *lead, 4, seed=seed),
        spread(*stack, *lead, 4, seed=seed + 1) if kind[0] else None,
        draw(*stack, 3, 4, seed=seed + 2),
        spread(*stack, 3, 4, seed=seed + 3) if kind[1] else None,
        draw(*stack, 3, seed=seed + 4) if kind[2] else None,
        spread(*stack, 3, seed=seed + 5) if kind[3] else None,
    ]
    return some


class TestLinear:
    @pytest.mark.parametrize("lead", [(), (2, 5), (1, 2, 0)])
    @pytest.mark.parametrize("kind", KINDS)
    def test_against_loops(self, kind, lead):
        arguments = layer(kind, lead)
        mean, variance = linear_loop(*arguments)
        ours = maps.linear(*arguments)
        close(ours[0], mean)
        if any((kind[0], kind[1], kind[3])):
            close(ours[1], variance)
        else:
            assert ours[1] is None
            assert torch.equal(ours[0], functional.linear(arguments[0], arguments[2], arguments[4]))

    @pytest.mark.parametrize("stack", [(), (2,)])
    @pytest.mark.parametrize("kind", KINDS)
    def test_gradients(self, kind, stack):
        arguments = [a if a is None else a.requires_grad_() for a in layer(kind, (2,), stack)]

        def outputs(*given):
            return tuple(out for out in maps.linear(*given) if out is not None)

        assert gradcheck(outputs, arguments, eps=1e-6, atol=1e-8, rtol=1e-7)

    def test_arguments_are_left_alone(self):
        arguments = layer((True,) * 4)
        before = [a.clone() for a in arguments]
        leaves = [a.requires_grad_() for a in arguments]
        sum(out.sum() for out in maps.linear(*leaves)).backward()
        assert all(torch.equal(a, b) for a, b in zip(leaves, before, strict=True))

    @pytest.mark.parametrize("mapped", [(2, 3, 4, 5), (0, 1), (0, 1, 2, 3, 4, 5)])
    def test_vmap(self, mapped):
        one, many = layer((True,) * 4), layer((True,) * 4, stack=(3,), seed=40)
        given = [(m if i in mapped else o).requires_grad_() for i, (o, m) in enumerate(zip(one, many, strict=True))]
        axes = tuple(0 if i in mapped else None for i in range(6))
        mean, variance = vmap(maps.linear, axes)(*given)
        slopes = torch.autograd.grad((mean.sin() + variance.square()).sum(), given)
        alone = [maps.linear(*(g[k] if i in mapped else g for i, g in enumerate(given))) for k in range(3)]
        close(mean, torch.stack([m for m, _ in alone]))
        close(variance, torch.stack([v for _, v in alone]))
        truth = torch.autograd.grad(sum((m.sin() + v.square()).sum() for m, v in alone), given)
        close(slopes, truth)


#: Function, input shape, weight shape, options.
CONVOLUTIONS = {
    "plain": (functional.conv2d, (2, 5, 6), (3, 2, 3, 2), {}),
    "stride": (functional.conv2d, (2, 7, 6), (3, 2, 3, 3), {"stride": (2, 3)}),
    "padding": (functional.conv2d, (2, 4, 4), (3, 2, 3, 3), {"padding": (1, 2)}),
    "dilation": (functional.conv2d, (2, 6, 5), (2, 2, 2, 2), {"dilation": (3, 2), "padding": 1}),
    "groups": (functional.conv2d, (4, 4, 4), (6, 2, 2, 2), {"groups": 2, "stride": 2}),
    "same": (functional.conv2d, (1, 4, 5), (2, 1, 3, 3), {"padding": "same"}),
    "1d": (functional.conv1d, (2, 9), (3, 2, 4), {"stride": 2, "padding": 3}),
    "3d": (functional.conv3d, (2, 3, 4, 3), (2, 2, 2, 3, 2), {"padding": (0, 1, 0)}),
}


def dense(call, shape, weight, options):
    """The matrix ``(outputs, inputs)`` of a convolution without bias."""
    size = math.prod(shape)
    basis = torch.eye(size, **F64).view(size, *shape)
    return call(basis, weight, None, **options).flatten(1).T


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_is_its_dense_map(name, kind):
    call, shape, kernel, options = CONVOLUTIONS[name]
    x, u = draw(2, *shape, seed=1), spread(2, *shape, seed=2) if kind[0] else None
    w, v = draw(*kernel, seed=3), spread(*kernel, seed=4) if kind[1] else None
    b, c = draw(kernel[0], seed=5) if kind[2] else None, spread(kernel[0], seed=6) if kind[3] else None
    out = call(x, w, b, **options)
    places = math.prod(out.shape[2:])

    matrix, spreads = dense(call, shape, w, options), None if v is None else dense(call, shape, v, options)
    flat = [None if z is None else z.flatten(1) for z in (x, u)]
    wide = [None if z is None else z.repeat_interleave(places) for z in (b, c)]
    mean = flat[0] @ matrix.T + (0.0 if b is None else wide[0])
    variance = torch.zeros_like(mean) if c is None else wide[1].expand(mean.shape)
    if v is not None:
        variance = variance + (flat[0].square() + (0.0 if u is None else flat[1])) @ spreads.T
    if u is not None:
        variance = variance + flat[1] @ matrix.square().T

    ours = maps.convolution(lambda *given: call(*given, **options), x, u, w, v, b, c)
    assert torch.equal(ours[0], out)
    close(ours[0].flatten(1), mean)
    if any((kind[0], kind[1], kind[3])):
        close(ours[1].flatten(1), variance)
    else:
        assert ours[1] is None


def test_convolution_has_the_gradients_of_the_formula():
    x, u = draw(2, 2, 4, 4).requires_grad_(), spread(2, 2, 4, 4).requires_grad_()
    w, v = draw(3, 2, 2, 2).requires_grad_(), (spread(3, 2, 2, 2) + 0.1).requires_grad_()
    b, c = draw(3).requires_grad_(), (spread(3) + 0.1).requires_grad_()
    assert gradcheck(partial(maps.convolution, functional.conv2d), (x, u, w, v, b, c), eps=1e-6, atol=1e-7, rtol=1e-6)


def test_a_convolutions_variance_is_never_negative():
    """Fast algorithms subtract: where all is zero but one, rounding may leave less than nothing."""
    x = torch.zeros(1, 8, 32, 32)
    x[..., 5, 5] = 1e4

    def rounding(values, weight, bias):
        return functional.conv2d(values, weight, bias, padding=1) - 1e-3

    _, variance = maps.convolution(rounding, x, x.square(), torch.ones(4, 8, 3, 3), torch.ones(4, 8, 3, 3))
    assert variance.min() == 0.0


POOLS = {
    "plain": (functional.avg_pool2d, maps.avg_pool2d, (2, 2), {}),
    "overlap": (functional.avg_pool2d, maps.avg_pool2d, (3, 2), {"stride": (1, 2), "padding": (1, 1)}),
    "borders do not count": (
        functional.avg_pool2d,
        maps.avg_pool2d,
        (3, 3),
        {"stride": 2, "padding": (1, 0), "ceil_mode": True, "count_include_pad": False},
    ),
    "ceil": (functional.avg_pool2d, maps.avg_pool2d, (2, 4), {"stride": 3, "padding": (1, 2), "ceil_mode": True}),
    "divisor": (functional.avg_pool2d, maps.avg_pool2d, (3, 2), {"padding": 1, "divisor_override": 3}),
    "adaptive": (functional.adaptive_avg_pool2d, maps.adaptive_avg_pool2d, (1, 3), {}),
    "adaptive windows that overlap": (functional.adaptive_avg_pool2d, maps.adaptive_avg_pool2d, (4, 5), {}),
    "more than there is": (functional.adaptive_avg_pool2d, maps.adaptive_avg_pool2d, (9, None), {}),
}


@pytest.mark.parametrize("name", POOLS)
def test_an_average_pool_is_its_dense_map(name):
    call, ours, size, options = POOLS[name]
    x, u = draw(2, 3, 7, 6), spread(2, 3, 7, 6)
    matrix = call(torch.eye(126, **F64).view(126, 3, 7, 6), size, **options).flatten(1).T
    mean, variance = ours(x, u, size, **options)
    close(mean, call(x, size, **options))
    close(variance.flatten(1), u.flatten(1) @ matrix.square().T)
    close(ours(x[0], u[0], size, **options)[1], variance[0])
    certain = ours(x, None, size, **options)
    assert torch.equal(certain[0], mean)
    assert certain[1] is None


class TestCovariance:
    def test_against_loops_and_the_diagonal(self):
        x, u, w, v, b, c = layer((True,) * 4)
        variance = maps.linear(x, u, w, v, b, c)[1]
        ours = maps.output_covariance(u, w, variance)
        for n, j, k in itertools.product(range(5), range(3), range(3)):
            truth = sum(u[n, i] * w[j, i] * w[k, i] for i in range(4)) if j != k else variance[n, k]
            close(ours[n, j, k], truth)


class TestGaussianLogProb:
    def test_against_the_papers_recursion(self):
        loadings, diagonal, residual = draw(50, 7, seed=1), spread(7, seed=2) + 0.05, draw(4, 7, seed=3)
        covariance = torch.diag(diagonal) + sum(torch.outer(u, u) for u in loadings)
        ours = maps.gaussian_log_prob(residual, covariance.expand(4, 7, 7))
        theirs = torch.stack([log_prob_by_recursion(row, loadings, diagonal) for row in residual])
        close(ours, theirs, rtol=1e-10, atol=1e-10)
        scipy = stats.multivariate_normal(np.zeros(7), covariance.numpy()).logpdf(residual.numpy())
        close(ours, torch.from_numpy(scipy), rtol=1e-10, atol=1e-10)

    def test_gradients(self):
        root, residual = draw(2, 3, 3).requires_grad_(), draw(2, 3, seed=1).requires_grad_()
        noise = 0.5 * torch.eye(3, **F64)
        assert gradcheck(lambda r, a: maps.gaussian_log_prob(r, a @ a.mT + noise), (residual, root))

    def test_what_float32_does_not_bear(self):
        """Outputs that go together but for a millionth: the decomposition is in float64."""
        covariance = torch.ones(4, 4) + torch.diag(torch.full((4,), 1e-6))
        residual = torch.tensor([1.0, 1.0, 1.0, 1.0])
        ours = maps.gaussian_log_prob(residual, covariance)
        assert ours.dtype == torch.float32
        truth = torch.distributions.MultivariateNormal(torch.zeros(4, **F64), covariance.double())
        close(ours.double(), truth.log_prob(residual.double()), rtol=1e-6, atol=0.0)
