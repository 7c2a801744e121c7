"""The Gaussian posterior with a full covariance: against numpy and 60-digit arithmetic."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import bayesadam as ba
from bayesadam import noise
from bayesadam.functional import gaussian
from bayesadam.posterior.dense import TOGETHER
from posterior.kinds import BOUND, F64, POINTS, SIZE, assert_same, close, correlated, dense, draw, flat, without
from posterior.kinds import means as means_of

KEEP = [i for i in range(SIZE) if i not in POINTS]


def means(seed=0, dtype=torch.float32):
    return means_of(seed=seed, dtype=dtype)


def make(points=(), seed=0, dtype=torch.float32):
    return dense(means(seed, dtype), seed, points)


class TestConstruction:
    @pytest.mark.parametrize("points", [[], POINTS, list(range(SIZE))])
    def test_factor(self, points):
        covariance = without(correlated(SIZE), points)
        keep = [i for i in range(SIZE) if i not in points]
        q = ba.DenseGaussian(means(), covariance)
        expected = np.zeros((SIZE, SIZE))
        expected[np.ix_(keep, keep)] = np.linalg.cholesky(covariance[keep][:, keep].numpy())
        close(q.scale_tril, expected)
        close(q.covariance, covariance)
        assert (flat(q.variance) == 0).nonzero().flatten().tolist() == points

    def test_asymmetry_of_rounding_is_averaged_out(self):
        covariance = correlated(SIZE)
        for dtype, size in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
            spread = covariance.diagonal().sqrt()
            error = size * spread * spread[:, None] * torch.sign(draw(SIZE, SIZE)).triu(1)
            q = ba.DenseGaussian(means(), (covariance + error - error.T).to(dtype))
            close(q.covariance, covariance, rtol=0.1 * size, atol=0.1 * size)

    def test_gradients_are_not_kept(self):
        model = nn.Linear(2, 1, bias=False)
        mean = {"weight": nn.Parameter(torch.ones(1, 2))}
        q = ba.DenseGaussian(mean, torch.eye(2, requires_grad=True))
        assert not q.covariance.requires_grad
        assert not q.entropy().requires_grad
        assert not q.sample(1)["weight"].requires_grad
        for number in (0, None):
            with q.applied(model, number):
                assert model.weight.is_leaf


class TestFromPrecision:
    def test_is_the_inverse(self):
        precision = correlated(SIZE)
        q = ba.DenseGaussian.from_precision(means(), precision, hyperparameters={"method": "von"})
        close(q.covariance, np.linalg.inv(precision.numpy()), rtol=1e-9, atol=1e-9)
        close(q.scale_tril, np.linalg.cholesky(np.linalg.inv(precision.numpy())), rtol=1e-9, atol=1e-9)
        assert q.hyperparameters == {"method": "von"}

    def test_other_weights_are_points_and_their_rows_are_not_used(self):
        precision = correlated(SIZE)
        keep = [i for i in range(SIZE) if i not in POINTS]
        random = torch.ones(SIZE, dtype=torch.bool)
        random[POINTS] = False
        precision[POINTS], precision[0, 1] = -3.0, 17.0
        q = ba.DenseGaussian.from_precision(means(), precision, random=random)
        expected = np.zeros((SIZE, SIZE))
        expected[np.ix_(keep, keep)] = np.linalg.inv(precision[keep][:, keep].numpy())
        close(q.covariance, expected, rtol=1e-9, atol=1e-9)
        assert not q.scale_tril[POINTS].any()
        none = ba.DenseGaussian.from_precision(means(), precision, random=torch.zeros(SIZE, dtype=torch.bool))
        assert not none.scale_tril.any()

    def test_where_the_covariance_has_no_digits_left(self):
        """A Hilbert matrix of 11 rows (condition 5e14): the factor of the inverse is known exactly."""
        size = 11
        hilbert = torch.tensor([[1.0 / (i + j + 1) for j in range(size)] for i in range(size)], **F64)
        q = ba.DenseGaussian.from_precision({"w": torch.zeros(size)}, hilbert)
        with mpmath.workdps(60):
            exact = mpmath.cholesky(mpmath.inverse(mpmath.matrix(hilbert.tolist())))
            expected = torch.tensor([[float(exact[i, j]) for j in range(size)] for i in range(size)], **F64)
        relative = (q.scale_tril - expected).abs().max() / expected.abs().max()
        assert relative < 0.01


PAIRS, DRAWS = 350, 2000
PAIR = torch.tensor([[1.0, -1.4], [-1.4, 4.0]], **F64)


class TestSampling:
    def test_several_at_once_are_those_drawn_alone(self):
        """Also where a block of samples ends."""
        q = make()
        write, together = q.writer(2), q.sample(3, seed=2, first=TOGETHER - 2)
        for number in range(3):
            alone = {name: torch.empty_like(mean) for name, mean in q.mean.items()}
            write(alone, TOGETHER - 2 + number)
            assert_same({name: samples[number] for name, samples in together.items()}, alone)

    def test_mean_covariance_and_independence(self):
        """700,000 draws of a pair ``(a_i, b_i)`` of correlation -0.7: an error of one percent would be found."""
        mean = {"a": draw(14, 25).float(), "b": draw(PAIRS, seed=1).float()}
        q = ba.DenseGaussian(mean, torch.kron(PAIR, torch.eye(PAIRS, **F64)))
        samples = q.sample(DRAWS, seed=1)
        x = torch.stack([(samples[n].double() - mean[n].double()).flatten(1) for n in mean])
        for i in range(2):
            assert abs(x[i].mean()) < BOUND * math.sqrt(PAIR[i, i] / (PAIRS * DRAWS))
            for j in range(2):
                error = math.sqrt((PAIR[i, i] * PAIR[j, j] + PAIR[i, j] ** 2) / (PAIRS * DRAWS))
                assert abs((x[i] * x[j]).mean() - PAIR[i, j]) < BOUND * error < 0.01 * abs(PAIR[i, j])
        white = x / PAIR.diagonal().sqrt()[:, None, None]
        for a, b in (
            (white[:, :-1], white[:, 1:]),  # samples
            (white[0, :, :-1], white[1, :, 1:]),  # pairs
            (white[0, :, :-1], white[0, :, 1:]),
        ):
            assert abs((a * b).mean()) * math.sqrt(a.numel()) < BOUND

    def test_without_weights(self):
        q = ba.DenseGaussian({"w": torch.zeros(0)}, torch.zeros(0, 0, **F64))
        assert q.sample(3)["w"].shape == (3, 0)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    def test_is_the_mean_and_the_factor_times_the_noise_of_seed_and_number(self, dtype):
        q = make(POINTS, dtype=dtype)
        samples = q.sample(3, seed=5, first=7)
        assert {(n, s.dtype, s.shape[1:]) for n, s in samples.items()} == {
            (n, dtype, m.shape) for n, m in q.mean.items()
        }
        for i in range(3):
            eps = [
                noise.normal(5, 0, 7 + i, index, m.shape, stream=noise.POSTERIOR).flatten()
                for index, m in enumerate(q.mean.values())
            ]
            expected = flat(q.mean) + q.scale_tril @ torch.cat(eps).double()
            found = torch.cat([s[i].double().flatten() for s in samples.values()])
            close(found, expected, rtol=torch.finfo(dtype).eps, atol=1e-14)


class TestScores:
    @pytest.mark.parametrize(
        ("value", "expected"), [(math.inf, -math.inf), (-math.inf, -math.inf), (math.nan, math.nan)]
    )
    def test_log_prob_far_away(self, value, expected):
        theta = flat(make().mean).repeat(2, 1)
        theta[0, 3] = theta[0, 9] = value
        found = make().log_prob(split_rows(make(), theta))
        torch.testing.assert_close(found[0].item(), expected, equal_nan=True)
        assert found[1].isfinite()

    def test_log_prob_has_the_gradient_of_torch(self):
        q = make(POINTS)
        theta = (flat(q.mean) + 0.0).requires_grad_()
        moved = theta + torch.zeros(SIZE, **F64).index_fill(0, torch.tensor(KEEP), 0.3)
        (found,) = torch.autograd.grad(q.log_prob(q._split(moved)), theta)
        expected = torch.zeros(SIZE, **F64)
        expected[KEEP] = -torch.linalg.solve(q.covariance[KEEP][:, KEEP], torch.full((len(KEEP),), 0.3, **F64))
        close(found, expected, rtol=1e-9, atol=1e-9)


def split_rows(q, rows):
    parts = rows.split([m.numel() for m in q.mean.values()], dim=1)
    return {n: p.view(len(rows), *m.shape) for (n, m), p in zip(q.mean.items(), parts, strict=True)}


@pytest.mark.parametrize("inference", [False, True])
def test_samples_follow_changes_in_place(inference):
    with torch.inference_mode(inference):
        q = make(dtype=torch.float64)
        before = flat(q.sample(2), 2)
        q.scale_tril.mul_(10.0)
        close(flat(q.sample(2), 2) - flat(q.mean), 10.0 * (before - flat(q.mean)))


class TestExtremes:
    """Standard deviations from 1e-6 to 1e6 in one matrix: the same as without them, up to a shift of the densities."""

    SPREAD = torch.logspace(-6, 6, SIZE, **F64)[torch.randperm(SIZE, generator=torch.Generator().manual_seed(0))]

    def scaled(self, q):
        mean = q._split(flat(q.mean) * self.SPREAD)
        return ba.DenseGaussian(mean, q.covariance * self.SPREAD * self.SPREAD[:, None])

    @pytest.mark.parametrize("points", [[], POINTS])
    def test_scores(self, points):
        q, prior = (make(points, seed=seed, dtype=torch.float64) for seed in (0, 1))
        prior = ba.DenseGaussian(
            {n: torch.where(q.variance[n] == 0, q.mean[n], m) for n, m in prior.mean.items()}, prior.covariance
        )
        keep = [i for i in range(SIZE) if i not in points]
        shift = self.SPREAD[keep].log().sum().item()
        wide = self.scaled(q)
        close(wide.scale_tril / self.SPREAD[:, None], q.scale_tril)
        assert wide.entropy().item() == pytest.approx(q.entropy().item() + shift, rel=1e-11)
        assert wide.kl_divergence(self.scaled(prior)).item() == pytest.approx(q.kl_divergence(prior).item(), rel=1e-10)
        theta = flat(q.mean)
        theta[keep] += draw(len(keep))
        found = wide.log_prob(q._split(theta * self.SPREAD)).item()
        assert found == pytest.approx(q.log_prob(q._split(theta)).item() - shift, rel=1e-10)

    def test_precision_and_pruning(self):
        q = make(dtype=torch.float64)
        precision = torch.linalg.inv(q.covariance)
        wide = ba.DenseGaussian.from_precision(q.mean, precision / self.SPREAD / self.SPREAD[:, None])
        close(wide.scale_tril / self.SPREAD[:, None], q.scale_tril, rtol=1e-8, atol=1e-8)
        wide = self.scaled(q)
        close(wide.prune(0.5).scale_tril / self.SPREAD[:, None], q.prune(0.5).scale_tril, rtol=1e-10, atol=1e-10)

    @pytest.mark.parametrize("size", [1e-3, 1e-7])
    def test_kl_divergence_of_almost_equal_posteriors(self, size):
        """The terms of the usual formula cancel to ``size**2``; the sum of what is not negative keeps its digits."""
        lower = torch.tensor([[2.0, 0.0, 0.0], [0.5, 1.0, 0.0], [-1.0, 0.25, 3.0]], **F64)
        other = lower + size * torch.tensor([[1.0, 0.0, 0.0], [-0.5, 1.0, 0.0], [2.0, 0.5, -1.0]], **F64)
        mean, shifted = torch.zeros(3, **F64), size * torch.tensor([1.0, 0.0, -2.0], **F64)
        found = gaussian.dense_kl_divergence(shifted, other, mean, lower).item()
        with mpmath.workdps(60):
            p, q, m = (mpmath.matrix(t.tolist()) for t in (lower, other, shifted))
            p, q = p * p.T, q * q.T
            inverse = p**-1
            product = inverse * q
            trace = sum(product[i, i] for i in range(3))
            exact = (trace - 3 + (m.T * inverse * m)[0] - mpmath.log(mpmath.det(product))) / 2
            assert found == pytest.approx(float(exact), rel=1e-8)
        assert found > 0


@settings(deadline=None)
@given(st.floats(0, 1), st.integers(0, 5), st.sampled_from([[], POINTS]))
def test_rows_and_columns_of_the_weakest_are_zero(fraction, seed, points):
    q = make(points, seed=seed)
    pruned = q.prune(fraction)
    gone = flat(q.marginal().prune(fraction).variance) == 0
    assert torch.equal(flat(pruned.variance) == 0, gone)
    assert_same(pruned.mean, q.marginal().prune(fraction).mean)
    close(pruned.covariance, without(q.covariance, gone.nonzero().flatten().tolist()))
    assert not pruned.scale_tril[gone].any()
    assert not pruned.scale_tril[:, gone].any()
    assert_same(pruned.prune(fraction).mean, pruned.mean)


def test_a_round_trip_of_one_that_could_not_be_factorised_again(tmp_path):
    """Of condition 1e18: the product of the factor is not positive definite any more."""
    q = ba.DenseGaussian.from_scale_tril({"w": torch.zeros(2)}, torch.tensor([[1.0, 0.0], [1.0, 1e-9]], **F64))
    with pytest.raises(ValueError, match="positive definite"):
        ba.DenseGaussian(q.mean, q.covariance)
    q.save(tmp_path / "q")
    assert torch.equal(ba.load_posterior(tmp_path / "q").scale_tril, q.scale_tril)


@settings(deadline=None)
@given(st.integers(0, 6), st.integers(0, 3), st.integers(0, 9))
def test_the_cholesky_factor_of_rows_is_that_of_their_product(size, more, seed):
    rows = draw(size, size + more, seed=seed)
    points = draw(size, seed=seed + 1) > 1
    rows[points] = 0.0
    found = gaussian.cholesky_of_rows(rows)
    close(found @ found.T, rows @ rows.T)
    assert not found.triu(1).any()
    assert torch.equal(found.diagonal() == 0, points)
    assert (found.diagonal() >= 0).all()
