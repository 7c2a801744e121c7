"""The Gaussian posterior with a full covariance: against torch, numpy and 60-digit arithmetic."""

import copy
import json
import math
from concurrent.futures import ProcessPoolExecutor

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributions import MultivariateNormal
from torch.distributions import kl_divergence as torch_kl

import bayesadam as ba
from bayesadam import noise
from bayesadam.functional import gaussian
from processes import PROCESSES

BOUND = 4.5
F64 = {"dtype": torch.float64}
EXACT = {"rtol": 1e-11, "atol": 1e-11}
SHAPES = {"z.weight": (5, 4), "a": (), "empty": (0, 2), "m/bias": (3,)}  # not in alphabetic order
SIZE = 24
NONE: list[int] = []
POINTS = [0, 7, 20, 23]  # of 24 weights; 20 is the whole tensor "a"


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), **F64)


def correlated(size, seed=0):
    """A covariance with correlations of all sizes and standard deviations over two orders of magnitude."""
    root = draw(size, size, seed=seed) + 0.3 * torch.eye(size, **F64)
    spread = draw(size, seed=seed + 1000).exp()
    return spread * (root @ root.T / size) * spread[:, None]


def without(covariance, points):
    covariance = covariance.clone()
    gone = torch.zeros(len(covariance), dtype=torch.bool)
    gone[points] = True
    covariance[gone], covariance[:, gone] = 0.0, 0.0
    return covariance


def means(shapes=SHAPES, seed=0, dtype=torch.float32):
    return {name: draw(*shape, seed=seed + i).to(dtype) for i, (name, shape) in enumerate(shapes.items())}


def make(points=NONE, seed=0, dtype=torch.float32, **hyperparameters):
    return ba.DenseGaussian(
        means(seed=seed, dtype=dtype), without(correlated(SIZE, seed), points), hyperparameters=hyperparameters
    )


def flat(tensors, *leading):
    """All of one posterior, ``(*leading, D)``."""
    return torch.cat([t.double().reshape(*leading, math.prod(t.shape[len(leading) :])) for t in tensors.values()], -1)


def torch_normal(q, keep=slice(None)):
    return MultivariateNormal(flat(q.mean)[keep], q.covariance[keep][:, keep])


def close(a, b, **tolerances):
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=a.dtype), **(tolerances or EXACT))


def assert_same(a, b):
    """Two dicts of tensors are equal in names, their order, dtypes and every value."""
    assert list(a) == list(b)
    for name, value in a.items():
        assert value.dtype == b[name].dtype
        assert torch.equal(value, b[name]), name


