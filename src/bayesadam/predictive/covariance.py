"""The covariance ``J Sigma J'`` of outputs, from the covariance of the weights and the Jacobian, tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bayesadam.checks import truths
from bayesadam.functional.autocast import without_autocast
from bayesadam.functional.kronecker import rotate
from bayesadam.posterior import DenseGaussian, DiagonalGaussian, KroneckerGaussian, NetworkDistribution
from bayesadam.posterior.low_rank import LowRankGaussian
from bayesadam.posterior.partial import PartialGaussian


@dataclass(frozen=True)
class WeightCovariance:
    """``Sigma = U diag(variance) U' + F F'`` over named weight tensors.

    ``U`` is orthogonal, with a block ``left kron right`` for every tensor, treated as a matrix whose rows are its first
    axis. A block is the identity if there is no basis.

    Attributes:
        variance: Variances by name, in the weights' shapes.
        factor: Rows of ``F`` that belong to a tensor's weights, by name, ``(number of weights, R)``.
        left: Bases of the rows, by name.
        right: Bases of the columns, by name.
    """

    variance: Mapping[str, Tensor]
    factor: Mapping[str, Tensor]
    left: Mapping[str, Tensor] = field(default_factory=dict)
    right: Mapping[str, Tensor] = field(default_factory=dict)

    def of_random(self) -> WeightCovariance:
        """The same covariance without tensors that are 0 everywhere; a device is waited for once."""
        has = iter(truths(value.any() for part in (self.variance, self.factor) for value in part.values()))
        variance, factor = (
            {name: value for name, value in part.items() if next(has)} for part in (self.variance, self.factor)
        )
        return WeightCovariance(variance, factor, self.left, self.right)

    @property
    def names(self) -> list[str]:
        """Names of the tensors that have random weights."""
        return list({**self.variance, **self.factor})

    def size_of(self, name: str) -> int:
        """Number of weights of a tensor."""
        return self.variance[name].numel() if name in self.variance else len(self.factor[name])

    def placed(self, names: Mapping[str, str], device: torch.device) -> WeightCovariance:
        """The same covariance with other names, on a device."""
        every = (self.variance, self.factor, self.left, self.right)
        parts = ({names[name]: t.to(device) for name, t in part.items()} for part in every)
        return WeightCovariance(*parts)

    def turned(self, name: str, rows: Tensor) -> Tensor:
        """Derivatives by a tensor's weights, ``(..., number of weights)``, in the basis of ``variance``."""
        left, right = self.left.get(name), self.right.get(name)
        if left is None and right is None:
            return rows
        first = len(self.variance[name])
        matrices = rows.reshape(*rows.shape[:-1], first, rows.shape[-1] // first)
        return rotate(matrices, left, right).flatten(-2)


def weight_covariance(posterior: NetworkDistribution) -> WeightCovariance:
    """The covariance of a Gaussian posterior, also of tensors without variance; see
    :meth:`WeightCovariance.of_random`.

    Raises:
        ValueError: It is no Gaussian over weights.
    """
    if isinstance(posterior, PartialGaussian):
        return weight_covariance(posterior.random)
    if isinstance(posterior, DiagonalGaussian):
        return WeightCovariance(posterior.variance, {})
    if isinstance(posterior, KroneckerGaussian):
        return WeightCovariance(posterior.eigenvalues, {}, posterior.left, posterior.right)
    if isinstance(posterior, LowRankGaussian):
        return WeightCovariance(posterior.diagonal, {name: posterior._matrix(name).T for name in posterior.mean})
    if isinstance(posterior, DenseGaussian):
        rows = torch.split(posterior.scale_tril, [mean.numel() for mean in posterior.mean.values()])
        return WeightCovariance({}, dict(zip(posterior.mean, rows, strict=True)))
    raise ValueError(
        "posterior must be a Gaussian over the weights for method='linearized' (use 'monte_carlo'), "
        f"got {type(posterior).__name__}"
    )


class OutputCovariance:
    """``J Sigma J'`` of the outputs at some data points, summed over weight tensors.

    Args:
        weights: Covariance of the weights, on the device of the outputs.
        count: Number of data points ``n``.
        outputs: Number of outputs ``K`` of each.
        like: Tensor that gives device and dtype, float32 or wider. If the covariance has a factor, the dtype is that of
            the factor, since small variances are differences of large numbers.
    """

    def __init__(self, weights: WeightCovariance, count: int, outputs: int, like: Tensor) -> None:
        self.weights = weights
        self.total = like.new_zeros(count, outputs, outputs)
        factor = next(iter(weights.factor.values()), like.new_zeros(0, 0))
        self.projected = torch.zeros(
            count, outputs, factor.shape[1], dtype=torch.promote_types(factor.dtype, like.dtype), device=like.device
        )

    def add(self, name: str, rows: Tensor, part: slice = slice(None)) -> None:
        """Add the contribution of one tensor's weights at some data points.

        Args:
            name: Name of the tensor.
            rows: Derivatives of the outputs, ``(n, K, number of weights)``.
            part: Slice of the data points.
        """
        if name in self.weights.factor:
            self.projected[part] += rows.to(self.projected.dtype) @ self.weights.factor[name].to(self.projected.dtype)
        if name in self.weights.variance:
            turned = self.weights.turned(name, rows.to(self.total.dtype))
            scaled = turned * self.weights.variance[name].sqrt().flatten().to(self.total.dtype)
            self.total[part] += scaled @ scaled.mT

    def add_layer(self, grads: Tensor, variance: Tensor) -> None:
        """Add the contribution of independent outputs of a layer.

        Args:
            grads: Derivatives of the outputs with respect to those of the layer, ``(n, K, width)``.
            variance: Variance of the layer's outputs, given its inputs, ``(n, width)``.
        """
        scaled = (grads * variance.sqrt().unsqueeze(1)).to(self.total.dtype)
        self.total.baddbmm_(scaled, scaled.mT)

    def add_moved(self, grads: Tensor, moved: Tensor, columns: slice) -> None:
        """Add the contribution of some columns of the factor through a layer.

        Args:
            grads: Derivatives of the outputs with respect to those of the layer, ``(n, K, width)``.
            moved: Changes of the layer's outputs when each of the ``R'`` columns is added to its weights, ``(n, width,
                R')``.
            columns: Slice of the columns.
        """
        self.projected[..., columns] += grads.to(self.projected.dtype) @ moved.to(self.projected.dtype)

    def value(self) -> Tensor:
        """Covariance of shape ``(n, K, K)``, symmetric and positive semi-definite up to rounding."""
        with without_autocast([self.total]):
            return torch.baddbmm(self.total.to(self.projected.dtype), self.projected, self.projected.mT)
