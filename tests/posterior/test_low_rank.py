"""The Gaussian with a diagonal plus a low-rank covariance: against dense matrices in float64."""

import math

import pytest
import torch

import bayesadam as ba
from bayesadam import noise
from bayesadam.posterior import LowRankGaussian
from bayesadam.posterior import low_rank as module
from posterior.kinds import F64, SIZE, assert_same, close, covariance, draw, flat, low_rank, means

RANK = 3


class TestSampling:
    @pytest.mark.parametrize("shapes", [{"z": (5, 4), "a": ()}, {"a": (200, 100), "b": (3,)}])
    def test_is_the_mean_the_weights_noise_and_the_factors_noise(self, shapes):
        q = low_rank(means(shapes, dtype=torch.float32))
        samples = q.sample(3, seed=5, first=7)
        for index, (name, mean) in enumerate(q.mean.items()):
            for i in range(3):
                eps = noise.normal(5, 0, 7 + i, index, mean.shape, stream=noise.POSTERIOR)
                z = noise.normal(5, 1, 7 + i, 0, (RANK,), stream=noise.POSTERIOR)
                expected = mean + q.diagonal[name].sqrt() * eps + torch.einsum("r,r...->...", z, q.factors[name])
                torch.testing.assert_close(samples[name][i], expected)

    def test_without_factors_it_is_diagonal(self):
        q = low_rank(rank=0)
        diagonal = ba.DiagonalGaussian(q.mean, q.diagonal)
        assert_same(q.sample(3), diagonal.sample(3))
        theta = q.sample(2, seed=1)
        close(q.log_prob(theta), diagonal.log_prob(theta))
        close(q.kl_divergence(2.0), diagonal.kl_divergence(2.0))


def test_log_prob_of_nearly_low_rank():
    """Woodbury's formula loses ten digits here."""
    q = low_rank(spread=1e-10)
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


def test_a_weight_that_moves_with_the_factors_alone_has_no_density():
    q = low_rank()
    q = LowRankGaussian(q.mean, {**q.diagonal, "m/bias": torch.tensor([1.0, 0.0, 1.0], **F64)}, q.factors)
    assert len(q.sample(4)["m/bias"][:, 1].unique()) == 4
    message = "^diagonal of 'm/bias' must be positive wherever factors are not 0 if .* a density, got 0$"
    other = low_rank(seed=50)
    for score in (
        lambda: q.log_prob(q.mean),
        q.entropy,
        lambda: q.kl_divergence(1.0),
        lambda: q.kl_divergence(other),
        lambda: other.kl_divergence(q),
    ):
        with pytest.raises(ValueError, match=message):
            score()


def test_correlated_priors_are_for_small_networks(monkeypatch):
    monkeypatch.setattr(module, "MAX_WEIGHTS", 23)
    q = low_rank()
    message = "^a LowRankGaussian must have at most 23 weights for the divergence .* correlations, got 24$"
    with pytest.raises(ValueError, match=message):
        q.kl_divergence(q)
    assert q.kl_divergence(1.0) > 0


def test_rows_and_columns_go():
    q = low_rank(lr=0.1)
    pruned = q.prune(0.5)
    gone = flat(q.mean).abs() / covariance(q).diagonal().sqrt()
    gone = torch.zeros(SIZE, dtype=torch.bool).index_fill(0, gone.argsort()[:12], True)
    assert torch.equal(flat(pruned.mean), torch.where(gone, 0.0, flat(q.mean)))
    close(covariance(pruned), torch.where(gone | gone[:, None], 0.0, covariance(q)))
    assert pruned.hyperparameters == {"lr": 0.1, "pruned_fraction": 0.5}


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
        precision, mean = self.precision(), means()
        q = LowRankGaussian.from_precision(mean, precision, rank, hyperparameters={"lr": 0.1})
        torch.testing.assert_close(covariance(q), self.expected(precision, rank), rtol=1e-6, atol=1e-6)
        assert q.rank == (rank if rank < SIZE else int((self.correlations(precision) < 1.0).sum()))
        assert_same(q.mean, mean)
        assert q.hyperparameters == {"lr": 0.1}

    def correlations(self, precision):
        spread = precision.diagonal().rsqrt()
        return torch.linalg.eigvalsh(precision * spread * spread[:, None])

    def test_narrow_means_have_narrow_factors(self):
        q = LowRankGaussian.from_precision(means(dtype=torch.float32), self.precision(), 3)
        assert {t.dtype for t in q.tensors().values()} == {torch.float32}
        q = LowRankGaussian.from_precision({"w": torch.ones(2).half()}, 1e9 * torch.eye(2, **F64), 1)
        assert q.variance["w"].tolist() == pytest.approx([1e-9, 1e-9])
