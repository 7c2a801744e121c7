"""The Gaussian whose covariance is diagonal in a Kronecker-factored basis, tensor by tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bayesadam import noise
from bayesadam.checks import require
from bayesadam.functional import gaussian
from bayesadam.functional.autocast import without_autocast
from bayesadam.functional.kronecker import between, rotate
from bayesadam.posterior.correlated import CorrelatedGaussian
from bayesadam.posterior.dense import MAX_WEIGHTS
from bayesadam.posterior.diagonal import DiagonalGaussian
from bayesadam.posterior.gaussian_posterior import GaussianPosterior, sum_all, sum_of_tensors


class KroneckerGaussian(CorrelatedGaussian):
    """Independent Gaussians over weight tensors, each with covariance ``(L kron R) diag(v) (L kron R)'``.

    A tensor is treated as a matrix: its first axis gives the ``O`` rows, all other axes together the ``I`` columns, and
    its weights are numbered row by row. ``L`` and ``R`` are orthogonal matrices, so ``v`` are the eigenvalues of the
    covariance, and a sample is ``mean + L (sqrt(v) * eps) R'``. This is the posterior of a Kronecker-factored curvature
    ``B kron A`` with prior precision ``lambda``: ``v = 1 / (b a' + lambda)`` for the eigenvalues ``b`` and ``a`` of the
    factors, and ``L`` and ``R`` are their eigenvectors. No matrix of the size of the covariance is formed.

    If a tensor has no ``L`` or no ``R``, the identity takes its place. If it has neither, its weights are independent,
    and a variance of 0 is a point mass as in :class:`DiagonalGaussian`. If it has one of them, the eigenvalues are
    either all positive, or all 0 and the tensor is a point mass.

    Args:
        mean: Mean of every weight tensor by name. The tensors are kept, not copied.
        eigenvalues: Eigenvalues ``v``, of the same names, shapes and devices; finite and not negative.
        left: Matrices ``L`` by name, ``(O, O)``, for any of the tensors. Equal matrices in succession are kept once.
        right: Matrices ``R`` by name, ``(I, I)``, for any of the tensors.
        hyperparameters: JSON values that say how the posterior was found.

    Attributes:
        variance: Marginal variance of every weight by name, ``(L * L) v (R * R)'``.

    Raises:
        ValueError: Names or shapes differ, or the values are not those of a Gaussian.
    """

    parts = ("mean", "eigenvalues", "left", "right")

    def __init__(
        self,
        mean: Mapping[str, Tensor],
        eigenvalues: Mapping[str, Tensor],
        left: Mapping[str, Tensor],
        right: Mapping[str, Tensor],
        *,
        hyperparameters: Mapping[str, Any] | None = None,
    ) -> None:
        if list(mean) != list(eigenvalues):
            raise ValueError(f"eigenvalues must have the names of mean {list(mean)}, got {list(eigenvalues)}")
        checked = DiagonalGaussian(mean, eigenvalues)
        rules = []
        for axis, (what, bases) in enumerate({"left": left, "right": right}.items()):
            for name, basis in bases.items():
                if name not in mean:
                    raise ValueError(f"{what} must only have weights that mean has, got {name!r}")
                rules += _basis_rules(f"{what} of {name!r}", basis, _sides(mean[name])[axis])
                zero = eigenvalues[name] == 0
                message = f"eigenvalues of {name!r} must be positive, or all 0, got some that are 0"
                rules.append((zero.all() | ~zero.any(), partial(ValueError, message)))
        require(rules)
        self.mean = checked.mean
        self.eigenvalues = checked.variance
        self.left = _kept_once({name: left[name] for name in mean if name in left})
        self.right = _kept_once({name: right[name] for name in mean if name in right})
        self.variance = {name: self._marginal(name) for name in mean}
        self.hyperparameters = dict(hyperparameters or {})

    def _scale(self, names: Iterable[str]) -> Tensor:
        """Cholesky factor of the covariance of a small network's weights, as in the base class.

        Raises:
            ValueError: There are more than ``MAX_WEIGHTS`` weights with correlations.
        """
        names = list(names)
        if not any(name in self.left or name in self.right for name in names):
            return torch.cat([self.eigenvalues[name].double().flatten() for name in names]).sqrt()
        size = sum(self.mean[name].numel() for name in names)
        if size > MAX_WEIGHTS:
            raise ValueError(
                f"a KroneckerGaussian must have at most {MAX_WEIGHTS:,} weights for the divergence from or to a "
                f"posterior with other correlations, got {size:,}"
            )
        blocks: Tensor = torch.block_diag(*(self._rows(name) for name in names))  # type: ignore[no-untyped-call]
        return gaussian.cholesky_of_rows(blocks)

    def _rows(self, name: str) -> Tensor:
        """The square matrix ``F`` with ``F F'`` as the covariance of a tensor's weights, in float64."""
        rows, columns = _sides(self.mean[name])
        spread = self.eigenvalues[name].double().flatten().sqrt()
        eye = torch.eye(rows * columns, dtype=torch.float64, device=spread.device).view(rows * columns, rows, columns)
        return rotate(eye, *self.bases(name)).flatten(1) * spread

    def writer(self, seed: int = 0) -> Callable[[Mapping[str, Tensor], int | None], None]:
        """Return a function that writes ``mean + L (sqrt(v) * eps) R'`` in place, as in the base class.

        ``eps`` is the noise that :class:`DiagonalGaussian` draws, so the samples agree where there are no bases.
        """
        std = {name: self.eigenvalues[name].sqrt() for name in self.random_names}
        eps = {
            index: torch.empty_like(mean, dtype=torch.float32, memory_format=torch.contiguous_format)
            for index, (name, mean) in enumerate(self.mean.items())
            if name in std
        }
        draws = noise.Draws(eps, seed, stream=noise.POSTERIOR)

        @torch.no_grad()
        def write(targets: Mapping[str, Tensor], number: int | None) -> None:
            if number is not None:
                draws.draw(list(eps.values()), number)
            for index, (name, mean) in enumerate(self.mean.items()):
                value = mean
                if number is not None and name in std:
                    drawn = as_matrix(eps[index] * std[name], mean)
                    moved = rotate(drawn, self.left.get(name), self.right.get(name), back=True)
                    value = mean + moved.view(mean.shape)
                targets[name].detach().copy_(value)
            torch.clear_autocast_cache()

        return write

    def _log_prob(self, theta: Mapping[str, Tensor]) -> Tensor:
        """The sum of the log densities in the bases, in which the weights are independent."""

        def density(name: str, mean: Tensor) -> Tensor:
            residual = as_matrix(theta[name].double() - mean.double(), mean)
            far = residual.isinf()
            residual = rotate(residual.masked_fill(far, 0.0), *self.bases(name))
            spread = as_matrix(self.eigenvalues[name].double(), mean)
            within = gaussian.log_prob(residual, torch.zeros_like(spread), spread).sum((-2, -1))
            return within.masked_fill(far.any(-1).any(-1), -math.inf)

        return sum_of_tensors(density(name, mean) for name, mean in self.mean.items())

    def entropy(self) -> Tensor:
        """Differential entropy of the random weights in nats; 0-d float64."""
        return sum_all(gaussian.entropy(value) for value in self.eigenvalues.values())

    def kl_divergence(self, prior: float | GaussianPosterior) -> Tensor:
        """``KL(q || prior)`` in nats, summed (not averaged) over the random weights; 0-d float64.

        If the prior is also a :class:`KroneckerGaussian`, or its weights are independent, it is the divergence of the
        marginals in the prior's bases plus the total correlation there, ``0.5 sum_i (log variance_i - log v_i)``.

        Args:
            prior: A prior precision (the prior is then ``N(0, 1 / prior)`` for every weight), or another Gaussian
                posterior with the same names and shapes; for other kinds there may be at most ``MAX_WEIGHTS`` weights,
                as where single weights of a tensor are point masses and those of the prior are correlated.

        Raises:
            ValueError: The precision is not positive, the prior is over other weights, or there are too many weights
                for this prior.
        """
        if isinstance(prior, KroneckerGaussian):
            self._check_prior(prior)
            if not any(self._is_mixed_in(prior, name) for name in self.mean):
                return sum_all(self._divergence(prior, name) for name in self.mean)
        if isinstance(prior, GaussianPosterior) and not isinstance(prior, DiagonalGaussian):
            return super().kl_divergence(prior)
        marginal = self.marginal()
        return marginal.kl_divergence(prior) + (marginal.entropy() - self.entropy()).clamp_min(0.0)

    def _is_mixed_in(self, prior: KroneckerGaussian, name: str) -> bool:
        """Whether single weights of a tensor are point masses while those of the prior are correlated."""
        zero = self.eigenvalues[name] == 0
        return (name in prior.left or name in prior.right) and bool(zero.any()) and not bool(zero.all())

    def _divergence(self, prior: KroneckerGaussian, name: str) -> Tensor:
        """The KL divergence of one tensor: that of the marginals in the prior's bases plus the total correlation."""
        mean, eigenvalues = self.mean[name].double(), self.eigenvalues[name].double()
        left, right = (None if basis is None else basis.to(mean.device) for basis in prior.bases(name))
        shift = rotate(as_matrix(mean - prior.mean[name].to(mean.device).double(), mean), left, right)
        marginal = self._marginal(name, left, right).double()
        there = as_matrix(prior.eigenvalues[name].to(mean.device).double(), mean)
        terms = gaussian.kl_divergence(shift, as_matrix(marginal, mean), torch.zeros_like(shift), there).sum()
        random = eigenvalues > 0
        return terms + 0.5 * (marginal[random].log() - eigenvalues[random].log()).sum().clamp_min(0.0)

    def _marginal(self, name: str, left: Tensor | None = None, right: Tensor | None = None) -> Tensor:
        """Variances of a tensor in these bases, in the weights' shape; in float64, or as they are kept."""
        value = self.eigenvalues[name]
        turns = [between(other, basis) for other, basis in zip((left, right), self.bases(name), strict=True)]
        if turns == [None, None]:
            return value
        squares = (None if turn is None else turn.square() for turn in turns)
        return rotate(as_matrix(value.double(), value), *squares, back=True).view(value.shape)

    def _scaled(self, factor: float, hyperparameters: Mapping[str, Any]) -> KroneckerGaussian:
        """The scaled posterior, as in the base class; the slow check of the bases is skipped."""
        posterior = self.__class__.__new__(self.__class__)
        posterior.mean, posterior.left, posterior.right = dict(self.mean), dict(self.left), dict(self.right)
        posterior.eigenvalues = {name: value * factor**2 for name, value in self.eigenvalues.items()}
        posterior.variance = {name: value * factor**2 for name, value in self.variance.items()}
        posterior.hyperparameters = dict(hyperparameters)
        return posterior

    def _keeping(self, remaining: Mapping[str, Tensor], hyperparameters: Mapping[str, Any]) -> KroneckerGaussian:
        """Refuse to prune.

        Raises:
            ValueError: Always, since without some of its weights the covariance of a tensor is not a Kronecker product.
        """
        raise ValueError(
            "posterior must be of a class that can be pruned, got a KroneckerGaussian, whose covariance is no "
            "Kronecker product without some of the weights (prune its marginal())"
        )

    def bases(self, name: str) -> tuple[Tensor | None, Tensor | None]:
        """Left and right basis of a tensor in float64; ``None`` for the identity."""
        left, right = self.left.get(name), self.right.get(name)
        return None if left is None else left.double(), None if right is None else right.double()


def _sides(mean: Tensor) -> tuple[int, int]:
    """Number of rows and columns of a tensor as a matrix."""
    return (mean.shape[0], math.prod(mean.shape[1:])) if mean.ndim else (1, 1)


def as_matrix(value: Tensor, mean: Tensor) -> Tensor:
    """A tensor of the shape of the mean, with any leading axes, as a matrix."""
    return value.reshape(*value.shape[: value.ndim - mean.ndim], *_sides(mean))


def _basis_rules(what: str, basis: Tensor, size: int) -> list[tuple[Tensor, Callable[[], ValueError]]]:
    """Check the shape of a basis; return the rules that it is finite and orthogonal, by its effect on one vector."""
    if basis.shape != (size, size):
        raise ValueError(f"{what} must be of shape {(size, size)}, got {tuple(basis.shape)}")
    if not basis.is_floating_point():
        raise ValueError(f"{what} must be a floating-point tensor, got dtype {basis.dtype}")
    dtype = torch.promote_types(basis.dtype, torch.float32)
    narrow = torch.float32 if basis.dtype == torch.float64 else basis.dtype  # in which it may have been computed
    probe = torch.arange(1, size + 1, device=basis.device).to(dtype).cos()
    with without_autocast([basis]):
        error = torch.dist(basis.to(dtype).mT @ (basis.to(dtype) @ probe), probe)

    def not_orthogonal() -> ValueError:
        change = f"{error.item():.3g}"
        return ValueError(
            f"{what} must be orthogonal, got a matrix that together with its transpose changes a vector by {change}"
        )

    return [
        (basis.isfinite().all(), partial(ValueError, f"{what} must be finite, got inf or nan")),
        (error <= torch.finfo(narrow).eps ** 0.5 * probe.norm(), not_orthogonal),
    ]


def _kept_once(bases: dict[str, Tensor]) -> dict[str, Tensor]:
    """The bases, contiguous; a basis that equals the previous one, as for a weight and its bias, shares its tensor.

    Only on a CPU, to which files are loaded, are their numbers compared.
    """
    contiguous: dict[str, Tensor] = {}
    last: tuple[Tensor, Tensor] | None = None
    for name, basis in bases.items():
        if last is None or not (basis is last[0] or _are_equal(basis, last[1])):
            last = basis, basis.contiguous()
        contiguous[name] = last[1]
    return contiguous


def _are_equal(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.device.type == b.device.type == "cpu" and torch.equal(a, b)
