"""Laplace posteriors whose prior is another posterior, such as that of earlier data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from bayesadam.functional.kronecker import between, rotate
from bayesadam.posterior.dense import DenseGaussian
from bayesadam.posterior.diagonal import DiagonalGaussian
from bayesadam.posterior.kronecker import KroneckerGaussian, as_matrix
from bayesadam.posthoc.kronecker import KroneckerCurvature

Prior: TypeAlias = DiagonalGaussian | KroneckerGaussian | DenseGaussian


KINDS: dict[str, tuple[type, ...]] = {
    "diagonal": (DiagonalGaussian, KroneckerGaussian, DenseGaussian),
    "kron": (DiagonalGaussian, KroneckerGaussian),
    "full": (DiagonalGaussian, DenseGaussian),
}
"""Kinds of priors for each structure of the curvature."""


def check_prior(
    prior: Any, mean: Mapping[str, Tensor], structure: str, *, prior_precision: float, rank: int | None
) -> None:
    """Check that a posterior can be the prior of these weights.

    Raises:
        ValueError: The structure does not support this kind of posterior, its weights are others, a variance is 0, or a
            prior precision or a rank was also given.
    """
    if prior_precision != 1.0:
        raise ValueError(f"prior must not be given together with prior_precision, got {prior_precision!r}")
    if rank is not None:
        raise ValueError(f"rank must be None with a posterior as prior, got {rank!r}")
    if structure not in KINDS:
        raise ValueError(f"prior must be None for structure={structure!r}, got {prior!r}")
    allowed: Any = KINDS[structure]
    if not isinstance(prior, allowed):
        kinds = " or ".join(f"a {kind.__name__}" for kind in allowed)
        raise ValueError(f"prior must be {kinds} for structure={structure!r}, got {prior!r}")
    shapes, given = ({name: tuple(value.shape) for name, value in which.items()} for which in (mean, prior.mean))
    if list(shapes.items()) != list(given.items()):
        raise ValueError(f"prior must be over the weights {shapes}, got {given}")
    for name, value in prior.variance.items():
        if not (value > 0).all():
            raise ValueError(f"prior of {name!r} must have positive variances, got 0 (pruned or not random)")


def continued(
    curvature: Tensor | Mapping[str, Tensor] | KroneckerCurvature,
    scale: float,
    mean: Mapping[str, Tensor],
    prior: Prior,
    hyperparameters: Mapping[str, Any],
) -> Prior:
    """Return the Gaussian with precision ``scale curvature + P``, where ``P`` is the precision of the prior.

    Args:
        curvature: Curvature of a :class:`bayesadam.posthoc.LaplaceApproximation`.
        scale: Factor of the curvature.
        mean: The weights.
        prior: The prior; see :func:`check_prior`.
        hyperparameters: Hyper-parameters of the posterior.
    """
    if isinstance(curvature, KroneckerCurvature):
        return _kronecker(curvature, scale, mean, prior, hyperparameters)
    if isinstance(curvature, Tensor):
        return _dense(curvature, scale, mean, prior, hyperparameters)
    diagonal = _precision_diagonal(prior)
    variance = {name: (scale * c + diagonal[name].to(c.dtype)).reciprocal_() for name, c in curvature.items()}
    return DiagonalGaussian(mean, variance, hyperparameters=hyperparameters)


def _precision_diagonal(prior: Prior) -> dict[str, Tensor]:
    """The diagonal of the prior's precision matrix by name, in the weights' shapes and float64."""
    if isinstance(prior, DiagonalGaussian):
        return {name: value.double().reciprocal() for name, value in prior.variance.items()}
    if isinstance(prior, DenseGaussian):
        return prior._split(torch.cholesky_inverse(prior.scale_tril).diagonal())
    diagonal = {}
    for name, value in prior.eigenvalues.items():
        squares = (None if basis is None else basis.square() for basis in prior.bases(name))
        diagonal[name] = rotate(as_matrix(value, value).double().reciprocal(), *squares, back=True).view(value.shape)
    return diagonal


def _dense(
    curvature: Tensor, scale: float, mean: Mapping[str, Tensor], prior: Prior, hyperparameters: Mapping[str, Any]
) -> DenseGaussian:
    precision = scale * curvature
    if isinstance(prior, DenseGaussian):
        precision += torch.cholesky_inverse(prior.scale_tril)
    else:
        diagonal = _precision_diagonal(prior)
        precision.diagonal().add_(torch.cat([diagonal[name].flatten() for name in mean]))
    return DenseGaussian.from_precision(mean, precision, hyperparameters=hyperparameters)


def _kronecker(
    curvature: KroneckerCurvature,
    scale: float,
    mean: Mapping[str, Tensor],
    prior: Prior,
    hyperparameters: Mapping[str, Any],
) -> KroneckerGaussian:
    """Return a Gaussian whose precision approximates ``Q = scale curvature + P``, which is not a Kronecker product.

    Only the diagonal of ``Q`` in a basis ``L kron R`` is kept. ``L`` and ``R`` are the eigenvectors of the partial
    traces of ``Q`` over the columns and over the rows of a tensor. The approximation is exact if ``Q`` is diagonal in a
    basis of this form.
    """
    factored = prior if isinstance(prior, KroneckerGaussian) else KroneckerGaussian(prior.mean, prior.variance, {}, {})
    variance: dict[str, Tensor] = {}
    left: dict[str, Tensor] = {}
    right: dict[str, Tensor] = {}
    for name, value in mean.items():
        spectrum = curvature.spectra[name]
        terms = [
            (scale * as_matrix(spectrum.values.view(value.shape), value), (spectrum.left, spectrum.right)),
            (as_matrix(factored.eigenvalues[name], value).double().reciprocal(), factored.bases(name)),
        ]
        turned = [any(sides[axis] is not None for _, sides in terms) for axis in (0, 1)]
        new = [_common_basis(terms, axis) if turned[axis] else None for axis in (0, 1)]
        total = torch.zeros_like(terms[0][0])
        for values, sides in terms:
            turns = [between(basis, side) for basis, side in zip(new, sides, strict=True)]
            total += rotate(values, *(None if turn is None else turn.square() for turn in turns), back=True)
        variance[name] = total.reciprocal_().view(value.shape).to(value.dtype)
        for bases, basis in zip((left, right), new, strict=True):
            if basis is not None:
                bases[name] = basis.to(value.dtype)
    return KroneckerGaussian(mean, variance, left, right, hyperparameters=hyperparameters)


def _common_basis(terms: list[tuple[Tensor, tuple[Tensor | None, Tensor | None]]], axis: int) -> Tensor:
    """Return the eigenvectors of the partial trace of the sum over the other axis."""
    size = terms[0][0].shape[axis]
    total = terms[0][0].new_zeros(size, size)
    for values, sides in terms:
        traces, basis = values.sum(1 - axis), sides[axis]
        total += torch.diag(traces) if basis is None else (basis * traces) @ basis.mT
    vectors: Tensor = torch.linalg.eigh(total).eigenvectors
    return vectors.contiguous()
