"""The Gaussian with a full covariance over all weights of a small network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bayesadam import noise
from bayesadam.functional import gaussian
from bayesadam.posterior.correlated import CorrelatedGaussian
from bayesadam.posterior.gaussian_posterior import check_means

MAX_WEIGHTS = 10_000
"""Largest number of weights. A float64 matrix then has 0.8 GB, several copies are needed, and its factor takes ten
seconds or more.
"""


TOGETHER = 64
"""Number of samples that are multiplied by the factor together, which has to be read from memory each time."""
ROWS = 256
"""Number of rows of the factor in one product, of which the zeros to the right are left out."""


class DenseGaussian(CorrelatedGaussian):
    """A Gaussian over all ``D`` weights of a small network together, with any covariance.

    The weights are numbered tensor by tensor, in the order of ``mean``, each flattened row by row. The posterior keeps
    and saves the Cholesky factor of the covariance in float64, whatever the dtype of the means: a rounded factor still
    belongs to a covariance, whereas a rounded covariance may be indefinite.

    A variance of zero is a point mass (a pruned weight, or a parameter that was trained without noise), and then the
    whole row and column are zero. Samples never move it, ``log_prob`` is minus infinity unless it is at its mean, and
    it adds nothing to the entropy and the KL divergence.

    Args:
        mean: Mean of every weight tensor by name, on one device. The tensors are kept, not copied.
        covariance: Matrix of shape ``(D, D)`` with ``D`` at most ``MAX_WEIGHTS``; symmetric up to rounding, and
            positive definite over the weights whose variance is not zero.
        hyperparameters: JSON values that say how the posterior was found.

    Attributes:
        variance: Marginal variance of every weight by name, in float64.
        scale_tril: The lower triangular ``L`` with ``covariance = L L'`` and a positive diagonal, ``(D, D)`` in
            float64; zero in rows and columns of point masses.

    Raises:
        ValueError: There are too many weights, the matrix has another shape, or the values are not those of a Gaussian.
    """

    def __init__(
        self, mean: Mapping[str, Tensor], covariance: Tensor, *, hyperparameters: Mapping[str, Any] | None = None
    ) -> None:
        matrix = _checked(mean, covariance, "covariance")
        _check_diagonal(matrix, "covariance")
        scale_tril = _embedded(_cholesky, _symmetric(matrix, covariance.dtype, "covariance"), "covariance")
        self._keep(mean, scale_tril, hyperparameters)

    @classmethod
    def _made(
        cls, mean: Mapping[str, Tensor], scale_tril: Tensor, hyperparameters: Mapping[str, Any] | None
    ) -> DenseGaussian:
        """Make a posterior from a factor without the checks."""
        posterior = cls.__new__(cls)
        posterior._keep(mean, scale_tril, hyperparameters)
        return posterior

    @classmethod
    def from_scale_tril(
        cls, mean: Mapping[str, Tensor], scale_tril: Tensor, *, hyperparameters: Mapping[str, Any] | None = None
    ) -> DenseGaussian:
        """Make a posterior from the Cholesky factor of the covariance.

        Args:
            mean: Mean of every weight tensor by name, as for the class.
            scale_tril: Lower triangular matrix of shape ``(D, D)`` with a positive diagonal; where the diagonal is
                zero, the whole row and column are zero.
            hyperparameters: JSON values, as for the class.

        Raises:
            ValueError: As for the class.
        """
        matrix = _checked(mean, scale_tril, "scale_tril")
        upper = matrix.triu(1)
        if upper.any():
            raise ValueError(f"scale_tril must be lower triangular, got {_first(upper)} above the diagonal")
        _check_diagonal(matrix, "scale_tril")
        return cls._made(mean, matrix, hyperparameters)

    @classmethod
    def from_precision(
        cls,
        mean: Mapping[str, Tensor],
        precision: Tensor,
        *,
        hyperparameters: Mapping[str, Any] | None = None,
        random: Tensor | None = None,
    ) -> DenseGaussian:
        """Make a posterior from the inverse of the covariance; the covariance itself is not formed.

        Args:
            mean: Mean of every weight tensor by name, as for the class.
            precision: Matrix of shape ``(D, D)``, symmetric up to rounding and positive definite over the random
                weights.
            hyperparameters: JSON values, as for the class.
            random: Boolean mask of shape ``(D,)`` of the random weights. The others are point masses, and their rows
                and columns of the precision are not used (they only have to be finite). Default: all weights are
                random.

        Raises:
            ValueError: As for the class, or the mask has another shape or dtype.
        """
        matrix = _checked(mean, precision, "precision")
        if random is None:
            random = torch.ones(len(matrix), dtype=torch.bool)
        if random.dtype != torch.bool or random.shape != matrix.shape[:1]:
            raise ValueError(
                f"random must be a boolean tensor of shape {tuple(matrix.shape[:1])}, "
                f"got {random.dtype} of shape {tuple(random.shape)}"
            )
        random = random.to(matrix.device)
        bad = random & ~(matrix.diagonal() > 0)
        if bad.any():
            value = matrix.diagonal()[bad][0].item()
            raise ValueError(f"precision must have a positive diagonal over the random weights, got {value!r}")
        matrix = torch.where(random & random.unsqueeze(1), matrix, 0.0)
        scale_tril = _embedded(_inverse_cholesky, _symmetric(matrix, precision.dtype, "precision"), "precision")
        return cls._made(mean, scale_tril, hyperparameters)

    @classmethod
    def from_checked_precision(
        cls, mean: Mapping[str, Tensor], precision: Tensor, *, hyperparameters: Mapping[str, Any] | None = None
    ) -> DenseGaussian:
        """Make a posterior as :meth:`from_precision` does, from values that are known to be finite and to fit.

        Args:
            mean: Mean of every weight tensor by name, as for the class.
            precision: Matrix of shape ``(D, D)`` in float64 with a positive diagonal, symmetric up to rounding.
            hyperparameters: JSON values, as for the class.

        Raises:
            ValueError: The matrix is not numerically positive definite.
        """
        matrix = torch.lerp(precision, precision.T, 0.5)
        return cls._made(mean, _inverse_cholesky(matrix, "precision"), hyperparameters)

    def _keep(self, mean: Mapping[str, Tensor], scale_tril: Tensor, hyperparameters: Mapping[str, Any] | None) -> None:
        self.mean = dict(mean)
        # Copied, since strides and alignment decide the order of sums, and so the bits of samples.
        self.scale_tril = scale_tril.clone(memory_format=torch.contiguous_format)
        self.variance = self._split(self.scale_tril.square().sum(1))
        self._latest: tuple[Any, Any, Tensor] = None, None, torch.empty(0)
        self.hyperparameters = dict(hyperparameters or {})

    @cached_property
    def covariance(self) -> Tensor:
        """Covariance matrix, ``(D, D)`` in float64; equal up to rounding to the one given. It is computed at the first
        access.
        """
        lower = (self.scale_tril @ self.scale_tril.T).tril()
        return lower + lower.tril(-1).T

    def _scale(self, names: Iterable[str]) -> Tensor:
        """Cholesky factor of the covariance of the named tensors' weights, in this order, as in the base class."""
        names = list(names)
        if names == list(self.mean):
            return self.scale_tril
        numbers = self._split(torch.arange(self.num_weights, device=self.scale_tril.device))
        return gaussian.cholesky_of_rows(self.scale_tril[torch.cat([numbers[name].flatten() for name in names])])

    def writer(self, seed: int = 0) -> Callable[[Mapping[str, Tensor], int | None], None]:
        """Return a function that writes ``mean + L eps`` in place, as in the base class.

        ``eps`` is the noise that :class:`DiagonalGaussian` draws, so the samples agree where the covariance is
        diagonal.
        """
        center = self._flat(self.mean)

        @torch.no_grad()
        def write(targets: Mapping[str, Tensor], number: int | None) -> None:
            draw = self.mean
            if number is not None:
                noise.checked(seed, 0, number, 0, noise.POSTERIOR)
                draw = self._split(center + self._deviations(seed, number // TOGETHER)[number % TOGETHER])
            for name, mean in self.mean.items():
                targets[name].detach().copy_(draw[name].to(mean.dtype))
            torch.clear_autocast_cache()

        return write

    @torch.no_grad()
    def _samples(self, count: int, seed: int, first: int) -> dict[str, Tensor]:
        """Samples, as in the base class, by the same operations for all of them."""
        noise.checked(seed, 0, first, 0, noise.POSTERIOR)
        number, blocks = first, []
        while number < first + count:
            block, start = divmod(number, TOGETHER)
            blocks.append(self._deviations(seed, block)[start : start + first + count - number])
            number += len(blocks[-1])
        deviations, draws, start = torch.cat(blocks), {}, 0
        for name, mean in self.mean.items():
            stop = start + mean.numel()
            draw = mean.flatten().double() + deviations[:, start:stop]
            draws[name] = draw.to(mean.dtype).view(count, *mean.shape)
            start = stop
        return draws

    def _deviations(self, seed: int, block: int) -> Tensor:
        """``L eps`` of block number ``block`` of ``TOGETHER`` samples, in rows; the latest ones are kept."""
        factor = self.scale_tril
        key = None if factor.is_inference() else (seed, block, factor._version)  # whose changes are not counted
        of, latest_key, deviations = self._latest  # together, since another thread may replace them
        if of is not factor or key is None or latest_key != key:
            if not len(factor):
                return factor.new_zeros(TOGETHER, 0)
            sizes = {}
            for index, mean in enumerate(self.mean.values()):
                if mean.numel():
                    sizes[index] = mean.numel()
            numbers = range(block * TOGETHER, (block + 1) * TOGETHER)
            drawn = noise.normal_many([seed], [0], numbers, sizes, stream=noise.POSTERIOR, device=factor.device)
            eps = drawn[0].double()
            deviations = torch.empty_like(eps)
            for start in range(0, len(factor), ROWS):
                stop = min(start + ROWS, len(factor))
                torch.mm(eps[:, :stop], factor[start:stop, :stop].T, out=deviations[:, start:stop])
            self._latest = factor, key, deviations
        return deviations

    def _log_prob(self, theta: Mapping[str, Tensor]) -> Tensor:
        """The density of the joint Gaussian."""
        return gaussian.dense_log_prob(self._flat(theta), self._flat(self.mean), self.scale_tril)

    def entropy(self) -> Tensor:
        """Differential entropy of the random weights in nats; 0-d float64."""
        return gaussian.dense_entropy(self.scale_tril).cpu()

    def _scaled(self, factor: float, hyperparameters: Mapping[str, Any]) -> DenseGaussian:
        """The scaled posterior, as in the base class; the slow check of the factor is skipped, since it stays valid."""
        return self._made(self.mean, self.scale_tril * factor, hyperparameters)

    def _keeping(self, remaining: Mapping[str, Tensor], hyperparameters: Mapping[str, Any]) -> DenseGaussian:
        """The pruned posterior, as in the base class; mean, row and column of the other weights become 0."""
        rows = torch.cat([remaining[name].flatten() for name in self.mean]).unsqueeze(1)
        return self.from_scale_tril(
            {name: torch.where(remaining[name], value, 0.0) for name, value in self.mean.items()},
            gaussian.cholesky_of_rows(torch.where(rows, self.scale_tril, 0.0)),
            hyperparameters=hyperparameters,
        )

    def _to(self, device: torch.device | str | None, dtype: torch.dtype | None) -> DenseGaussian:
        """The posterior without buffers, as in the base class; the factor stays float64."""
        return self.from_scale_tril(
            {name: value.to(device=device, dtype=dtype) for name, value in self.mean.items()},
            self.scale_tril.to(device=device),
            hyperparameters=self.hyperparameters,
        )

    def _tensors(self) -> dict[str, Tensor]:
        """``{"mean/<name>": ..., "scale_tril": ...}``."""
        return {**{f"mean/{name}": value for name, value in self.mean.items()}, "scale_tril": self.scale_tril}

    @classmethod
    def _from_tensors(cls, tensors: Mapping[str, Tensor], hyperparameters: Mapping[str, Any]) -> DenseGaussian:
        """The inverse of :meth:`_tensors`."""
        mean = {}
        for key, value in tensors.items():
            kind, _, name = key.partition("/")
            if kind == "mean":
                mean[name] = value
            elif key != "scale_tril":
                raise KeyError(key)
        return cls.from_scale_tril(mean, tensors["scale_tril"], hyperparameters=hyperparameters)


def _checked(mean: Mapping[str, Tensor], matrix: Tensor, what: str) -> Tensor:
    """Check that means and matrix are finite and of the right shape; return the matrix in float64."""
    if not mean:
        raise ValueError("mean must have at least one weight tensor, got none")
    device = next(iter(mean.values())).device
    for name, value in mean.items():
        if value.device != device:
            raise ValueError(f"mean of {name!r} must be on the device of the others, {device}, got {value.device}")
    size = sum(value.numel() for value in mean.values())
    if size > MAX_WEIGHTS:
        raise ValueError(f"mean must have at most {MAX_WEIGHTS:,} weights for a dense covariance, got {size:,}")
    if matrix.shape != (size, size):
        raise ValueError(f"{what} must be of shape {(size, size)}, got {tuple(matrix.shape)}")
    if not matrix.is_floating_point():
        raise ValueError(f"{what} must be a floating-point tensor, got dtype {matrix.dtype}")
    check_means(mean)
    if not matrix.isfinite().all():
        raise ValueError(f"{what} must be finite, got inf or nan")
    return matrix.detach().to(device=device, dtype=torch.float64)


def _check_diagonal(matrix: Tensor, what: str) -> None:
    """Check that the diagonal is not negative, and that rows and columns with a zero on it are zero."""
    diagonal = matrix.diagonal()
    if (diagonal < 0).any():
        raise ValueError(f"{what} must have a diagonal that is not negative, got {diagonal.min().item()!r}")
    point = diagonal == 0
    beside = torch.where(point | point.unsqueeze(1), matrix, 0.0)
    if beside.any():
        raise ValueError(f"{what} must be 0 in the row and column of every 0 on its diagonal, got {_first(beside)}")


def _symmetric(matrix: Tensor, dtype: torch.dtype, what: str) -> Tensor:
    """Mean of the matrix and its transpose, which may differ only in the lower half of their digits."""
    spread = matrix.diagonal().sqrt()
    difference = (matrix - matrix.T).abs()
    difference[difference <= torch.finfo(dtype).eps ** 0.5 * spread * spread.unsqueeze(1)] = 0.0
    if difference.any():
        i, j = difference.nonzero()[0].tolist()
        raise ValueError(
            f"{what} must be symmetric, got {matrix[i, j].item()!r} at {(i, j)} and {matrix[j, i].item()!r} at {(j, i)}"
        )
    return torch.lerp(matrix, matrix.T, 0.5)


def _embedded(function: Callable[[Tensor, str], Tensor], matrix: Tensor, what: str) -> Tensor:
    """Apply a function to the matrix of the random weights, with zeros for point masses."""
    random = matrix.diagonal() > 0
    if random.all():
        return function(matrix, what)
    where = random.unsqueeze(1) & random
    return torch.zeros_like(matrix).masked_scatter_(where, function(matrix[random][:, random], what))


def _cholesky(matrix: Tensor, what: str) -> Tensor:
    """The lower factor; a matrix is refused if a pivot is not above the rounding errors it consists of."""
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(matrix)
    diagonal = matrix.diagonal()
    least = len(matrix) * torch.finfo(torch.float64).eps
    if failed or (factor.diagonal().square() <= least * diagonal).any():
        scale = diagonal.sqrt()
        eigenvalue = torch.linalg.eigvalsh(matrix / scale / scale.unsqueeze(1))[0].item()
        raise ValueError(
            f"{what} must be positive definite over the random weights, "
            f"got {eigenvalue:.3g} as the smallest eigenvalue of its correlations"
        )
    return factor


def _inverse_cholesky(precision: Tensor, what: str) -> Tensor:
    """Lower factor of the inverse: if ``P = U U'`` for an upper triangular ``U``, it is the inverse of ``U'``."""
    upper = _cholesky(precision.flip(0, 1), what).flip(0, 1)
    eye = torch.eye(len(upper), dtype=upper.dtype, device=upper.device)
    factor: Tensor = torch.linalg.solve_triangular(upper.T, eye, upper=False)
    return factor


def _first(matrix: Tensor) -> str:
    """The first entry that is not zero, and its position, as text."""
    i, j = matrix.nonzero()[0].tolist()
    return f"{matrix[i, j].item()!r} at {(i, j)}"
