"""The Gaussian with a diagonal plus a low-rank covariance: against dense matrices in float64."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal
from torch.distributions import kl_divergence as torch_kl

import bayesadam as ba
from bayesadam import noise
from bayesadam.posterior import LowRankGaussian, low_rank

BOUND = 4.5
F64 = {"dtype": torch.float64}
EXACT = {"rtol": 1e-10, "atol": 1e-10}
SHAPES = {"z.weight": (5, 4), "a": (), "empty": (0, 2), "m/bias": (3,)}  # not in alphabetic order
SIZE = 24
RANK = 3


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), **F64).to(dtype)


def make(shapes=SHAPES, rank=RANK, seed=0, dtype=torch.float64, spread=1.0, **hyperparameters):
    mean = {name: draw(*shape, seed=seed + i, dtype=dtype) for i, (name, shape) in enumerate(shapes.items())}
    diagonal = {n: spread * draw(*m.shape, seed=seed + 10).exp().to(dtype) for n, m in mean.items()}
    factors = {n: draw(rank, *m.shape, seed=seed + 20 + i, dtype=dtype) for i, (n, m) in enumerate(mean.items())}
    return LowRankGaussian(mean, diagonal, factors, hyperparameters=hyperparameters)


def flat(tensors, *leading):
    return torch.cat([t.double().reshape(*leading, math.prod(t.shape[len(leading) :])) for t in tensors.values()], -1)


def covariance(q):
    f = flat(q.factors, q.rank)
    return flat(q.diagonal).diag() + f.T @ f


def torch_normal(q, keep=slice(None)):
    return MultivariateNormal(flat(q.mean)[keep], covariance(q)[keep][:, keep])


def close(a, b, **tolerances):
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=a.dtype), **(tolerances or EXACT))


def assert_same(a, b):
    assert list(a) == list(b)
    for name, value in a.items():
        assert value.dtype == b[name].dtype
        assert torch.equal(value, b[name]), name


def with_points(q, numbers):
    """Point masses at these weights."""
    keep = torch.ones(q.num_weights, dtype=torch.bool)
    keep[numbers] = False
    masks = q._split(keep)
    parts = [{n: torch.where(masks[n], v, 0.0) for n, v in part.items()} for part in (q.diagonal, q.factors)]
    return LowRankGaussian(q.mean, *parts), keep


class TestConstruction:
    def test_keeps_the_tensors(self):
        q = make(lr=0.1)
        again = LowRankGaussian(q.mean, q.diagonal, q.factors)
        for kind in ("mean", "diagonal", "factors"):
            assert all(getattr(again, kind)[name] is value for name, value in getattr(q, kind).items())
        assert (q.rank, q.num_weights, q.hyperparameters) == (RANK, SIZE, {"lr": 0.1})
        assert repr(q) == "LowRankGaussian(4 tensors, 24 weights)"

    def test_marginal_variance(self):
        q = make()
        close(flat(q.variance), covariance(q).diagonal())
        close(flat(q.marginal().variance), covariance(q).diagonal())
        assert_same(q.marginal().mean, q.mean)

    @pytest.mark.parametrize(
        ("diagonal", "factors", "message"),
        [
            ({"a": [-1.0, 1.0]}, {"a": [[1.0, 1.0]]}, "^variance of 'a' must be finite and not negative, got -1.0$"),
            ({"b": [1.0, 1.0]}, {"a": [[1.0, 1.0]]}, r"^variance must have the names of mean \['a'\], got \['b'\]$"),
            ({"a": [1.0, 1.0]}, {"b": [[1.0, 1.0]]}, r"^factors must have the names of mean \['a'\], got \['b'\]$"),
            ({"a": [1.0, 1.0]}, {"a": [1.0, 1.0]}, r"^factors of 'a' must be of shape \(2, 2\), got \(2,\)$"),
            ({"a": [1.0, 1.0]}, {"a": 1.0}, r"^factors of 'a' must be of shape \(0, 2\), got \(\)$"),
            ({"a": [1.0, 1.0]}, {"a": [[1.0, math.nan]]}, "^factors of 'a' must be finite, got inf or nan$"),
            (
                {"a": [1.0, 1.0]},
                {"a": [[1, 2]]},
                "^factors of 'a' must be a floating-point tensor, got dtype torch.int64$",
            ),
        ],
    )
    def test_errors(self, diagonal, factors, message):
        diagonal, factors = ({n: torch.tensor(v) for n, v in part.items()} for part in (diagonal, factors))
        with pytest.raises(ValueError, match=message):
            LowRankGaussian({"a": torch.zeros(2)}, diagonal, factors)

    def test_the_same_rank_for_all(self):
        factors = {"a": torch.ones(2, 3), "b": torch.ones(1, 3)}
        zeros = {"a": torch.zeros(3), "b": torch.zeros(3)}
        with pytest.raises(ValueError, match=r"^factors of 'b' must be of shape \(2, 3\), got \(1, 3\)$"):
            LowRankGaussian(zeros, zeros, factors)


class TestSampling:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_is_the_mean_the_weights_noise_and_the_factors_noise(self, dtype):
        q = make(dtype=dtype)
        samples = q.sample(3, seed=5, first=7)
        for index, (name, mean) in enumerate(q.mean.items()):
            for i in range(3):
                eps = noise.normal(5, 0, 7 + i, index, mean.shape, stream=noise.POSTERIOR).to(dtype)
                z = noise.normal(5, 1, 7 + i, 0, (RANK,), stream=noise.POSTERIOR).to(dtype)
                expected = mean + q.diagonal[name].sqrt() * eps + torch.einsum("r,r...->...", z, q.factors[name])
                torch.testing.assert_close(samples[name][i], expected)

    def test_mean_and_covariance(self):
        count = 5000
        q = make({"a": (15, 10), "b": (30,)}, rank=2)
        x = flat(q.sample(count, seed=1), count) - flat(q.mean)
        expected = covariance(q)
        variance = expected.diagonal()
        assert (x.mean(0).abs() < BOUND * (variance / count).sqrt()).all()
        error = ((variance[:, None] * variance + expected**2) / count).sqrt()
        assert ((x.T @ x / count - expected).abs() < 5.5 * error).all()  # 16,000 of them
        white = torch.linalg.solve_triangular(torch.linalg.cholesky(expected), x.T, upper=False)
        z = (white.square().mean() - 1) * math.sqrt(white.numel() / 2)
        assert abs(z) < BOUND
        assert abs(0.01 * math.sqrt(white.numel() / 2)) > BOUND  # what an error of 1% would be

    def test_chunks_are_all_at_once(self):
        q = make(dtype=torch.float32)
        whole = q.sample(6, seed=3)
        chunks = [q.sample(2, seed=3, first=first) for first in (0, 2, 4)]
        assert_same({n: torch.cat([chunk[n] for chunk in chunks]) for n in q.mean}, whole)

    def test_without_factors_it_is_diagonal(self):
        q = make(rank=0)
        diagonal = ba.DiagonalGaussian(q.mean, q.diagonal)
        assert_same(q.sample(3), diagonal.sample(3))
        theta = q.sample(2, seed=1)
        close(q.log_prob(theta), diagonal.log_prob(theta))
        close(q.entropy(), diagonal.entropy())
        close(q.kl_divergence(2.0), diagonal.kl_divergence(2.0))

    def test_of_large_tensors(self):
        q = make({"a": (200, 100), "b": (3,)}, dtype=torch.float32)
        sample = q.sample(1, seed=2, first=3)["a"][0]
        eps = noise.normal(2, 0, 3, 0, (200, 100), stream=noise.POSTERIOR)
        z = noise.normal(2, 1, 3, 0, (RANK,), stream=noise.POSTERIOR)
        expected = q.mean["a"] + q.diagonal["a"].sqrt() * eps + torch.einsum("r,rij->ij", z, q.factors["a"])
        torch.testing.assert_close(sample, expected)

    def test_in_a_network(self):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        q = make({n: p.shape for n, p in model.named_parameters()}, dtype=torch.float32)
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        with q.draws(model, 4) as put:
            for number in (1, None, 0):
                put(number)
                expected = q.mean if number is None else {n: s[number] for n, s in q.sample(2, seed=4).items()}
                assert_same({n: p.detach() for n, p in model.named_parameters()}, expected)
        assert_same({n: p.detach() for n, p in model.named_parameters()}, before)

    def test_low_precision_weights_get_the_rounded_sample(self):
        model = nn.Linear(3, 2).bfloat16()
        q = make({n: p.shape for n, p in model.named_parameters()}, dtype=torch.float32)
        with q.applied(model, 0):
            for name, parameter in model.named_parameters():
                assert torch.equal(parameter, q.sample(1)[name][0].bfloat16())

    def test_predictive_moments_of_a_linear_model(self):
        model, x = nn.Linear(6, 1, bias=False, **F64), draw(2, 6, seed=3)
        q = make({"weight": (1, 6)}, rank=2)
        found = ba.predict(model, q, x, likelihood=ba.Gaussian(), mc_samples=5000, seed=2)
        variance = (x @ covariance(q) @ x.T).diagonal()
        assert ((found.mean[:, 0] - x @ flat(q.mean)).abs() < BOUND * (variance / 5000).sqrt()).all()
        assert ((found.epistemic[:, 0] / variance - 1).abs() < BOUND * math.sqrt(2 / 5000)).all()


class TestScores:
    @pytest.mark.parametrize("spread", [1.0, 1e-2, 1e2])
    @pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
    def test_log_prob(self, leading, spread):
        q = make(spread=spread)
        theta = {n: draw(*leading, *m.shape, seed=5) for n, m in q.mean.items()}
        close(q.log_prob(theta), torch_normal(q).log_prob(flat(theta, *leading)))

    def test_log_prob_of_nearly_low_rank(self):
        """Woodbury's formula loses ten digits here."""
        q = make(spread=1e-10)
        theta = {name: sample[0] for name, sample in q.sample(1, seed=3).items()}
        residual = (flat(theta) - flat(q.mean))[None]
        f, d = flat(q.factors, RANK), flat(q.diagonal)
        inside = f * d.rsqrt()
        basis = torch.linalg.qr(torch.cat([inside, torch.eye(RANK, **F64)], 1).T)[0]
        padded = torch.cat([residual * d.rsqrt(), torch.zeros(1, RANK, **F64)], 1)
        square = (padded @ torch.linalg.qr(basis, mode="complete")[0][:, RANK:]).square().sum()
        determinant = d.log().sum() + torch.linalg.slogdet(torch.eye(RANK, **F64) + inside @ inside.T)[1]
        expected = -0.5 * (square + determinant + SIZE * math.log(2 * math.pi))
        close(q.log_prob(theta), expected, rtol=1e-8, atol=0.0)

    def test_entropy_and_divergence_from_a_precision(self):
        q = make()
        close(q.entropy(), torch_normal(q).entropy())
        prior = MultivariateNormal(torch.zeros(SIZE, **F64), torch.eye(SIZE, **F64) / 0.3)
        close(q.kl_divergence(0.3), torch_kl(torch_normal(q), prior))

    def test_divergence_between_all_kinds(self):
        q, other = make(), make(seed=50, rank=2)
        dense = ba.DenseGaussian(other.mean, covariance(other))
        for prior in (other, dense):
            close(q.kl_divergence(prior), torch_kl(torch_normal(q), torch_normal(other)))
        diagonal = other.marginal()
        independent = MultivariateNormal(flat(other.mean), flat(other.variance).diag())
        close(q.kl_divergence(diagonal), torch_kl(torch_normal(q), independent))
        close(diagonal.kl_divergence(q), torch_kl(independent, torch_normal(q)))
        close(dense.kl_divergence(q), torch_kl(torch_normal(other), torch_normal(q)))
        shuffled = LowRankGaussian(*(dict(reversed(p.items())) for p in (other.mean, other.diagonal, other.factors)))
        close(q.kl_divergence(shuffled), q.kl_divergence(other))
        assert q.kl_divergence(q) == pytest.approx(0.0, abs=1e-12)

    def test_point_masses_are_left_out(self):
        q, keep = with_points(make(), [0, 7, 20, 23])
        theta = {n: torch.where(q.variance[n] == 0, q.mean[n], m + 1.0) for n, m in q.mean.items()}
        close(q.log_prob(theta), torch_normal(q, keep).log_prob(flat(theta)[keep]))
        close(q.entropy(), torch_normal(q, keep).entropy())
        count = int(keep.sum())
        prior = MultivariateNormal(torch.zeros(count, **F64), torch.eye(count, **F64))
        close(q.kl_divergence(1.0), torch_kl(torch_normal(q, keep), prior))
        assert q.log_prob({n: t + 1.0 for n, t in theta.items()}) == -math.inf
        assert make().kl_divergence(q.marginal()) == math.inf
        assert make().kl_divergence(q) == math.inf
        assert torch.equal(flat(q.sample(3), 3)[:, ~keep], flat(q.mean)[~keep].expand(3, -1))

    def test_float32_is_computed_in_float64(self):
        q = make(dtype=torch.float32)
        theta = q.sample(2)
        wide = q.to(dtype=torch.float64)
        for found, expected in (
            (q.log_prob(theta), wide.log_prob(theta)),
            (q.entropy(), wide.entropy()),
            (q.kl_divergence(2.0), wide.kl_divergence(2.0)),
        ):
            assert found.dtype == torch.float64
            close(found, expected, rtol=1e-12, atol=1e-12)

    def test_a_weight_that_moves_with_the_factors_alone_has_no_density(self):
        q = make()
        q = LowRankGaussian(q.mean, {**q.diagonal, "m/bias": torch.tensor([1.0, 0.0, 1.0], **F64)}, q.factors)
        assert len(q.sample(4)["m/bias"][:, 1].unique()) == 4
        message = "^diagonal of 'm/bias' must be positive where factors are not 0 for a density, got 0$"
        other = make(seed=50)
        for score in (
            lambda: q.log_prob(q.mean),
            q.entropy,
            lambda: q.kl_divergence(1.0),
            lambda: q.kl_divergence(other),
            lambda: other.kl_divergence(q),
        ):
            with pytest.raises(ValueError, match=message):
                score()

    def test_correlated_priors_are_for_small_networks(self, monkeypatch):
        monkeypatch.setattr(low_rank, "MAX_WEIGHTS", 23)
        q = make()
        message = "^a LowRankGaussian must have at most 23 weights for the divergence .* correlations, got 24$"
        with pytest.raises(ValueError, match=message):
            q.kl_divergence(q)
        assert q.kl_divergence(1.0) > 0

    def test_errors(self):
        q = make({"a": (2,)})
        with pytest.raises(ValueError, match=r"^theta\['a'\] must end in the shape \(2,\), got \(3,\)$"):
            q.log_prob({"a": torch.zeros(3)})
        with pytest.raises(ValueError, match=r"^prior must be a positive, finite precision or a Gaussian .*, got 0$"):
            q.kl_divergence(0)
        with pytest.raises(ValueError, match=r"^prior must have the weights 'a', got none of that name$"):
            q.kl_divergence(make({"b": (2,)}))


