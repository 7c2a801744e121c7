"""Derivatives, curvature and expectations of a log density, for likelihoods that do not define them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bayesadam.likelihoods.parameters import check_densities, check_terms, summed
from bayesadam.likelihoods.quadrature import Function

FACTORS = 2**24
"""Approximate number of values in the curvature factors of several rows."""

DRAWS = 1024
"""Number of draws from which mean and variance of the target are estimated if only ``sample`` is defined."""

Method = Callable[[Tensor, Tensor], Tensor]


def score(log_density: Method, output: Tensor, target: Tensor) -> Tensor:
    """Derivative of the log density by automatic differentiation; see :meth:`Likelihood.score`."""
    leaf = output.detach().requires_grad_()
    with torch.enable_grad():
        density = check_densities(log_density(leaf, target), output, target)
        (gradient,) = torch.autograd.grad(density.sum(), leaf)
    return gradient


def observed_factor(log_density: Method, output: Tensor, target: Tensor) -> Tensor:
    """Square roots of the second derivatives at the targets, ``(N, P, K, K)``; see :meth:`Likelihood.fisher_factor`."""
    leaf = output.detach().requires_grad_()
    rows: list[Tensor] = []
    with torch.enable_grad():
        density = check_densities(log_density(leaf, target), output, target)
        (gradient,) = torch.autograd.grad(density.sum(), leaf, create_graph=True)
        blocks = gradient.reshape(len(output), density[:1].numel(), -1)
        if not blocks.requires_grad:  # the log density is piecewise linear
            return blocks.new_zeros(*blocks.shape, 1)
        for k in range(blocks.shape[-1]):
            (row,) = torch.autograd.grad(blocks[..., k].sum(), leaf, retain_graph=True, materialize_grads=True)
            rows.append(row.reshape(blocks.shape))
    hessian = -torch.stack(rows, dim=-1)
    if hessian.shape[-1] == 1:
        return hessian.clamp_min(0.0).sqrt()
    values, vectors = torch.linalg.eigh(0.5 * (hessian + hessian.mT))
    factor: Tensor = vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2)
    return factor


def fisher_sum(fisher_factor: Method, output: Tensor, target: Tensor) -> Tensor:
    """The sum, from :meth:`Likelihood.fisher_factor` of a few rows at a time; see :meth:`Likelihood.fisher_sum`."""
    factor = fisher_factor(output[:1], target[:1])
    total = factor.new_zeros(factor.shape[2], factor.shape[2], dtype=torch.float64)
    rows = max(1, FACTORS // factor.numel())
    for start in range(0, len(output), rows):
        factor = fisher_factor(output[start : start + rows], target[start : start + rows])
        columns = factor.movedim(2, 0).flatten(1).double()
        total.addmm_(columns, columns.mT)
    return total


def moments(sample: Callable[[int], Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and variance of the target from draws, which a function of their number returns."""
    draws = torch.stack([sample(number) for number in range(DRAWS)])
    return draws.mean(0), draws.var(0)


def by_element(
    log_density: Method, terms: Method | None, mean: Tensor, target: Tensor
) -> tuple[Function, Function] | None:
    """Log densities as an element-wise function of the outputs, and a function that sums them over those of a data
    point.

    Args:
        log_density: Log density of a data point.
        terms: Its terms by element, if they are known.
        mean: Outputs, which have the shape of those that the functions are called with.
        target: Targets that were checked before.

    Returns:
        The functions, or None if data points have several outputs and their terms are not known.
    """
    if terms is not None:

        def total(values: Tensor) -> Tensor:
            check_terms("element_log_density", values.shape, target)
            return check_densities(summed(values, target), mean, target)

        return lambda output: terms(output, target), total
    with torch.no_grad():
        shape = log_density(mean, target).shape
    if shape.numel() != mean.numel():
        return None
    return lambda output: log_density(output, target).view(output.shape), lambda values: values.view(shape)
