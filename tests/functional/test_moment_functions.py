"""Moments of functions of Gaussians, against integrals and samples that are computed without the library."""

import functools
import math

import hypothesis.strategies as st
import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from scipy.special import expit, ndtr
from torch.nn import functional

from bayesadam.functional.moments import expectations, logistic, noise, quadrature, rectifier, smooth

RATE = 2.0 * math.sqrt(2.0 / math.pi)


def leaky(slope):
    return functools.partial(rectifier.leaky_relu, negative_slope=slope), lambda x: np.where(x > 0, x, slope * x)


#: Map, function in NumPy, function in torch.
MAPS = {
    "relu": (rectifier.relu, lambda x: np.maximum(x, 0.0), torch.relu),
    "leaky": (*leaky(0.01), lambda x: functional.leaky_relu(x, 0.01)),
    "abs": (*leaky(-1.0), torch.abs),
    "steep": (*leaky(2.0), lambda x: functional.leaky_relu(x, 2.0)),
    "sigmoid": (logistic.sigmoid, expit, torch.sigmoid),
    "tanh": (logistic.tanh, np.tanh, torch.tanh),
    "gelu": (smooth.gelu, lambda x: x * ndtr(x), functional.gelu),
    "gelu_tanh": (
        functools.partial(smooth.gelu, approximate="tanh"),
        lambda x: x * expit(RATE * (x + 0.044715 * x**3)),
        functools.partial(functional.gelu, approximate="tanh"),
    ),
    "silu": (smooth.silu, lambda x: x * expit(x), functional.silu),
}
KINKED = ("relu", "leaky", "abs", "steep")
QUADRATURES = {
    "gauss_hermite": functools.partial(quadrature.gauss_hermite, torch.sin),
    "closed_sigmoid": functools.partial(logistic.sigmoid, approximation="closed_form"),
    "closed_tanh": functools.partial(logistic.tanh, approximation="closed_form"),
}
EVERY = {name: row[0] for name, row in MAPS.items()} | QUADRATURES
# Where it is compiled, the tail's probability is a polynomial.
RELUS = pytest.mark.parametrize(
    "function",
    [
        rectifier.relu,
        pytest.param(
            torch.compile(rectifier.relu, backend="aot_eager"),
            marks=pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # PyTorch's own
        ),
    ],
    ids=["eager", "compiled"],
)
SMALL = (0.0, 1e-45, 1e-38, 1e-30, 1e-12, 1e-8, 1e-4, 0.01, 0.99, 1.0, 1.01, 4.0, 100.0, 1e4, 1e6)
WIDE = (0.0, 1e-45, 1e-38, 1e-30, 1e-8, 1e-3, 1.0, 3.0, 5.5, 9.0, 13.5, 14.0, 30.0, 100.0, 1e4)


def integrate(function, mean, std):
    """Mean and variance by Gauss-Legendre quadrature of pieces, of which 0 is a border."""
    nodes, weights = np.polynomial.legendre.leggauss(32)
    edges = np.concatenate([np.linspace(-14.0, 14.0, 29), (np.linspace(-40.0, 40.0, 81) - mean) / std])
    edges = np.unique(edges[np.abs(edges) <= 14.0])
    half = 0.5 * np.diff(edges)[:, None]
    z = 0.5 * (edges[1:] + edges[:-1])[:, None] + half * nodes
    mass = half * weights * np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    gaps = function(mean + std * z) - function(np.float64(mean))
    first = (mass * gaps).sum()
    return function(np.float64(mean)) + first, (mass * (gaps - first) ** 2).sum()


def tensors(mean, variance, dtype=torch.float64):
    return torch.tensor(mean, dtype=dtype), torch.tensor(variance, dtype=dtype)


@functools.cache
def normals():
    return np.random.default_rng(0).standard_normal(300_000)


@functools.cache
def exact_relu(mean, variance):
    with mpmath.workdps(60):
        m, v = mpmath.mpf(mean), mpmath.mpf(variance)
        s = mpmath.sqrt(v)
        first = m * mpmath.ncdf(m / s) + s * mpmath.npdf(m / s)
        second = (m**2 + v) * mpmath.ncdf(m / s) + m * s * mpmath.npdf(m / s)
        above, slope = mpmath.ncdf(m / s), mpmath.npdf(m / s) / s
        row = (first, second - first**2, above, slope / 2, 2 * first * (1 - above), above - first * slope)
        return [float(value) for value in row]


