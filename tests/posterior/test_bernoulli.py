"""The Bernoulli posterior: moments, sampling, scores, use in a network, its file; and divergences of logits."""

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesadam import noise
from bayesadam.functional import empirical, kl
from bayesadam.posterior import BernoulliPosterior
from posterior.kinds import BOUND, SHAPES, means


def make(shapes=SHAPES, seed=0, dtype=torch.float32):
    """Probabilities strictly between 0 and 1, and a scale for every row."""
    p = {name: value.sigmoid() for name, value in means(shapes, seed, dtype).items()}
    rows = {name: (*shape[:-1], 1) if shape else () for name, shape in shapes.items()}
    return BernoulliPosterior(p, means(rows, seed + 50, dtype))


def weight(p, scale, dtype=torch.float64):
    """A posterior over one vector, from numbers."""
    return BernoulliPosterior({"w": torch.tensor(p, dtype=dtype)}, {"w": torch.tensor(scale, dtype=dtype)})


def elements(q):
    """Probability and scale of every weight, as numbers."""
    for name, p in q.probability.items():
        yield from zip(p.flatten().tolist(), q.scale[name].expand(p.shape).flatten().tolist(), strict=True)


class TestConstruction:
    def test_moments_are_those_of_equations_16_and_17(self):
        q = make(dtype=torch.float64)
        for name, shape in SHAPES.items():
            assert q.mean[name].shape == q.variance[name].shape == shape
        mean = torch.cat([m.flatten() for m in q.mean.values()]).tolist()
        variance = torch.cat([v.flatten() for v in q.variance.values()]).tolist()
        for m, v, (p, scale) in zip(mean, variance, elements(q), strict=True):
            assert m == pytest.approx(scale * p, rel=1e-14)
            assert v == pytest.approx(p * (scale - scale * p) ** 2 + (1 - p) * (scale * p) ** 2, rel=1e-12)

    @pytest.mark.parametrize("scale", [0.3, -1e30, 3e38])
    def test_point_masses_have_their_value_and_exactly_no_variance(self, scale):
        q = weight([0.0, 1.0, 1.0], [scale, scale, 0.0], torch.float32)
        assert q.mean["w"].tolist() == [0.0, torch.tensor(scale).item(), 0.0]
        assert q.variance["w"].tolist() == [0.0] * 3


class TestSampling:
    def test_moments_and_independence(self):
        """Two million standardised weights: an error of one percent of the variance would be found."""
        q = make({"a": (400, 500), "b": (4, 11_000), "c": (6000,)})
        samples = q.sample(8, seed=1)
        x = torch.cat([((samples[n] - m) / q.variance[n].sqrt()).double().flatten(1) for n, m in q.mean.items()], 1)
        squares = x.square()
        assert abs(x.mean()) * math.sqrt(x.numel()) < BOUND
        assert abs(squares.mean() - 1) < BOUND * squares.std() / math.sqrt(x.numel()) < 0.01
        for a, b in ((x[:-1], x[1:]), (x[:, :-1], x[:, 1:]), (x[:, :44_000], x[:, 200_000:244_000])):
            assert abs((a * b).mean()) * math.sqrt(a.numel()) < BOUND

    def test_how_often_a_weight_is_there(self):
        wanted = torch.tensor([1e-3, 0.02, 0.2, 0.5, 0.9, 0.999], dtype=torch.float64)
        p = wanted[:, None].expand(6, 100_000)
        there = BernoulliPosterior({"w": p}, {"w": torch.ones(()).double()}).sample(10, seed=2)["w"].mean((0, 2))
        z = (there - wanted) / (wanted * (1 - wanted) / 1e6).sqrt()
        assert (z.abs() < BOUND).all(), z

    @pytest.mark.parametrize(
        ("shapes", "dtype"), [(SHAPES, torch.float32), ({"a": (4, 8192), "b": (3, 2)}, torch.bfloat16)]
    )
    def test_is_the_noise_of_seed_and_number_below_a_quantile(self, shapes, dtype):
        q = make(shapes, dtype=dtype)
        samples = q.sample(3, seed=5, first=7)
        assert list(samples) == list(q.mean)
        for index, (name, p) in enumerate(q.probability.items()):
            for i in range(3):
                eps = noise.normal(5, 0, 7 + i, index, p.shape, stream=noise.POSTERIOR).double()
                below = 0.5 * (1 + torch.erf(eps / math.sqrt(2)))
                sure = (below - p.double()).abs() > 1e-6
                expected = torch.where(below < p.double(), q.scale[name], 0.0)
                assert torch.equal(samples[name][i][sure], expected[sure])
                assert p.numel() == 0 or sure.double().mean() > 0.99

    def test_point_masses_do_not_move_and_have_no_draw(self, monkeypatch):
        q = weight([1.0, 0.0, 0.5], [3.0, 4.0, 5.0])
        samples = q.sample(50)["w"]
        assert samples[:, :2].unique(dim=0).tolist() == [[3.0, 0.0]]
        assert samples[:, 2].unique().tolist() == [0.0, 5.0]
        monkeypatch.setattr(noise, "normal", None)
        monkeypatch.setattr(noise, "normal_many", None)
        certain = weight([1.0, 0.0, 0.5], [3.0, 4.0, 0.0])
        assert certain.sample(2)["w"].tolist() == [[3.0, 0.0, 0.0]] * 2


