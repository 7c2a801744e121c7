"""Derivatives and curvature of a log density, for likelihoods that do not define them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bayesadam.likelihoods.parameters import check_densities

FACTORS = 2**24
"""Approximate number of values in the curvature factors of several rows."""

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