@RELUS
@pytest.mark.parametrize(("dtype", "unit"), [(torch.float32, 1.0), (torch.float64, 2e-8)])
@pytest.mark.parametrize("variance", [1e-12, 1e-4, 1.0, 1e6])
def test_relu_and_its_gradients_have_all_digits(function, dtype, unit, variance):
    for low, high, tolerance in ((-13.0, -6.0, 8e-3), (-6.0, -4.0, 4e-4), (-4.0, -2.0, 1e-4), (-2.0, 30.0, 2e-5)):
        mean = torch.linspace(low, high, 40, dtype=torch.float64) * variance**0.5
        mean, spread = mean.to(dtype).requires_grad_(), torch.full((40,), variance, dtype=dtype, requires_grad=True)
        first, second = function(mean, spread)
        # A pass for each: a compiled function may free what its backward pass has used.
        slopes = [torch.autograd.grad(function(mean, spread)[i].sum(), (mean, spread)) for i in (0, 1)]
        ours = torch.stack([first, second, *slopes[0], *slopes[1]], 1).double()
        rows = [exact_relu(m, v) for m, v in zip(mean.tolist(), spread.tolist(), strict=True)]
        truth = torch.tensor(rows, dtype=torch.float64)
        # 1 - Phi(al) is taken from numbers of size 1, in dV/dmean
        floor = torch.tensor([0.0, 0.0, 0.0, 0.0, 1e-6 * unit * variance**0.5 * max(high, 0.1), 0.0])
        floor = floor + 1e-37
        bad = (ours - truth).abs() > tolerance * unit * truth.abs() + floor
        assert not bad.any(), (low, ours[bad], truth[bad])


@RELUS
def test_relu_where_the_difference_of_moments_fails(function):
    first, second = function(*tensors([30.0, 100.0, 1e4], [1e-4, 1e-4, 1e-4], torch.float32))
    torch.testing.assert_close(first, torch.tensor([30.0, 100.0, 1e4]), rtol=0, atol=0)
    torch.testing.assert_close(second, torch.full((3,), 1e-4), rtol=1e-6, atol=0)


@pytest.mark.parametrize("std", [1e-5, 0.05, 0.3, 0.9, 1.1, 2.5, 1000.0])
@pytest.mark.parametrize("name", MAPS)
def test_against_integrals(name, std):
    function, plain, _ = MAPS[name]
    mean = [-30.0, -5.0, -2.0, -0.3, 0.0, 0.02, 1.0, 3.0, 7.0, 40.0, -0.5 * std, 2.0 * std]
    truth = [integrate(plain, m, std) for m in mean]
    expected, spread = (torch.tensor([float(row[k]) for row in truth], dtype=torch.float64) for k in (0, 1))
    bounded = name in ("sigmoid", "tanh")
    first, second = function(*tensors(mean, [std**2] * len(mean)))
    torch.testing.assert_close(first, expected, rtol=1e-9, atol=3e-8 if bounded else 3e-9)
    torch.testing.assert_close(second, spread, rtol=1e-6, atol=3e-8 * min(std**2, 1.0) if bounded else 3e-8 * std**2)
    if std > 0.5:
        return
    inner = [i for i, m in enumerate(mean) if abs(m) <= 3.0]
    torch.testing.assert_close(second[inner], spread[inner], rtol=3e-8, atol=1e-20)
    single = function(*tensors(mean, [std**2] * len(mean), torch.float32))
    torch.testing.assert_close(single[1].double()[inner], spread[inner], rtol=3e-4, atol=1e-20)
    torch.testing.assert_close(single[0].double(), expected, rtol=3e-7, atol=1e-6)


@pytest.mark.parametrize("name", EVERY)
def test_extremes_in_float32(name):
    mean = torch.tensor([sign * m for m in WIDE for sign in (1.0, -1.0)]).repeat_interleave(len(SMALL))
    variance = torch.tensor(SMALL).repeat(2 * len(WIDE))
    for upstream in ((1.0, 0.0), (0.0, 1.0), (-2.0, 3.0)):
        mean, variance = mean.detach().requires_grad_(), variance.detach().requires_grad_()
        first, second = EVERY[name](mean, variance)
        assert first.isfinite().all()
        assert second.isfinite().all()
        assert (second >= 0).all()
        if name in ("relu", "abs"):
            assert (first >= 0).all()
        torch.autograd.backward((first, second), [torch.full_like(first, value) for value in upstream])
        assert mean.grad.isfinite().all()
        assert variance.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MAPS)
