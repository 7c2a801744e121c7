"""Precision matrices of Gaussian posteriors, and their diagonals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from bayesadam.functional.kronecker import rotate
from bayesadam.posterior.dense import DenseGaussian
from bayesadam.posterior.diagonal import DiagonalGaussian
from bayesadam.posterior.kronecker import KroneckerGaussian

Tensors: TypeAlias = Mapping[str, Tensor]


def precision_matrix(posterior: DenseGaussian) -> Tensor:
    """The inverse of the covariance, ``(D, D)`` in float64.

    Raises:
        ValueError: Some variances are 0.
    """
    check_random(posterior)
    return torch.cholesky_inverse(posterior.scale_tril)


def precision_diagonal(posterior: DiagonalGaussian | DenseGaussian | KroneckerGaussian) -> dict[str, Tensor]:
    """The diagonal of the precision matrix by name, in the weights' shapes and float64: the precision of every weight
    given all others.

    Raises:
        ValueError: Some variances are 0.
    """
    check_random(posterior)
    if isinstance(posterior, DiagonalGaussian):
        return {name: value.double().reciprocal() for name, value in posterior.variance.items()}
    if isinstance(posterior, DenseGaussian):
        return split(precision_matrix(posterior).diagonal(), posterior.mean)
    found = {}
    for name, value in posterior.eigenvalues.items():
        left, right = (None if basis is None else basis.square() for basis in bases(posterior, name))
        found[name] = rotate(as_matrix(value).double().reciprocal(), left, right, back=True).view(value.shape)
    return found


def check_random(posterior: DiagonalGaussian | DenseGaussian | KroneckerGaussian) -> None:
    """Raise ``ValueError`` if a variance is 0, since the precision would be infinite."""
    for name, value in posterior.variance.items():
        if not (value > 0).all():
            raise ValueError(f"prior of {name!r} must have positive variances, got 0 (pruned or not random)")


def split(vector: Tensor, like: Tensors) -> dict[str, Tensor]:
    """A vector over all weights, tensor by tensor."""
    parts = torch.split(vector, [value.numel() for value in like.values()])
    return {name: part.view(value.shape) for (name, value), part in zip(like.items(), parts, strict=True)}


def bases(posterior: KroneckerGaussian, name: str) -> tuple[Tensor | None, Tensor | None]:
    """Left and right basis of a tensor in float64; None for the identity."""
    left, right = posterior.left.get(name), posterior.right.get(name)
    return None if left is None else left.double(), None if right is None else right.double()


def as_matrix(value: Tensor) -> Tensor:
    """A tensor as a matrix, whose rows are its first axis."""
    return value.reshape(len(value), -1) if value.ndim else value.reshape(1, 1)