def exact(logit):
    """``p``, ``1 - p`` and their logarithms in high precision."""
    x = mpmath.mpf(logit)
    with mpmath.workdps(60):
        return (
            1 / (1 + mpmath.exp(-x)),
            1 / (1 + mpmath.exp(x)),
            -mpmath.log1p(mpmath.exp(-x)),
            -mpmath.log1p(mpmath.exp(x)),
        )


def exact_divergence(logit, prior):
    """``p log(p / p0) + (1 - p) log((1 - p) / (1 - p0))`` in high precision."""
    (p, q, log_p, log_q), (_, _, log_p0, log_q0) = exact(logit), exact(prior)
    with mpmath.workdps(60):
        return p * (log_p - log_p0) + q * (log_q - log_q0)


class TestDivergenceOfLogits:
    @pytest.mark.parametrize("prior", [0.0, 3.0, -30.0, 200.0])
    @pytest.mark.parametrize("logit", [0.0, -0.7, 3.0, 30.0, -300.0, 1e4])
    def test_against_high_precision(self, logit, prior):
        for dtype, tolerance in ((torch.float64, 1e-14), (torch.float32, 1e-6)):
            logits = torch.tensor([[logit, logit]], dtype=dtype, requires_grad=True)
            prior_logit = torch.tensor(prior, dtype=dtype, requires_grad=True)
            a, b = logits[0, 0].item(), prior_logit.item()
            found = kl.bernoulli(logits, prior_logit)
            assert found.dtype == torch.float64
            assert found.shape == ()
            # Digits that the terms lose where they cancel, the largest being at most log 2 and as small as 1 - p.
            lost = tolerance * math.exp(-abs(a)) * (1 + abs(a - b)) + torch.finfo(dtype).tiny
            assert found.item() == pytest.approx(float(2 * exact_divergence(a, b)), rel=tolerance, abs=lost)
            assert kl.bernoulli(logits, prior).item() == found.item()
            found.backward()
            (p, q, _, _), (p0, q0, _, _) = exact(a), exact(b)
            slope, away = float(p * q * (a - b)), float(2 * (p0 * q - q0 * p))
            least = 1e4 * torch.finfo(dtype).tiny
            assert logits.grad.tolist() == [[pytest.approx(slope, rel=10 * tolerance, abs=least)] * 2]
            assert prior_logit.grad.item() == pytest.approx(away, rel=20 * tolerance, abs=least)

    @pytest.mark.parametrize("shape", [(), (3, 1)])
    def test_gradients(self, shape):
        generator = torch.Generator().manual_seed(0)
        a = torch.randn(3, 4, dtype=torch.float64, generator=generator, requires_grad=True)
        b = torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True)
        assert torch.autograd.gradcheck(kl.bernoulli, (a, b))
        assert torch.autograd.gradgradcheck(kl.bernoulli, (a, b))
        assert torch.autograd.gradcheck(lambda a: kl.bernoulli(a, 0.3), a)