def test_no_variance_is_the_function_itself(name, dtype):
    function, _, torch_function = MAPS[name]
    mean = torch.cat([torch.linspace(-12, 12, 97), torch.tensor([-1e4, 1e4, 1e-30, -1e-42])]).to(dtype)
    first, second = function(mean, torch.zeros_like(mean))
    assert torch.equal(first, torch_function(mean))
    assert torch.equal(second, torch.zeros_like(mean))


@pytest.mark.parametrize("name", MAPS)
def test_gradients_without_variance_are_the_limits(name):
    function, _, torch_function = MAPS[name]
    mean = torch.tensor([-2.0, -0.7, 0.3, 1.1, 4.0], dtype=torch.float64, requires_grad=True)
    variance = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(torch_function(mean).sum(), mean, create_graph=True)
    curve = torch.zeros(5) if name in KINKED else torch.autograd.grad(slope.sum(), mean)[0]
    first, second = function(mean, variance)
    ours = [torch.autograd.grad(out.sum(), (mean, variance), retain_graph=True) for out in (first, second)]
    close = functools.partial(torch.testing.assert_close, rtol=1e-9, atol=1e-12, check_dtype=False)
    close(ours[0][0], slope)
    close(ours[0][1], 0.5 * curve)
    close(ours[1][0], torch.zeros(5))
    close(ours[1][1], slope.square())


@RELUS
def test_relu_at_the_kink_has_no_gradient(function):
    mean, variance = (torch.zeros(1, requires_grad=True) for _ in range(2))
    first, second = function(mean, variance)
    for output in (first, second):
        assert [g.item() for g in torch.autograd.grad(output, (mean, variance), retain_graph=True)] == [0.0, 0.0]


@pytest.mark.parametrize("name", EVERY)
def test_gradcheck(name):
    mean, variance = tensors([-3.0, -0.5, 0.1, 1.3, 2.0, 0.7, -4.0], [0.3, 0.02, 0.5, 0.9, 0.1, 3.0, 30.0])
    assert torch.autograd.gradcheck(EVERY[name], (mean.requires_grad_(), variance.requires_grad_()), atol=1e-7)