class TestConstruction:
    def test_mean_covariance_and_variance(self):
        mean, covariance = means(), correlated(SIZE)
        q = ba.DenseGaussian(mean, covariance)
        assert isinstance(q, ba.Posterior)
        assert q.hyperparameters == {}
        assert all(q.mean[name] is value for name, value in mean.items())
        close(q.covariance, covariance)
        assert torch.equal(q.covariance, q.covariance.T)
        assert {name: tuple(v.shape) for name, v in q.variance.items()} == SHAPES
        close(flat(q.variance), covariance.diagonal())
        assert {v.dtype for v in (q.covariance, q.scale_tril, *q.variance.values())} == {torch.float64}

    def test_does_not_keep_what_it_was_given(self):
        mean, covariance, hyperparameters = means(), correlated(SIZE), {"lr": 0.1}
        q = ba.DenseGaussian(mean, covariance, hyperparameters=hyperparameters)
        before = q.covariance.clone()
        names = list(mean)
        mean.clear()
        hyperparameters.clear()
        covariance.zero_()
        assert (list(q.mean), q.hyperparameters) == (names, {"lr": 0.1})
        assert torch.equal(ba.DenseGaussian.from_scale_tril(q.mean, q.scale_tril).covariance, before)

    def test_repr_and_size(self):
        q = make()
        assert q.num_weights == SIZE
        assert repr(q) == "DenseGaussian(4 tensors, 24 weights)"

    def test_correlation(self):
        q = make(POINTS)
        keep = [i for i in range(SIZE) if i not in POINTS]
        covariance = q.covariance[keep][:, keep].numpy()
        spread = np.sqrt(np.diag(covariance))
        close(q.correlation()[keep][:, keep], covariance / spread / spread[:, None])
        assert not q.correlation()[POINTS].any()
        assert not q.correlation()[:, POINTS].any()

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

    @pytest.mark.parametrize(
        ("mean", "covariance", "message"),
        [
            ({}, [[1.0]], "^mean must have at least one weight tensor, got none$"),
            ({"a": [1]}, [[1.0]], "^mean of 'a' must be a floating-point tensor, got dtype torch.int64$"),
            ({"a": [1.0], "b": [math.inf]}, [[1.0]], "^mean of 'b' must be finite, got inf or nan$"),
            ({"a": [1.0], "b": [1.0]}, [[1.0]], r"^covariance must be of shape \(2, 2\), got \(1, 1\)$"),
            ({"a": [1.0]}, [1.0], r"^covariance must be of shape \(1, 1\), got \(1,\)$"),
            ({"a": [1.0]}, [[1]], "^covariance must be a floating-point tensor, got dtype torch.int64$"),
            ({"a": [1.0]}, [[math.nan]], "^covariance must be finite, got inf or nan$"),
            ({"a": [1.0]}, [[-2.0]], "^covariance must have a diagonal that is not negative, got -2.0$"),
            (
                {"a": [1.0, 1.0]},
                [[1.0, 0.5], [0.25, 1.0]],
                r"^covariance must be symmetric, got 0.5 at \(0, 1\) and 0.25 at \(1, 0\)$",
            ),
            (
                {"a": [1.0, 1.0]},
                [[1.0, 1e-9], [1e-9, 0.0]],
                r"^covariance must be 0 in the row and column of every 0 on its diagonal, got .*e-10 at \(0, 1\)$",
            ),
            (
                {"a": [1.0, 1.0, 1.0]},
                [[4.0, 0.0, 4.0], [0.0, 0.0, 0.0], [4.0, 0.0, 1.0]],
                "^covariance must be positive definite over the random weights, "
                "got -1 as the smallest eigenvalue of its correlations$",
            ),
            ({"a": [1.0, 1.0]}, [[1.0, 1.0], [1.0, 1.0]], "^covariance must be positive definite"),
        ],
    )
    def test_errors(self, mean, covariance, message):
        with pytest.raises(ValueError, match=message):
            ba.DenseGaussian({n: torch.tensor(v) for n, v in mean.items()}, torch.tensor(covariance))

    def test_a_singular_covariance_with_pivots_of_rounding_is_refused(self):
        root = draw(50, 20)
        with pytest.raises(ValueError, match="^covariance must be positive definite"):
            ba.DenseGaussian({"w": torch.zeros(50)}, root @ root.T)

        root = torch.tensor([[0.1], [0.7]], **F64)
        # Its last pivot should be 0; it is 2e-16 in most builds of LAPACK, which then find nothing wrong.
        with pytest.raises(ValueError, match="^covariance must be positive definite"):
            ba.DenseGaussian({"w": torch.zeros(2)}, root @ root.T)

    def test_the_covariance_is_symmetric_to_the_bit(self):
        covariance = ba.DenseGaussian({"w": torch.zeros(301)}, correlated(301)).covariance
        assert torch.equal(covariance, covariance.T)

    def test_too_many_weights(self):
        with pytest.raises(ValueError, match="^mean must have at most 10,000 weights for a dense .*, got 10,001$"):
            ba.DenseGaussian({"w": torch.zeros(10_001)}, torch.empty(()).expand(10_001, 10_001))

    def test_several_devices(self):
        with pytest.raises(ValueError, match="^mean of 'b' must be on the device of the others, cpu, got meta$"):
            ba.DenseGaussian({"a": torch.zeros(1), "b": torch.zeros(1, device="meta")}, torch.eye(2))

    @pytest.mark.parametrize(
        ("scale_tril", "message"),
        [
            (
                [[1.0, 0.5], [0.0, 1.0]],
                r"^scale_tril must be lower triangular, got 0.5 at \(0, 1\) above the diagonal$",
            ),
            ([[1.0, 0.0], [0.0, -1.0]], "^scale_tril must have a diagonal that is not negative, got -1.0$"),
            ([[1.0, 0.0], [0.5, 0.0]], r"^scale_tril must be 0 in the row and column .*, got 0.5 at \(1, 0\)$"),
            ([[0.0, 0.0], [0.5, 1.0]], r"^scale_tril must be 0 in the row and column .*, got 0.5 at \(1, 0\)$"),
            ([[1.0]], r"^scale_tril must be of shape \(2, 2\), got \(1, 1\)$"),
            ([[1.0, 0.0], [math.inf, 1.0]], "^scale_tril must be finite, got inf or nan$"),
        ],
    )
    def test_errors_of_a_factor(self, scale_tril, message):
        with pytest.raises(ValueError, match=message):
            ba.DenseGaussian.from_scale_tril({"w": torch.zeros(2)}, torch.tensor(scale_tril))


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

    @pytest.mark.parametrize(
        ("precision", "random", "message"),
        [
            ([[1.0, 2.0], [2.0, 1.0]], None, "^precision must be positive definite over the random .*, got -1 as the "),
            ([[1.0, 0.0], [0.0, 0.0]], None, "^precision must have a positive diagonal over .* weights, got 0.0$"),
            ([[1.0, 0.0], [0.0, -1.0]], [True, True], "^precision must have a positive diagonal .*, got -1.0$"),
            (
                [[1.0, 0.1], [0.0, 1.0]],
                None,
                r"^precision must be symmetric, got 0.1.* at \(0, 1\) and 0.0 at \(1, 0\)$",
            ),
            ([[1.0]], None, r"^precision must be of shape \(2, 2\), got \(1, 1\)$"),
            ([[math.inf, 0.0], [0.0, 1.0]], None, "^precision must be finite, got inf or nan$"),
            (
                [[1.0, 0.0], [0.0, 1.0]],
                [1.0, 0.0],
                r"^random must be a boolean tensor of shape \(2,\), got torch.float32 of shape \(2,\)$",
            ),
            ([[1.0, 0.0], [0.0, 1.0]], [True], r"^random must be .* of shape \(2,\), got torch.bool of shape \(1,\)$"),
        ],
    )
    def test_errors(self, precision, random, message):
        random = None if random is None else torch.tensor(random)
        with pytest.raises(ValueError, match=message):
            ba.DenseGaussian.from_precision({"w": torch.zeros(2)}, torch.tensor(precision), random=random)