def logits(seed=0, shapes=((3, 4), (5,), ()), dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator, dtype=torch.float64).mul(2).sub(0.5).to(dtype) for s in shapes]


def share(tensors):
    flat = torch.cat([t.flatten() for t in tensors]).double()
    return flat.sigmoid().mean()


class TestEmpiricalBernoulli:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_is_the_divergence_from_the_mean_probability(self, dtype):
        values = logits(dtype=dtype)
        center = share(values).logit().item()
        expected = sum(float(exact_divergence(a, center)) for t in values for a in t.flatten().tolist())
        found = empirical.bernoulli(values)
        assert found.dtype == torch.float64
        assert found.shape == ()
        assert found.item() == pytest.approx(expected, rel=1e-12 if dtype == torch.float64 else 1e-6)

    def test_gradients(self):
        values = [a.requires_grad_() for a in logits(2)]
        assert torch.autograd.gradcheck(lambda *a: empirical.bernoulli(a), values)
        assert torch.autograd.gradgradcheck(lambda *a: empirical.bernoulli(a), values)
        found = torch.autograd.grad(empirical.bernoulli(values), values)
        center = share([a.detach() for a in values]).logit()
        for slope, a in zip(found, values, strict=True):
            torch.testing.assert_close(slope, torch.special.expit(a) * torch.special.expit(-a) * (a - center))

    @pytest.mark.parametrize("value", [-1e4, -20.0, 0.0, 100.0])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_of_equal_logits_is_nothing(self, value, dtype):
        values = [torch.full((7, 3), value, dtype=dtype, requires_grad=True), torch.full((), value, dtype=dtype)]
        found = empirical.bernoulli(values)
        found.backward()
        # To rounding of what it is a difference of.
        size = 22 * (abs(value) + 1) * math.exp(-abs(value))
        assert abs(found.item()) <= 4 * torch.finfo(dtype).eps * size + 1e-40
        assert (
            values[0].grad.abs() <= 4 * torch.finfo(dtype).eps * math.exp(-abs(value)) * (abs(value) + 1) + 1e-40
        ).all()

    @settings(deadline=None, max_examples=8)
    @given(
        st.lists(st.lists(st.integers(1, 3), max_size=3), min_size=1, max_size=3),
        st.integers(1, 4),
        st.sampled_from([torch.float32, torch.float64]),
    )
    def test_mapped(self, shapes, count, dtype):
        stacked = [a.requires_grad_() for a in logits(3, [(count, *shape) for shape in shapes], dtype)]
        weights = torch.arange(1.0, count + 1).double()
        mapped = torch.func.vmap(lambda *a: empirical.bernoulli(a))(*stacked)
        looped = torch.stack([empirical.bernoulli([a[i] for a in stacked]) for i in range(count)])
        torch.testing.assert_close(mapped, looped, rtol=1e-5, atol=1e-5)
        found, expected = (torch.autograd.grad(values @ weights, stacked) for values in (mapped, looped))
        torch.testing.assert_close(found, expected)

    @pytest.mark.parametrize("values", [[], [torch.zeros(0, 3)]])
    def test_without_weights(self, values):
        with pytest.raises(ValueError, match="^logits must have at least one weight, got none$"):
            empirical.bernoulli(values)


@pytest.mark.parametrize("factor", [0.3, 0.01, 1e-3])
def test_the_variance_near_probability_1_is_not_rounded_away(factor):
    p = torch.tensor([0.9, 0.999, 0.9999])
    q = BernoulliPosterior({"w": p}, {"w": torch.tensor([2.0, -1.0, 3.0])})
    scaled = q.scaled(factor)
    torch.testing.assert_close(scaled.variance["w"], factor**2 * q.variance["w"], rtol=1e-5, atol=0.0)
    torch.testing.assert_close(scaled.mean["w"], q.mean["w"])
    assert scaled.mean["w"].dtype == torch.float32
    low = q.to(dtype=torch.bfloat16)
    assert low.scale["w"].dtype == low.mean["w"].dtype == torch.bfloat16
    torch.testing.assert_close(low.variance["w"], q.variance["w"], rtol=0.02, atol=0.0)