@pytest.mark.parametrize("dims", [(0, 0), (0, None)])
@pytest.mark.parametrize("name", EVERY)
def test_vmap_is_the_loop(name, dims):
    generator = torch.Generator().manual_seed(3)
    mean = torch.randn((3, 4) if dims[0] == 0 else (4,), generator=generator, dtype=torch.float64, requires_grad=True)
    variance = torch.rand((3, 4) if dims[1] == 0 else (4,), generator=generator, dtype=torch.float64)
    variance = (3.0 * variance).requires_grad_()
    weights = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)

    def gradients(outputs):
        total = sum((weight * output).sum() for weight, output in zip(weights, outputs, strict=True))
        return torch.autograd.grad(total, (mean, variance))

    mapped = torch.func.vmap(EVERY[name], in_dims=dims)(mean, variance)
    rows = [EVERY[name](mean[i] if dims[0] == 0 else mean, variance[i] if dims[1] == 0 else variance) for i in range(3)]
    looped = [torch.stack(part) for part in zip(*rows, strict=True)]
    ours, theirs = [*mapped, *gradients(mapped)], [*looped, *gradients(looped)]
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(EVERY)),
    shape=st.lists(st.integers(0, 3), max_size=3),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
)
def test_shapes_and_dtypes(name, shape, dtype):
    generator = torch.Generator().manual_seed(0)
    mean, variance = torch.randn(shape, generator=generator), torch.rand(shape, generator=generator)
    low = EVERY[name](mean.to(dtype), variance.to(dtype))
    wide = EVERY[name](mean.to(dtype).double(), variance.to(dtype).double())
    for ours, theirs in zip(low, wide, strict=True):
        assert ours.shape == mean.shape
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.double(), theirs, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("nodes", [2, 3, 9, 32])
def test_gauss_hermite_is_numpys(nodes):
    mean, variance = tensors([0.4, -2.0, 3.0], [0.3, 5.0, 1.0])
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    values = np.sin(mean.numpy()[:, None] + variance.sqrt().numpy()[:, None] * points)
    expected = values @ weights / weights.sum()
    spread = (values - expected[:, None]) ** 2 @ weights / weights.sum()
    first, second = quadrature.gauss_hermite(torch.sin, mean, variance, nodes)
    np.testing.assert_allclose(first, expected, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(second, spread, rtol=1e-13, atol=1e-14)


def test_gauss_hermite_keeps_small_variances_and_differentiates_what_the_function_uses():
    scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    mean, variance = tensors([1.0], [1e-10])
    first, second = quadrature.gauss_hermite(lambda x: scale * x, mean, variance)
    torch.testing.assert_close(second, 4.0 * variance, rtol=1e-5, atol=0)
    assert torch.autograd.grad(first.sum(), scale, retain_graph=True)[0].item() == pytest.approx(1.0)
    assert torch.autograd.grad(second.sum(), scale)[0].item() == pytest.approx(4e-10, rel=1e-5)


def test_the_published_logistic_forms():
    mean, variance = tensors([-2.0, 0.0, 0.7, 3.0], [0.01, 1.0, 4.0, 16.0])
    first, second = logistic.sigmoid(mean, variance, approximation="closed_form")
    slope, offset = 4 - 2 * 2**0.5, -math.log(2**0.5 - 1)
    for m, v, ours, spread in zip(*(t.tolist() for t in (mean, variance, first, second)), strict=True):
        one = expit(m / math.sqrt(1 + math.pi * v / 8))
        square = expit(slope * (m - offset) / math.sqrt(1 + math.pi * slope**2 * v / 8))
        assert ours == pytest.approx(one, rel=1e-12)
        assert spread == pytest.approx(square - one**2, rel=1e-12)
        assert abs(one - integrate(expit, m, math.sqrt(v))[0]) < 0.018
    first, second = logistic.tanh(mean, variance, approximation="closed_form")
    one, square = logistic.sigmoid(2 * mean, 4 * variance, approximation="closed_form")
    torch.testing.assert_close(first, 2 * one - 1)
    torch.testing.assert_close(second, 4 * square)


def test_noise_against_samples():
    draws = np.random.default_rng(1).standard_normal((2, 400_000))
    mean, variance = tensors(1.3, 0.5)
    x, e = 1.3 + math.sqrt(0.5) * draws[0], -0.4 + math.sqrt(0.2) * draws[1]
    keep = np.random.default_rng(2).random(400_000) >= 0.3
    cases = [
        (noise.add(mean, variance, -0.4, 0.2), x + e),
        (noise.multiply(mean, variance, torch.tensor(-0.4).double(), torch.tensor(0.2).double()), x * e),
        (noise.dropout(mean, variance, 0.3), x * keep / 0.7),
        (noise.dropout(mean, None, 0.3), 1.3 * keep / 0.7),
        (noise.add(mean, None, -0.4, 0.2), 1.3 + e),
        (noise.multiply(mean, None, -0.4, 0.2), 1.3 * e),
        (noise.multiply(mean, variance, -0.4, None), -0.4 * x),
    ]
    for (first, second), values in cases:
        spread, fourth = values.var(), np.mean((values - values.mean()) ** 4)
        assert abs(values.mean() - first.item()) <= 3.5 * math.sqrt(spread / len(values))
        assert abs(spread - second.item()) <= 3.5 * math.sqrt((fourth - spread**2) / len(values))


def test_noise_without_variance():
    mean = torch.tensor([1.0, -2.0])
    assert noise.add(mean, None, 1.0, None)[1] is None
    assert noise.multiply(mean, None, 2.0, None)[1] is None
    assert noise.dropout(mean, None, 0.0) == (mean, None)
    first, second = noise.dropout(mean, mean.square(), 1.0)
    assert not first.any()
    assert second is None


EXPECTATIONS = {
    "sigmoid": (logistic.expected_sigmoid, expit),
    "softplus": (logistic.expected_softplus, lambda x: np.logaddexp(0.0, x)),
    "log_sigmoid": (expectations.expected_log_sigmoid, lambda x: -np.logaddexp(0.0, -x)),
}


@pytest.mark.parametrize("name", EXPECTATIONS)
@pytest.mark.parametrize("std", [1e-4, 0.1, 0.9, 1.1, 3.0, 1000.0])
def test_expectations_against_integrals(name, std):
    function, plain = EXPECTATIONS[name]
    mean = [-100.0, -20.0, -3.0, 0.0, 0.5, 4.0, 30.0, 100.0]
    truth = torch.tensor([float(integrate(plain, m, std)[0]) for m in mean], dtype=torch.float64)
    torch.testing.assert_close(function(*tensors(mean, [std**2] * 8)), truth, rtol=1e-10, atol=6e-8)
    single = function(*tensors(mean, [std**2] * 8, torch.float32)).double()
    torch.testing.assert_close(single, truth, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", EXPECTATIONS)
def test_expectations_extremes_and_gradients(name):
    function = EXPECTATIONS[name][0]
    mean = torch.tensor([sign * m for m in WIDE for sign in (1.0, -1.0)]).repeat_interleave(len(SMALL))
    mean, variance = mean.requires_grad_(), torch.tensor(SMALL).repeat(2 * len(WIDE)).requires_grad_()
    output = function(mean, variance)
    gradients = torch.autograd.grad(output.sum(), (mean, variance))
    assert all(value.isfinite().all() for value in (output, *gradients))
    inner = tensors([-2.0, 0.0, 1.0, 3.0], [0.2, 3.0, 0.5, 20.0])
    assert torch.autograd.gradcheck(function, [value.requires_grad_() for value in inner])


def logits(classes, scale, dtype=torch.float64):
    generator = torch.Generator().manual_seed(classes)
    mean = 2.0 * max(1.0, scale) ** 0.5 * torch.randn(20, classes, generator=generator, dtype=torch.float64)
    variance = scale * torch.randn(20, classes, generator=generator, dtype=torch.float64).exp()
    return mean.to(dtype), variance.to(dtype)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e6])
