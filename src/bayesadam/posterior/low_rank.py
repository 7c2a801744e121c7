"""The Gaussian whose covariance is a diagonal plus a matrix of low rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bayesadam import noise
from bayesadam.checks import check, is_whole, require
from bayesadam.functional import gaussian
from bayesadam.functional.autocast import without_autocast
from bayesadam.functional.curvature import wide
from bayesadam.posterior.correlated import CorrelatedGaussian
from bayesadam.posterior.dense import MAX_WEIGHTS
from bayesadam.posterior.diagonal import DiagonalGaussian
from bayesadam.posterior.gaussian_posterior import GaussianPosterior, sum_all

_STEP = 1
"""Step number of the noise of the factors; the noise of the weights has step 0."""


class LowRankGaussian(CorrelatedGaussian):
    """A Gaussian over all weights together, with covariance ``diag(d) + sum_r f_r f_r'``.

    No matrix of the size of the covariance is formed, so it can be used for networks of any size. A weight whose ``d``
    and factors are all 0 is a point mass, as in :class:`DiagonalGaussian`. A weight with ``d = 0`` moves with the
    factors only: it is sampled like any other, but the distribution may then lie in a subspace and have no density, so
    ``log_prob``, ``entropy`` and ``kl_divergence`` raise an error.

    Args:
        mean: Mean of every weight tensor by name. The tensors are kept, not copied.
        diagonal: Diagonal ``d``, of the same names, shapes and devices; finite and not negative.
        factors: Factors ``f`` by the same names, finite, of shape ``(R, *shape)`` with the same rank ``R`` for all
            names; ``R`` may be 0.
        hyperparameters: JSON values that say how the posterior was found.

    Attributes:
        rank: Number of factors ``R``.
        variance: Marginal variance of every weight by name, ``d + sum_r f_r^2``, in float64.

    Raises:
        ValueError: Names or shapes differ, or the values are not those of a Gaussian.
    """

    parts = ("mean", "diagonal", "factors")

    def __init__(
        self,
        mean: Mapping[str, Tensor],
        diagonal: Mapping[str, Tensor],
        factors: Mapping[str, Tensor],
        *,
        hyperparameters: Mapping[str, Any] | None = None,
    ) -> None:
        independent = DiagonalGaussian(mean, diagonal)
        if list(mean) != list(factors):
            raise ValueError(f"factors must have the names of mean {list(mean)}, got {list(factors)}")
        self.rank = next(len(factor) if factor.ndim else 0 for factor in factors.values())
        for name, factor in factors.items():
            if factor.shape != (self.rank, *mean[name].shape):
                raise ValueError(
                    f"factors of {name!r} must be of shape {(self.rank, *mean[name].shape)}, got {tuple(factor.shape)}"
                )
            if not factor.is_floating_point():
                raise ValueError(f"factors of {name!r} must be a floating-point tensor, got dtype {factor.dtype}")
        require(
            [
                (factor.isfinite().all(), partial(ValueError, f"factors of {name!r} must be finite, got inf or nan"))
                for name, factor in factors.items()
            ]
        )
        self.mean = independent.mean
        self.diagonal = independent.variance
        self.factors = dict(factors)
        self.variance = {n: d.double() + factors[n].double().square().sum(0) for n, d in diagonal.items()}
        self.hyperparameters = dict(hyperparameters or {})

    @classmethod
    def from_precision(
        cls,
        mean: Mapping[str, Tensor],
        precision: Tensor,
        rank: int,
        *,
        hyperparameters: Mapping[str, Any] | None = None,
    ) -> LowRankGaussian:
        """Approximate the Gaussian with a full precision matrix by its widest directions and a diagonal.

        Let ``s_i^2 = 1 / P_ii`` be the variance of a weight given all others, and ``v`` and ``e`` the eigenvectors and
        eigenvalues of the matrix ``s_i P_ij s_j``, whose diagonal is 1. The covariance is exactly ``S (I + sum_k (1 /
        e_k - 1) v_k v_k') S`` with the sum over all eigenvectors. Here the sum is over the smallest ``e_k``, at most
        ``rank`` of them and only those below 1. With rank 0 this is the diagonal Gaussian with the smallest divergence
        ``KL(q || p)`` from the full one.

        Args:
            mean: Mean of every weight tensor by name, all on one device.
            precision: Precision matrix ``(D, D)``, symmetric up to rounding and positive definite; the weights are
                numbered tensor by tensor, as in :class:`bayesadam.DenseGaussian`.
            rank: Largest number of factors ``R``.
            hyperparameters: JSON values that say how the posterior was found.

        Raises:
            ValueError: The rank is below 0, or the matrix has another shape or is not finite and positive definite.
        """
        check("rank", rank, "a whole number of at least 0", lambda value: is_whole(value, 0))
        size = sum(value.numel() for value in mean.values())
        if precision.shape != (size, size):
            raise ValueError(f"precision must be of shape {(size, size)}, got {tuple(precision.shape)}")
        matrix = precision.detach().double()
        if not matrix.isfinite().all() or not (matrix.diagonal() > 0).all():
            raise ValueError("precision must be finite with a positive diagonal, got other numbers")
        spread = matrix.diagonal().rsqrt()
        values, vectors = torch.linalg.eigh(torch.lerp(matrix, matrix.T, 0.5) * spread * spread.unsqueeze(1))
        if not values[0] > size * torch.finfo(torch.float64).eps:
            raise ValueError(
                f"precision must be positive definite, got {values[0].item():.3g} as the smallest eigenvalue of its "
                "correlations"
            )
        eigenvalues = values[:rank]
        eigenvalues = eigenvalues[eigenvalues < 1.0]
        rows = (vectors[:, : len(eigenvalues)] * (1.0 / eigenvalues - 1.0).sqrt()).T * spread
        sizes = [value.numel() for value in mean.values()]
        diagonal, factors = {}, {}
        for (name, value), variance, part in zip(
            mean.items(), torch.split(spread.square(), sizes), torch.split(rows, sizes, 1), strict=True
        ):
            diagonal[name] = variance.view(value.shape).to(wide(value.dtype))
            factors[name] = part.reshape(len(rows), *value.shape).to(wide(value.dtype))
        return cls(mean, diagonal, factors, hyperparameters=hyperparameters)

    def _scale(self, names: Iterable[str]) -> Tensor:
        """Cholesky factor of the covariance of a small network's weights, as in the base class.

        Raises:
            ValueError: There are more than ``MAX_WEIGHTS`` weights, or there is no density.
        """
        if self.num_weights > MAX_WEIGHTS:
            raise ValueError(
                f"a LowRankGaussian must have at most {MAX_WEIGHTS:,} weights for the divergence from or to a "
                f"posterior with correlations, got {self.num_weights:,}"
            )
        self._check_density()
        names = list(names)
        spread = torch.cat([self.diagonal[name].double().flatten() for name in names]).sqrt()
        factors = torch.cat([self._matrix(name).double() for name in names], 1)
        return gaussian.cholesky_of_rows(torch.cat([spread.diag(), factors.T], 1))

    def writer(self, seed: int = 0) -> Callable[[Mapping[str, Tensor], int | None], None]:
        """Return a function that writes ``mean + sum_r f_r z_r + sqrt(d) eps`` in place, as in the base class.

        ``eps`` is the noise that :class:`DiagonalGaussian` draws. The function keeps one buffer of the weights' size.
        """
        center = {name: mean.clone(memory_format=torch.contiguous_format) for name, mean in self.mean.items()}
        factors = {name: self._matrix(name) for name in self.factors}
        independent = DiagonalGaussian(center, self.diagonal)
        std = {name: self.diagonal[name].sqrt() for name in independent.random_names}
        write_around = independent.writer_around(std, seed)
        z = torch.empty(self.rank, device=next(iter(center.values())).device)

        @torch.no_grad()
        def write(targets: Mapping[str, Tensor], number: int | None) -> None:
            for name, mean in self.mean.items():
                center[name].copy_(mean)
            if number is not None:
                noise.fill_many({0: z}, seed, _STEP, number, stream=noise.POSTERIOR)
                with without_autocast([z]):
                    for name, factor in factors.items():
                        center[name] += (z.to(factor) @ factor).view(center[name].shape)
            write_around(targets, number)

        return write

    def _log_prob(self, theta: Mapping[str, Tensor]) -> Tensor:
        """The joint density, at a cost of ``O(D R^2)`` for ``D`` weights.

        It uses the Woodbury identity and the matrix determinant lemma, by a QR decomposition (see :meth:`_whitened`).
        """
        spread, q, r = self._whitened()
        residual = self._flat(theta) - self._flat(self.mean)
        leading = residual.shape[:-1]
        residual = residual.reshape(-1, len(spread)).T
        point = (spread == 0).unsqueeze(1)
        far = residual.isinf() | (point & (residual != 0))
        white = torch.where(far | point, 0.0, residual) / torch.where(point, 1.0, spread.unsqueeze(1))
        white = torch.cat([white, white.new_zeros(self.rank, white.shape[1])])
        white = white - q @ (q.T @ white)
        independent = gaussian.log_prob(torch.zeros_like(spread), torch.zeros_like(spread), spread.square()).sum()
        density = independent - 0.5 * white.square().sum(0) - r.diagonal().abs().log().sum()
        return torch.where(far.any(0), -torch.inf, density).view(leading)

    def entropy(self) -> Tensor:
        """Differential entropy of the random weights in nats; 0-d float64.

        Raises:
            ValueError: A weight moves with the factors only.
        """
        _, _, r = self._whitened()
        return sum_all(gaussian.entropy(d) for d in self.diagonal.values()) + r.diagonal().abs().log().sum().cpu()

    def kl_divergence(self, prior: float | GaussianPosterior) -> Tensor:
        """``KL(q || prior)`` in nats, summed (not averaged) over the random weights; 0-d float64.

        If the prior's weights are independent, it is the divergence of the marginals plus the total correlation ``0.5
        (sum_i log variance_i - log det covariance)``, at a cost of ``O(D R^2)``.

        Args:
            prior: A prior precision (the prior is then ``N(0, 1 / prior)`` for every weight), or another Gaussian
                posterior with the same names and shapes; if its weights are correlated, there may be at most
                ``MAX_WEIGHTS`` of them.

        Raises:
            ValueError: The precision is not positive, the prior is over other weights, there are too many weights for
                this prior, or a weight moves with the factors only.
        """
        if isinstance(prior, GaussianPosterior) and not isinstance(prior, DiagonalGaussian):
            return super().kl_divergence(prior)
        return self.marginal().kl_divergence(prior) + self._total_correlation()

    def _scaled(self, factor: float, hyperparameters: Mapping[str, Any]) -> LowRankGaussian:
        """The scaled posterior, as in the base class."""
        diagonal = {name: value * factor**2 for name, value in self.diagonal.items()}
        factors = {name: value * factor for name, value in self.factors.items()}
        return self._with_parts(hyperparameters, diagonal=diagonal, factors=factors)

    def _matrix(self, name: str) -> Tensor:
        """The factors of one tensor as a matrix ``(R, weights)``."""
        return self.factors[name].reshape(self.rank, self.mean[name].numel())

    def _whitened(self) -> tuple[Tensor, Tensor, Tensor]:
        """``sqrt(d)``, ``(D,)``, and ``Q``, ``R`` of the QR decomposition of ``F' / sqrt(d)`` stacked on the identity.

        If ``b`` is the residual divided by ``sqrt(d)``, stacked on zeros, then ``b' (I - Q Q') b`` is the quadratic
        form of the inverse covariance, without the difference of large numbers in Woodbury's identity; and ``log det
        covariance = sum log d + 2 sum log |R_rr|``.
        """
        self._check_density()
        spread = self._flat(self.diagonal).sqrt()
        factors = self._flat(self.factors)
        rows = factors / torch.where(spread == 0, 1.0, spread)
        q, r = torch.linalg.qr(torch.cat([rows, torch.eye(self.rank, dtype=rows.dtype, device=rows.device)], 1).T)
        return spread, q, r

    def _total_correlation(self) -> Tensor:
        """``KL(q || product of its marginals)``, 0-d float64 on the CPU, never negative."""
        spread, _, r = self._whitened()
        factors = self._flat(self.factors)
        ratio = factors.square().sum(0) / torch.where(spread == 0, 1.0, spread).square()
        return (0.5 * ratio.log1p().sum() - r.diagonal().abs().log().sum()).clamp_min(0.0).cpu()

    def _check_density(self) -> None:
        for name, diagonal in self.diagonal.items():
            if ((diagonal == 0) & (self.variance[name] > 0)).any():
                raise ValueError(
                    f"diagonal of {name!r} must be positive wherever factors are not 0 if the posterior is to "
                    "have a density, got 0"
                )