class TestPruning:
    def test_rows_and_columns_go(self):
        q = make(lr=0.1)
        pruned = q.prune(0.5)
        gone = flat(q.mean).abs() / covariance(q).diagonal().sqrt()
        gone = torch.zeros(SIZE, dtype=torch.bool).index_fill(0, gone.argsort()[:12], True)
        assert torch.equal(flat(pruned.mean), torch.where(gone, 0.0, flat(q.mean)))
        close(covariance(pruned), torch.where(gone | gone[:, None], 0.0, covariance(q)))
        assert pruned.hyperparameters == {"lr": 0.1, "pruned_fraction": 0.5}

    def test_by_magnitude(self):
        q = make()
        gone = flat(q.prune(0.25, by="magnitude").mean) == 0
        assert gone.sum() == 6
        assert flat(q.mean)[gone].abs().max() < flat(q.mean)[~gone].abs().min()


class TestFromPrecision:
    """The widest directions of a covariance beside the variances of weights given all others."""

    def precision(self):
        half = draw(SIZE, SIZE, seed=7)
        return half @ half.T + 0.1 * torch.eye(SIZE, **F64)

    def expected(self, precision, rank):
        """A loop over the eigenvectors of the precision's correlations."""
        spread = [1.0 / math.sqrt(precision[i, i]) for i in range(SIZE)]
        scaled = torch.tensor([[spread[i] * precision[i, j] * spread[j] for j in range(SIZE)] for i in range(SIZE)])
        values, vectors = torch.linalg.eigh(scaled.double())
        found = torch.eye(SIZE, **F64)
        for value, vector in list(zip(values, vectors.T, strict=True))[:rank]:
            if value < 1.0:
                found += (1.0 / value - 1.0) * torch.outer(vector, vector)
        return found * torch.tensor(spread, **F64) * torch.tensor(spread, **F64)[:, None]

    @pytest.mark.parametrize("rank", [0, 3, SIZE])
    def test_against_a_loop(self, rank):
        precision, mean = self.precision(), make().mean
        q = LowRankGaussian.from_precision(mean, precision, rank, hyperparameters={"lr": 0.1})
        torch.testing.assert_close(covariance(q), self.expected(precision, rank), rtol=1e-6, atol=1e-6)
        assert q.rank == (rank if rank < SIZE else int((self.correlations(precision) < 1.0).sum()))
        assert_same(q.mean, mean)
        assert q.hyperparameters == {"lr": 0.1}

    def correlations(self, precision):
        spread = precision.diagonal().rsqrt()
        return torch.linalg.eigvalsh(precision * spread * spread[:, None])

    def test_narrow_means_have_narrow_factors(self):
        q = LowRankGaussian.from_precision(make(dtype=torch.float32).mean, self.precision(), 3)
        assert {t.dtype for t in q.tensors().values()} == {torch.float32}

    def test_what_makes_no_gaussian_is_refused(self):
        mean, precision = make().mean, self.precision()
        with pytest.raises(ValueError, match=r"^rank must be a whole number of at least 0, got -1"):
            LowRankGaussian.from_precision(mean, precision, -1)
        with pytest.raises(ValueError, match=r"^precision must be of shape \(24, 24\), got \(23, 23\)"):
            LowRankGaussian.from_precision(mean, precision[1:, 1:], 2)
        with pytest.raises(ValueError, match=r"^precision must be finite with a positive diagonal, got other numbers"):
            LowRankGaussian.from_precision(mean, -precision, 2)
        indefinite = precision - 2.0 * torch.linalg.eigvalsh(precision)[0] * torch.eye(SIZE, **F64)
        with pytest.raises(ValueError, match=r"^precision must be positive definite, got -.* as the smallest"):
            LowRankGaussian.from_precision(mean, indefinite, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_file(tmp_path, dtype):
    q = make(dtype=dtype, lr=0.1)
    q.save(tmp_path / "q")
    loaded = ba.load_posterior(tmp_path / "q")
    assert type(loaded) is LowRankGaussian
    assert_same(loaded.tensors(), q.tensors())
    assert_same(loaded.sample(3, seed=1), q.sample(3, seed=1))
    assert loaded.hyperparameters == {"lr": 0.1}


def test_to():
    q = make(lr=0.1)
    narrow = q.to("cpu", torch.float32)
    assert_same(narrow.tensors(), {n: t.float() for n, t in q.tensors().items()})
    assert narrow.hyperparameters == {"lr": 0.1}