@pytest.mark.parametrize("classes", [2, 7])
def test_expected_log_softmax_is_the_tightest_tilted_bound(classes, scale):
    mean, variance = logits(classes, scale)
    index = torch.arange(20) % classes
    ours = expectations.expected_log_softmax(mean, variance, index)
    chosen = mean[torch.arange(20), index]

    def bound(tilt):
        lifted = mean + (1 - 2 * tilt) * variance / 2
        return chosen - 0.5 * (tilt**2 * variance).sum(-1) - lifted.logsumexp(-1)

    # The best tilt by descent of the convex bound in its own metric, with steps as short as they must be
    tilt = torch.full_like(mean, 1.0 / classes)
    best = torch.maximum(bound(tilt), bound(torch.zeros_like(tilt)))
    for shrink in [1.0 / (1.0 + scale)] * 300 + [0.03] * 100:
        tilt = tilt + shrink * ((mean + (1 - 2 * tilt) * variance / 2).softmax(-1) - tilt)
        best = torch.maximum(best, bound(tilt))
    assert (ours >= best - 1e-9 * (1 + best.abs())).all()
    z = mean + variance.sqrt() * torch.from_numpy(normals()[: 20000 * classes].reshape(20000, 1, classes))
    draws = z.log_softmax(-1)[:, torch.arange(20), index]
    assert (ours <= draws.mean(0) + 4 * draws.std(0) / len(draws) ** 0.5 + 1e-9).all()
    single = expectations.expected_log_softmax(mean.float(), variance.float(), index)
    torch.testing.assert_close(single.double(), ours, rtol=1e-5, atol=1e-5 * max(1.0, scale))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_class_expectations_without_variance(dtype):
    mean = logits(5, 1.0, dtype)[0]
    index = torch.arange(20) % 5
    ours = expectations.expected_log_softmax(mean, torch.zeros_like(mean), index)
    assert torch.equal(ours, mean.log_softmax(-1)[torch.arange(20), index])
    close = expectations.log_expected_softmax(mean, torch.zeros_like(mean))
    torch.testing.assert_close(close, mean.log_softmax(-1), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("classes", "scale", "error"), [(2, 1.0, 0.015), (2, 50.0, 0.022), (4, 1.0, 0.08), (8, 0.1, 0.03)]
)
def test_log_expected_softmax_against_samples(classes, scale, error):
    mean, variance = logits(classes, scale)
    ours = expectations.log_expected_softmax(mean, variance)
    torch.testing.assert_close(ours.exp().sum(-1), torch.ones(20, dtype=torch.float64))
    z = mean + variance.sqrt() * torch.from_numpy(normals()[: 30000 * classes].reshape(30000, 1, classes))
    assert (ours.exp() - z.softmax(-1).mean(0)).abs().max() < error
    if classes == 2:
        width = (1.0 + math.pi / 8.0 * variance.sum(-1)).sqrt()
        torch.testing.assert_close(ours[:, 0].exp(), torch.sigmoid((mean[:, 0] - mean[:, 1]) / width))