PAIRS, DRAWS = 500, 4000
PAIR = torch.tensor([[1.0, -1.4], [-1.4, 4.0]], **F64)


@pytest.fixture(scope="module")
def pairs():
    """Two million draws of a pair ``(a_i, b_i)`` of correlation -0.7, ``(2, 4000, 500)``, less their mean."""
    mean = {"a": draw(20, 25).float(), "b": draw(PAIRS, seed=1).float()}
    q = ba.DenseGaussian(mean, torch.kron(PAIR, torch.eye(PAIRS, **F64)))
    samples = q.sample(DRAWS, seed=1)
    return torch.stack([(samples[n].double() - mean[n].double()).flatten(1) for n in mean])


def entry_z(x, i, j):
    variance = (PAIR[i, i] * PAIR[j, j] + PAIR[i, j] ** 2) / (PAIRS * DRAWS)
    return ((x[i] * x[j]).mean() - PAIR[i, j]).item() / math.sqrt(variance)


class TestSampling:
    def test_mean_and_covariance(self, pairs):
        for i in range(2):
            assert abs(pairs[i].mean()) < BOUND * math.sqrt(PAIR[i, i] / (PAIRS * DRAWS))
            for j in range(2):
                assert abs(entry_z(pairs, i, j)) < BOUND

    def test_an_error_of_one_percent_would_be_found(self, pairs):
        for factor in (0.99, 1.01):
            for i, j in ((0, 0), (0, 1), (1, 1)):
                assert abs(entry_z(math.sqrt(factor) * pairs, i, j)) > BOUND
        tilted = torch.stack([pairs[0], pairs[1] + 0.014 * pairs[0]])  # 1% of the covariance alone
        assert abs(entry_z(tilted, 0, 1)) > BOUND
        assert abs((pairs[0] + 0.01).mean()) > BOUND * math.sqrt(PAIR[0, 0] / (PAIRS * DRAWS))

    def test_samples_pairs_and_seeds_are_independent(self, pairs):
        x = pairs / PAIR.diagonal().sqrt()[:, None, None]

        def unrelated(a, b):
            return abs((a * b).mean().item()) * math.sqrt(a.numel()) < BOUND

        assert unrelated(x[:, :-1], x[:, 1:])
        assert unrelated(x[0, :, :-1], x[1, :, 1:])
        assert unrelated(x[0, :, :-1], x[0, :, 1:])
        q = make()
        assert not torch.equal(q.sample(2)["z.weight"], q.sample(2, seed=1)["z.weight"])
        assert_same(q.sample(2), q.sample(2, seed=0))

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

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_is_the_sample_of_the_diagonal_gaussian_where_the_covariance_is_diagonal(self, dtype):
        q = make(dtype=dtype)
        spread = without(q.covariance.diagonal().diag(), POINTS)
        alone = ba.DenseGaussian(q.mean, spread)
        diagonal = ba.DiagonalGaussian(q.mean, {n: v.to(dtype) for n, v in alone.variance.items()})
        tolerances = {"rtol": 4 * torch.finfo(dtype).eps, "atol": 4 * torch.finfo(dtype).eps}
        for name, sample in diagonal.sample(9, seed=3).items():
            torch.testing.assert_close(alone.sample(9, seed=3)[name], sample, **tolerances)
        marginal = q.marginal()
        assert isinstance(marginal, ba.DiagonalGaussian)
        assert_same(marginal.variance, q.variance)
        for name, sample in marginal.sample(2).items():
            assert sample.dtype == dtype
            torch.testing.assert_close(
                ba.DenseGaussian(q.mean, q.covariance.diagonal().diag()).sample(2)[name], sample, **tolerances
            )

    @settings(deadline=None)
    @given(st.integers(0, 2**64 - 1), st.lists(st.integers(1, 4), min_size=1, max_size=4))
    def test_chunks_are_all_at_once(self, seed, counts):
        q = make(POINTS, dtype=torch.float64)
        chunks = [q.sample(n, seed=seed, first=sum(counts[:i])) for i, n in enumerate(counts)]
        assert_same({n: torch.cat([chunk[n] for chunk in chunks]) for n in q.mean}, q.sample(sum(counts), seed=seed))

    def test_numbers_in_any_order(self):
        q = make(dtype=torch.float64)
        samples, write = q.sample(9, seed=4), q.writer(4)
        for number in (3, 8, 0, None, 1, 3):
            targets = {name: torch.empty_like(mean) for name, mean in q.mean.items()}
            write(targets, number)
            assert_same(targets, q.mean if number is None else {name: s[number] for name, s in samples.items()})

    def test_global_generators_are_neither_read_nor_moved(self):
        found = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            before = torch.get_rng_state()
            found.append(make().sample(2, seed=4))
            assert torch.equal(torch.get_rng_state(), before)
        assert_same(*found)

    def test_point_masses_do_not_move(self):
        q = make(POINTS)
        samples = flat(q.sample(5), 5)
        moved = (samples != flat(q.mean)).any(0)
        assert (~moved).nonzero().flatten().tolist() == POINTS
        assert (samples[0] != samples[1])[moved].all()

    def test_is_independent_of_later_changes(self):
        q = make()
        samples, before = q.sample(2), copy.deepcopy(q)
        for sample in samples.values():
            sample.zero_()
        assert_same(q.tensors(), before.tensors())

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"count": 0}, "^count must be at least 1, got 0$"),
            ({"count": 1, "seed": -1}, r"^seed must be an integer in \[0, 2\*\*64\), got -1$"),
            ({"count": 1, "first": -1}, r"^sample must be an integer in \[0, 2\*\*28\), got -1$"),
            ({"count": 2, "first": 2**28 - 1}, r"^sample must be an integer in \[0, 2\*\*28\), got 268435456$"),
        ],
    )
    def test_errors(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            make().sample(**arguments)


KEEP = [i for i in range(SIZE) if i not in POINTS]


class TestScores:
    @pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
    def test_log_prob(self, leading):
        q = make()
        theta = {name: draw(*leading, *mean.shape, seed=i) for i, (name, mean) in enumerate(q.mean.items())}
        found = q.log_prob(dict(reversed(theta.items())))
        assert found.shape == leading
        assert found.dtype == torch.float64
        close(found, torch_normal(q).log_prob(flat(theta, *leading)))

    def test_log_prob_by_hand(self):
        q = make()
        residual = (draw(SIZE, seed=9) - flat(q.mean)).numpy()
        covariance = q.covariance.numpy()
        expected = -0.5 * residual @ np.linalg.inv(covariance) @ residual
        expected -= 0.5 * np.linalg.slogdet(2 * math.pi * covariance)[1]
        assert q.log_prob(split_rows(q, torch.empty(0, SIZE))).shape == (0,)
        assert q.log_prob(q._split(draw(SIZE, seed=9))).item() == pytest.approx(expected, rel=1e-10)

    def test_log_prob_of_point_masses(self):
        q = make(POINTS)
        theta = flat(q.mean).repeat(SIZE + 1, 1)
        theta[:, KEEP] += 0.1 * draw(len(KEEP), seed=3)
        theta[range(SIZE), range(SIZE)] += 1e-9
        found = q.log_prob(split_rows(q, theta))
        expected = torch_normal(q, KEEP).log_prob(theta[:, KEEP])
        expected[POINTS] = -math.inf
        close(found, expected)
        nowhere = ba.DenseGaussian(q.mean, torch.zeros(SIZE, SIZE))
        assert nowhere.log_prob(q.mean) == 0.0
        assert nowhere.log_prob({n: m + 1 for n, m in q.mean.items()}) == -math.inf

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

    @pytest.mark.parametrize(
        ("theta", "message"),
        [
            ({"a": torch.zeros(2)}, "^theta must have the weights 'b', got none of that name$"),
            ({"a": torch.zeros(2), "b": torch.zeros(()), "c": torch.zeros(1)}, "^theta must only have .*, got 'c'$"),
            ({"a": torch.zeros(3), "b": torch.zeros(())}, r"^theta\['a'\] must end in the shape \(2,\), got \(3,\)$"),
        ],
    )
    def test_log_prob_errors(self, theta, message):
        with pytest.raises(ValueError, match=message):
            ba.DenseGaussian({"a": torch.zeros(2), "b": torch.zeros(())}, torch.eye(3)).log_prob(theta)

    def test_entropy(self):
        assert make().entropy().item() == pytest.approx(torch_normal(make()).entropy().item(), rel=1e-12)
        expected = torch_normal(make(), KEEP).entropy().item()
        assert make(POINTS).entropy().item() == pytest.approx(expected, rel=1e-12)
        assert ba.DenseGaussian(means(), torch.zeros(SIZE, SIZE)).entropy() == 0.0

    @pytest.mark.parametrize("precision", [0.3, 2])
    @pytest.mark.parametrize("points", [[], POINTS])
    def test_kl_divergence_from_a_prior_precision(self, precision, points):
        q = make(points)
        keep = [i for i in range(SIZE) if i not in points]
        prior = MultivariateNormal(torch.zeros(len(keep), **F64), torch.eye(len(keep), **F64) / precision)
        assert q.kl_divergence(precision).item() == pytest.approx(
            torch_kl(torch_normal(q, keep), prior).item(), rel=1e-11
        )

    def test_kl_divergence_by_hand(self):
        q, p = make(), make(seed=1)
        inverse, shift = np.linalg.inv(p.covariance.numpy()), (flat(q.mean) - flat(p.mean)).numpy()
        expected = np.trace(inverse @ q.covariance.numpy()) + shift @ inverse @ shift - SIZE
        expected += np.linalg.slogdet(p.covariance.numpy())[1] - np.linalg.slogdet(q.covariance.numpy())[1]
        assert q.kl_divergence(p).item() == pytest.approx(expected / 2, rel=1e-9)

    def test_kl_divergence_from_a_posterior_in_any_order(self):
        q, prior = make(), make(seed=1)
        order = ["m/bias", "z.weight", "empty", "a"]
        index = torch.cat([prior._split(torch.arange(SIZE))[name].flatten() for name in order])
        shuffled = ba.DenseGaussian({n: prior.mean[n] for n in order}, prior.covariance[index][:, index])
        expected = torch_kl(torch_normal(q), torch_normal(prior)).item()
        assert q.kl_divergence(prior).item() == pytest.approx(expected, rel=1e-11)
        assert q.kl_divergence(shuffled).item() == pytest.approx(expected, rel=1e-10)
        assert q.kl_divergence(q) == 0.0
        assert 0 <= q.kl_divergence(ba.DenseGaussian(q.mean, q.covariance)) < 1e-20

    def test_kl_divergence_between_dense_and_diagonal(self):
        q, prior = make(), make(seed=1)
        for a, b in ((q, prior.marginal()), (q.marginal(), prior), (q.marginal(), prior.marginal())):
            covariances = [p.covariance if isinstance(p, ba.DenseGaussian) else flat(p.variance).diag() for p in (a, b)]
            expected = torch_kl(
                *(MultivariateNormal(flat(p.mean), c) for p, c in zip((a, b), covariances, strict=True))
            ).item()
            assert a.kl_divergence(b).item() == pytest.approx(expected, rel=1e-11)
        alone = ba.DenseGaussian(q.mean, flat(q.variance).diag())
        assert alone.kl_divergence(q.marginal()).item() == pytest.approx(0.0, abs=1e-28)
        assert q.marginal().kl_divergence(alone).item() == pytest.approx(0.0, abs=1e-28)
        reverse = ba.DiagonalGaussian(*(dict(reversed(part.items())) for part in (prior.mean, prior.variance)))
        assert q.kl_divergence(reverse) == q.kl_divergence(prior.marginal())

    def test_kl_divergence_counts_random_weights_only(self):
        q, prior = make(), make(seed=1)
        pointed = make(POINTS)
        marginal = torch_kl(torch_normal(q, KEEP), torch_normal(prior, KEEP)).item()
        assert pointed.kl_divergence(prior).item() == pytest.approx(marginal, rel=1e-11)
        single = MultivariateNormal(flat(prior.mean)[KEEP], flat(prior.variance)[KEEP].diag())
        expected = torch_kl(torch_normal(q, KEEP), single).item()
        assert pointed.kl_divergence(prior.marginal()).item() == pytest.approx(expected, rel=1e-11)
        pointed_diagonal = pointed.marginal()
        expected = torch_kl(
            MultivariateNormal(flat(q.mean)[KEEP], flat(q.variance)[KEEP].diag()), torch_normal(prior, KEEP)
        ).item()
        assert pointed_diagonal.kl_divergence(prior).item() == pytest.approx(expected, rel=1e-11)
        assert q.kl_divergence(pointed) == math.inf
        assert q.kl_divergence(pointed.marginal()) == math.inf
        assert q.marginal().kl_divergence(pointed) == math.inf
        assert pointed.kl_divergence(pointed) == 0.0
        assert pointed.kl_divergence(make(POINTS[:2])).isfinite()
        moved = ba.DenseGaussian({n: m + 1 for n, m in q.mean.items()}, pointed.covariance)
        assert pointed.kl_divergence(moved) == math.inf
        nowhere = ba.DenseGaussian(q.mean, torch.zeros(SIZE, SIZE))
        assert nowhere.kl_divergence(prior) == 0.0
        assert nowhere.kl_divergence(2.0) == 0.0

    def test_kl_divergence_is_the_mean_log_ratio_of_samples(self):
        q, prior = make(), make(seed=1)
        samples = q.sample(4000, seed=2)
        ratio = q.log_prob(samples) - prior.log_prob(samples)
        assert abs(ratio.mean() - q.kl_divergence(prior)) < BOUND * ratio.std() / math.sqrt(4000)

    @pytest.mark.parametrize("precision", [0, -1.0, math.inf, math.nan])
    def test_kl_divergence_needs_a_positive_precision(self, precision):
        with pytest.raises(
            ValueError, match=rf"^prior must be a positive, finite precision or a Gaussian posterior, got {precision}$"
        ):
            make().kl_divergence(precision)

    def test_kl_divergence_needs_the_same_weights(self):
        q = ba.DenseGaussian({"a": torch.zeros(2), "b": torch.zeros(())}, torch.eye(3))
        other = ba.DenseGaussian({"a": torch.zeros(2)}, torch.eye(2))
        for one in (q, q.marginal()):
            with pytest.raises(ValueError, match="^prior must have the weights 'b', got none of that name$"):
                one.kl_divergence(other)
            with pytest.raises(ValueError, match=r"^prior of 'b' must be of shape \(\), got \(1,\)$"):
                one.kl_divergence(ba.DenseGaussian({"a": torch.zeros(2), "b": torch.zeros(1)}, torch.eye(3)))

    def test_results_are_in_float64_whatever_the_means(self):
        for dtype in (torch.float32, torch.bfloat16):
            q = make(dtype=dtype)
            wide, theta = q.to(dtype=torch.float64), q.sample(2)
            for found, expected in (
                (q.log_prob(theta), wide.log_prob(theta)),
                (q.entropy(), wide.entropy()),
                (q.kl_divergence(2.0), wide.kl_divergence(2.0)),
            ):
                assert found.dtype == torch.float64
                assert torch.equal(found, expected)

    def test_signal_to_noise(self):
        q = ba.DenseGaussian(
            {"a": torch.tensor([3.0, -3.0, 0.0]), "b": torch.tensor([0.0, -2.0])},
            torch.block_diag(torch.tensor([[4.0, 1.0], [1.0, 9.0]]), torch.eye(1), torch.zeros(2, 2)),
        )
        found = q.signal_to_noise()
        assert {name: ratio.tolist() for name, ratio in found.items()} == {"a": [1.5, 1.0, 0.0], "b": [0.0, math.inf]}


def split_rows(q, rows):
    parts = rows.split([m.numel() for m in q.mean.values()], dim=1)
    return {n: p.view(len(rows), *m.shape) for (n, m), p in zip(q.mean.items(), parts, strict=True)}


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
        assert all(abs(v) < 1 + 1e-12 for v in wide.correlation().flatten().tolist())

    def test_samples(self):
        q = make(dtype=torch.float64)
        close(flat(self.scaled(q).sample(3), 3) / self.SPREAD, flat(q.sample(3), 3))

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


class TestPruning:
    @settings(deadline=None)
    @given(st.floats(0, 1), st.integers(0, 5), st.sampled_from([[], POINTS]))
    def test_rows_and_columns_of_the_weakest_are_zero(self, fraction, seed, points):
        q = make(points, seed=seed)
        pruned = q.prune(fraction)
        gone = flat(q.marginal().prune(fraction).variance) == 0
        assert torch.equal(flat(pruned.variance) == 0, gone)
        assert_same(pruned.mean, q.marginal().prune(fraction).mean)
        close(pruned.covariance, without(q.covariance, gone.nonzero().flatten().tolist()))
        assert not pruned.scale_tril[gone].any()
        assert not pruned.scale_tril[:, gone].any()
        assert_same(pruned.prune(fraction).mean, pruned.mean)

    def test_keeps_dtypes_and_hyperparameters(self):
        q = make(lr=0.1)
        q.mean["a"] = q.mean["a"].double()
        pruned = q.prune(0.5)
        assert {n: m.dtype for n, m in pruned.mean.items()} == {n: m.dtype for n, m in q.mean.items()}
        assert pruned.hyperparameters == {"lr": 0.1, "pruned_fraction": 0.5}
        assert q.hyperparameters == {"lr": 0.1}

    @pytest.mark.parametrize("fraction", [-0.1, 1.1, math.nan])
    def test_errors(self, fraction):
        with pytest.raises(ValueError, match=rf"^fraction must be in \[0, 1\], got {fraction}$"):
            make().prune(fraction)


def test_to():
    q = make(lr=0.1)
    wide = q.to(dtype=torch.float64)
    assert_same(wide.mean, {name: mean.double() for name, mean in q.mean.items()})
    assert wide.hyperparameters == {"lr": 0.1}
    narrow = wide.to("cpu", torch.bfloat16)
    assert {m.dtype for m in narrow.mean.values()} == {torch.bfloat16}
    assert torch.equal(narrow.scale_tril, q.scale_tril)
    with pytest.raises(ValueError, match="^mean of 'w' must be finite, got inf or nan$"):
        ba.DenseGaussian({"w": torch.tensor([1e6])}, torch.eye(1)).to(dtype=torch.float16)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu():
    q, prior = make(POINTS), make(seed=1)
    on, theta = q.to("cuda"), q.sample(3)
    assert on.scale_tril.is_cuda
    for name, sample in on.sample(3).items():
        torch.testing.assert_close(sample.cpu(), theta[name], rtol=1e-5, atol=1e-5)
    close(on.log_prob({n: t.cuda() for n, t in theta.items()}).cpu(), q.log_prob(theta))
    for other in (prior, prior.marginal(), prior.to("cuda"), 3.0):
        close(on.kl_divergence(other), q.kl_divergence(other if isinstance(other, float) else other.to("cpu")))
    close(on.marginal().kl_divergence(prior), q.marginal().kl_divergence(prior))
    close(on.prune(0.5).covariance.cpu(), q.prune(0.5).covariance)
    precision = torch.linalg.inv(prior.covariance)
    random = torch.ones(SIZE, dtype=torch.bool)
    again = ba.DenseGaussian.from_precision(on.mean, precision, random=random)
    close(again.covariance.cpu(), prior.covariance, rtol=1e-8, atol=1e-8)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def posterior_of(model, seed=3):
    mean = {name: draw(*p.shape, seed=seed + i).to(p.dtype) for i, (name, p) in enumerate(model.named_parameters())}
    return ba.DenseGaussian(mean, correlated(sum(m.numel() for m in mean.values()), seed))


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


class TestInANetwork:
    def test_applied(self, model):
        q, before = posterior_of(model), weights(model)
        samples = q.sample(3, seed=2)
        for number in (2, 0, None):
            with q.applied(model, number, seed=2):
                assert_same(weights(model), q.mean if number is None else {n: s[number] for n, s in samples.items()})
            assert_same(weights(model), before)
        with pytest.raises(ValueError, match="^sample must be an integer in .*, got -1$"), q.applied(model, -1):
            pass
        assert_same(weights(model), before)

    @pytest.mark.parametrize("number", [None, 1])
    def test_applied_to_another_dtype_device_and_strides(self, model, number):
        q = posterior_of(model)
        expected = q.mean if number is None else {n: s[1] for n, s in q.sample(2).items()}
        model[0].weight = nn.Parameter(torch.zeros(3, 4).T)
        with q.applied(model.to(torch.bfloat16), number):
            assert_same(weights(model), {n: s.to(torch.bfloat16) for n, s in expected.items()})
        with q.applied(model.to("meta"), number):
            assert all(p.is_meta for p in model.parameters())

    def test_a_sample_is_rounded_to_the_dtype_of_the_mean_first(self):
        model = nn.Linear(50, 4, dtype=torch.bfloat16)
        q = posterior_of(model).to(dtype=torch.float16)
        with q.applied(model, 1):
            assert_same(weights(model), {n: s[1].to(torch.bfloat16) for n, s in q.sample(2).items()})

    def test_autocast_does_not_reuse_the_weights_of_before(self, model):
        q, x = posterior_of(model), torch.ones(1, 3)
        with torch.autocast("cpu", torch.bfloat16):
            write, parameters, found = q.writer(), q.match(model), []
            for number in (0, 1, None):
                write(parameters, number)
                found.append(model(x))
        assert len(torch.cat(found).unique(dim=0)) == 3

    def test_another_model_is_refused(self, model):
        with pytest.raises(ValueError, match="^the model must have a parameter '2.weight' as the posterior does, got"):
            posterior_of(model).match(nn.Sequential(nn.Linear(3, 4)))

    def test_predict_is_the_model_at_the_samples(self, model):
        q, x, before = posterior_of(model), torch.randn(5, 3), weights(model)
        found = ba.predict(model, q, x, likelihood=ba.Categorical(), mc_samples=4, seed=7)
        theta = q.sample(4, seed=7)
        outputs = [torch.func.functional_call(model, {n: s[i] for n, s in theta.items()}, (x,)) for i in range(4)]
        torch.testing.assert_close(found.log_probs, torch.stack(outputs).log_softmax(-1))
        assert_same(weights(model), before)
        mean = ba.predict(model, q, x, likelihood=ba.Categorical(), method="mean")
        torch.testing.assert_close(mean.log_probs[0], torch.func.functional_call(model, q.mean, (x,)).log_softmax(-1))

    def test_predict_has_the_moments_of_a_linear_model(self):
        model, x = nn.Linear(6, 1, **F64), draw(3, 6)
        q = posterior_of(model)
        found = ba.predict(model, q, x, likelihood=ba.Gaussian(2.0), mc_samples=20_000)
        design = torch.cat([x, torch.ones(3, 1, **F64)], 1)
        mean, variance = design @ flat(q.mean), (design @ q.covariance @ design.T).diagonal()
        assert ((found.mean[:, 0] - mean).abs() < BOUND * (variance / 20_000).sqrt()).all()
        assert ((found.epistemic[:, 0] / variance - 1).abs() < BOUND * math.sqrt(2 / 20_000)).all()
        alone = (design**2 @ flat(q.variance)) / variance  # what forgetting the correlations would give
        assert ((alone - 1).abs() > 2 * BOUND * math.sqrt(2 / 20_000)).all()

    def test_signal_to_noise_can_be_plotted(self, model):
        plots = pytest.importorskip("bayesadam.plots")
        pyplot = pytest.importorskip("matplotlib.pyplot")
        figure, axes = pyplot.subplots()
        plots.signal_to_noise(axes, {"dense": posterior_of(model)})
        pyplot.close(figure)


HYPERPARAMETERS = {"method": "von", "lr": 1e-3, "betas": [0.9, 0.999], "nested": {"é": None, "flag": True}}
INVALID = "^the posterior file must hold a valid DenseGaussian, got "


@pytest.fixture
def path(tmp_path):
    return tmp_path / "q.safetensors"


def samples_in(path):
    return {name: sample.tolist() for name, sample in ba.load_posterior(path).sample(2, seed=6).items()}


class TestFile:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    @pytest.mark.parametrize("points", [[], POINTS])
    def test_round_trip_to_the_bit(self, path, dtype, points):
        q = make(points, dtype=dtype, **HYPERPARAMETERS)
        q.save(path)
        loaded = ba.load_posterior(str(path))
        assert type(loaded) is ba.DenseGaussian
        assert_same(loaded.mean, q.mean)
        assert_same(loaded.variance, q.variance)
        assert torch.equal(loaded.covariance, q.covariance)
        assert_same(loaded.sample(3, seed=1), q.sample(3, seed=1))
        assert loaded.hyperparameters == HYPERPARAMETERS

    def test_round_trip_of_one_that_could_not_be_factorised_again(self, path):
        """Of condition 1e18: the product of the factor is not positive definite any more."""
        q = ba.DenseGaussian.from_scale_tril({"w": torch.zeros(2)}, torch.tensor([[1.0, 0.0], [1.0, 1e-9]], **F64))
        with pytest.raises(ValueError, match="positive definite"):
            ba.DenseGaussian(q.mean, q.covariance)
        q.save(path)
        assert torch.equal(ba.load_posterior(path).scale_tril, q.scale_tril)

    def test_is_plain_safetensors(self, path):
        q = make()
        q.save(path)
        assert set(load_file(path)) == {*(f"mean/{name}" for name in SHAPES), "scale_tril"}

    def test_a_tensor_may_be_called_as_the_factor(self, path):
        q = ba.DenseGaussian({"scale_tril": torch.zeros(2), "mean/x": torch.zeros(1)}, correlated(3))
        q.save(path)
        assert_same(ba.load_posterior(path).tensors(), q.tensors())

    def test_a_new_process_loads_it(self, path):
        q = make()
        q.save(path)
        with ProcessPoolExecutor(1, PROCESSES) as pool:
            found = pool.submit(samples_in, path).result(timeout=120)
        assert found == {name: sample.tolist() for name, sample in q.sample(2, seed=6).items()}

    def test_truncated_anywhere(self, path):
        make().save(path)
        content = path.read_bytes()
        for length in [*range(0, len(content), 307), len(content) - 1]:
            path.write_bytes(content[:length])
            with pytest.raises(ValueError, match="^the posterior file must be a complete safetensors file, got "):
                ba.load_posterior(path)

    @pytest.mark.parametrize(
        ("tensors", "message"),
        [
            ({"mean/w": [0.0]}, r"'scale_tril'\)$"),
            ({"scale_tril": [[1.0]]}, r"mean must have at least one weight tensor, got none\)$"),
            ({"mean/w": [0.0], "scale_tril": [[1.0]], "variance/w": [1.0]}, r"'variance/w'\)$"),
            ({"mean/w": [0.0], "scale_tril": [1.0]}, r"scale_tril must be of shape \(1, 1\), got \(1,\)\)$"),
            ({"mean/w": [math.nan], "scale_tril": [[1.0]]}, r"mean of 'w' must be finite, got inf or nan\)$"),
            ({"mean/w": [0.0], "scale_tril": [[math.nan]]}, r"scale_tril must be finite, got inf or nan\)$"),
            ({"mean/w": [0.0], "scale_tril": [[-1.0]]}, r"scale_tril must have a diagonal that is not .*, got -1.0\)$"),
        ],
    )
    def test_damaged_tensors(self, path, tensors, message):
        tensors = {name: torch.tensor(value) for name, value in tensors.items()}
        header = {"format_version": 1, "kind": "DenseGaussian", "tensors": list(tensors), "hyperparameters": {}}
        save_file(tensors, path, {"bayesadam.posterior": json.dumps(header)})
        with pytest.raises(ValueError, match=INVALID + ".*" + message):
            ba.load_posterior(path)

    def test_the_common_class_is_no_kind(self, path):
        header = {"format_version": 1, "kind": "GaussianPosterior", "tensors": ["mean/w"], "hyperparameters": {}}
        save_file({"mean/w": torch.zeros(1)}, path, {"bayesadam.posterior": json.dumps(header)})
        with pytest.raises(
            ValueError, match=r"^the posterior file must be of a kind in \['BernoulliPosterior', 'Dense"
        ):
            ba.load_posterior(path)


class TestCholeskyOfRows:
    @settings(deadline=None)
    @given(st.integers(0, 6), st.integers(0, 3), st.integers(0, 9))
    def test_is_the_factor_of_the_product(self, size, more, seed):
        rows = draw(size, size + more, seed=seed)
        points = draw(size, seed=seed + 1) > 1
        rows[points] = 0.0
        found = gaussian.cholesky_of_rows(rows)
        close(found @ found.T, rows @ rows.T)
        assert not found.triu(1).any()
        assert torch.equal(found.diagonal() == 0, points)
        assert (found.diagonal() >= 0).all()
