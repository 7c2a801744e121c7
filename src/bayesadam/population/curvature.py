"""Curvature of any objective, by second derivatives or from the gradients of examples, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from bayesadam.population.batches import Batch

_NUMBERS = 2**22
"""Approximate number of values that are computed at a time."""


class Gradients(NamedTuple):
    """Losses of one minibatch with their derivatives.

    Attributes:
        losses: Losses, ``(k, S)``.
        grads: Gradients of the losses, ``(k, S, numel)``.
        curvature: Curvature of the same shape, if requested, or of the first coordinates only.
    """

    losses: Tensor
    grads: Tensor
    curvature: Tensor | None = None


def by_autograd(losses: Callable[[Tensor], Tensor], theta: Tensor, *, hessian: bool = False) -> Gradients:
    """Losses ``(k, S)`` and their gradients at ``theta``, ``(k, S, numel)``.

    With ``hessian``, the curvature is the Hessian's diagonal, by a backward pass per coordinate; for small networks.
    """
    theta = theta.detach().requires_grad_()
    with torch.enable_grad():
        values = losses(theta)
        (grads,) = torch.autograd.grad(values.sum(), theta, create_graph=hessian)
    return Gradients(values.detach(), grads.detach(), diagonal(grads, theta) if hessian else None)


def diagonal(grads: Tensor, inputs: Tensor) -> Tensor:
    """``d grads[..., j] / d inputs[..., j]``, where rows of the last axis do not depend on each other.

    Args:
        grads: First derivatives with respect to ``inputs``, with their graph, which is kept.
        inputs: Inputs, ``(..., n)``.
    """
    result = torch.zeros_like(inputs)
    if not grads.requires_grad:
        return result
    size = inputs.shape[-1]
    step = max(1, _NUMBERS // inputs.numel())
    for lo in range(0, size, step):
        here = torch.arange(lo, min(lo + step, size), device=inputs.device)
        basis = torch.zeros(len(here), *inputs.shape, dtype=inputs.dtype, device=inputs.device)
        basis[torch.arange(len(here)), ..., here] = 1.0
        (rows,) = torch.autograd.grad(
            grads, inputs, basis, retain_graph=True, is_grads_batched=True, materialize_grads=True
        )
        result[..., here] = rows[torch.arange(len(here)), ..., here].movedim(0, -1)
    return result


def with_squares(
    losses: Callable[[Tensor, Batch, Tensor], Tensor], theta: Tensor, batch: Batch, perturbed: int
) -> Gradients:
    """Losses, gradients, and the mean over the minibatch of the squared gradients of single data points.

    A data point is treated as a member with a minibatch of one.

    Args:
        losses: Function that returns losses ``(n, S)``, given the numbers of ``n`` members, their batch and parameters.
        theta: Parameters, ``(k, S, numel)``.
        batch: Minibatches of the ``k`` members.
        perturbed: Number of coordinates, the first ones, whose squares are returned.
    """
    count, points = batch.y.shape[:2]
    mean, grads, squares = theta.new_zeros(theta.shape[:2]), torch.zeros_like(theta), torch.zeros_like(theta)
    step = max(1, _NUMBERS // theta.numel())
    for lo in range(0, points, step):
        part = slice(lo, min(lo + step, points))
        width = part.stop - lo
        rows = torch.arange(count, device=theta.device).repeat_interleave(width)
        each = Batch(batch.x[:, part].flatten(0, 1).unsqueeze(1), batch.y[:, part].flatten(0, 1).unsqueeze(1), None)
        single = by_autograd(partial(losses, rows, each), theta[rows])
        shares = theta.new_full((count, width), 1.0 / points) if batch.weight is None else batch.weight[:, part]
        share = shares.to(theta)[:, :, None]
        mean += single.losses.view(count, width, -1).mul(share).sum(1)
        values = single.grads.view(count, width, *theta.shape[1:])
        grads += values.mul(share[..., None]).sum(1)
        squares += values.square_().mul_(share[..., None]).sum(1)
    return Gradients(mean, grads, squares[..., :perturbed])