def test_jensen_log_softmax_against_a_loop():
    mean, variance = logits(3, 2.0)
    index = torch.arange(len(mean)) % 3
    ours = expectations.jensen_log_softmax(mean, variance, index)
    loop = [
        mean[n, index[n]].item() - math.log(sum(math.exp(m + 0.5 * v) for m, v in zip(*row, strict=True)))
        for n, row in enumerate(zip(mean.tolist(), variance.tolist(), strict=True))
    ]
    torch.testing.assert_close(ours, torch.tensor(loop, dtype=torch.float64))


CLASSES = {
    "expected_log_softmax": lambda m, v: expectations.expected_log_softmax(m, v, torch.zeros(m.shape[:-1]).long()),
    "jensen_log_softmax": lambda m, v: expectations.jensen_log_softmax(m, v, torch.zeros(m.shape[:-1]).long()),
    "log_expected_softmax": expectations.log_expected_softmax,
}


@pytest.mark.parametrize("name", CLASSES)
def test_class_expectations_gradients_vmap_and_extremes(name):
    function = CLASSES[name]
    mean, variance = (value[:4].requires_grad_() for value in logits(3, 2.0))
    assert torch.autograd.gradcheck(function, (mean, variance), atol=1e-6)
    mapped, whole = torch.func.vmap(function)(mean, variance), function(mean, variance)
    for output in (mapped, whole):
        output.gradients = torch.autograd.grad(output.sin().sum(), (mean, variance), retain_graph=True)
    torch.testing.assert_close(mapped, whole)
    torch.testing.assert_close(mapped.gradients, whole.gradients)
    generator = torch.Generator().manual_seed(0)
    far = torch.tensor(WIDE)[torch.randint(len(WIDE), (500, 4), generator=generator)]
    far = (far * torch.randn(500, 4, generator=generator).sign()).requires_grad_()
    wide = torch.tensor(SMALL)[torch.randint(len(SMALL), (500, 4), generator=generator)].requires_grad_()
    output = function(far, wide)
    gradients = torch.autograd.grad(output.sum(), (far, wide))
    assert all(value.isfinite().all() for value in (output, *gradients))
    half = function(mean.detach().bfloat16(), variance.detach().bfloat16())
    assert half.dtype == torch.bfloat16


ONE, LOGITS, INDEX = torch.zeros(2), torch.zeros(3, 4), torch.zeros(2).long()
REFUSED = {
    "slope": (lambda: rectifier.leaky_relu(ONE, ONE, math.inf), "negative_slope must be finite, got inf"),
    "approximation": (lambda: logistic.sigmoid(ONE, ONE, approximation="fast"), "must be one of .*, got 'fast'"),
    "approximate": (lambda: smooth.gelu(ONE, ONE, "erf"), "approximate must be 'none' or 'tanh', got 'erf'"),
    "nodes": (lambda: quadrature.gauss_hermite(torch.sin, ONE, ONE, 0), "nodes must be at least 1, got 0"),
    "p": (lambda: noise.dropout(ONE, None, 1.5), r"p must be in \[0, 1\], got 1.5"),
    "index": (lambda: expectations.expected_log_softmax(LOGITS, LOGITS, INDEX), r"index must be of shape \(3,\), got"),
    "jensen": (lambda: expectations.jensen_log_softmax(LOGITS, LOGITS, INDEX), r"index must be of shape \(3,\), got"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    call, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_variances_of_another_shape():
    for function in (*EVERY.values(), *(row[0] for row in EXPECTATIONS.values()), CLASSES["log_expected_softmax"]):
        with pytest.raises(ValueError, match=r"variance must be of the mean's shape \(2,\), got \(3,\)"):
            function(ONE, torch.zeros(3))
