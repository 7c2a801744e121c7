"""Second derivatives of a scalar loss: the whole Hessian, its diagonal, and random estimates of the diagonal.

All functions differentiate the loss as it is: a mean loss gives the Hessian of the mean. They need the graph of a loss
on which ``backward()`` was not called, and do not change ``.grad``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

__all__ = ["diagonal", "gradients", "hutchinson", "matrix"]

CHUNK = 2**22
"""Approximate number of values in one batch of rows of a Hessian."""

Maybe = Sequence[Tensor | None]


def gradients(loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """Gradients that can be differentiated again; ``None`` where the loss does not depend on a parameter.

    Raises:
        ValueError: The loss is not a single number.
        RuntimeError: The loss has no graph, or it was freed.
    """
    if loss.numel() != 1:
        raise ValueError(f"loss must be one number, got a tensor of shape {tuple(loss.shape)}")
    if not parameters:
        return []
    return list(torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True))


def diagonal(grads: Maybe, parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """The exact Hessian diagonal, by one backward pass per weight, for small models.

    Args:
        grads: Result of :func:`gradients`.
        parameters: The parameters given to it.

    Returns:
        ``d^2 loss / d theta^2`` of every weight, in the shapes of the parameters.
    """
    entries: list[Tensor | None] = []
    for grad, parameter in zip(grads, parameters, strict=True):
        if grad is None:
            entries.append(None)
            continue
        parts = []
        for start, rows in _rows(grad, [parameter], parameter.numel()):
            index = torch.arange(len(rows[0]), device=parameter.device)
            parts.append(rows[0].reshape(len(index), -1)[index, start + index])
        entries.append(torch.cat(parts).view(parameter.shape) if parts else torch.zeros_like(parameter))
    return entries


def matrix(grads: Maybe, parameters: Sequence[Tensor]) -> Tensor:
    """The exact Hessian, ``(D, D)`` over all weights in order, by one backward pass per weight, for small models.

    Rows and columns of parameters that the loss does not depend on are zero.
    """
    sizes = [parameter.numel() for parameter in parameters]
    total = sum(sizes)
    if not parameters:
        return torch.zeros(0, 0)
    dtype = reduce(torch.promote_types, (parameter.dtype for parameter in parameters))
    hessian = torch.zeros(total, total, dtype=dtype, device=parameters[0].device)
    used = [i for i, grad in enumerate(grads) if grad is not None]
    first = 0
    for grad, size in zip(grads, sizes, strict=True):
        if grad is not None:
            for start, rows in _rows(grad, [parameters[i] for i in used], total):
                for i, part in zip(used, rows, strict=True):
                    column = sum(sizes[:i])
                    row = first + start
                    hessian[row : row + len(part), column : column + sizes[i]] = part.reshape(len(part), -1)
        first += size
    return (hessian + hessian.T) / 2


def hutchinson(grads: Maybe, parameters: Sequence[Tensor], probes: Iterable[Sequence[Tensor]]) -> list[Tensor | None]:
    """Hutchinson's estimate of the Hessian diagonal, the mean of ``v * (H v)``, by one backward pass per probe.

    Args:
        grads: Result of :func:`gradients`.
        parameters: The parameters given to it.
        probes: Probes, each with one tensor per parameter of independent entries +1 or -1.
    """
    used = [i for i, grad in enumerate(grads) if grad is not None]
    totals: list[Tensor | None] = [None if grad is None else torch.zeros_like(grad) for grad in grads]
    count = 0
    for probe in probes:
        count += 1
        product = sum(((grads[i] * probe[i]).sum() for i in used), torch.zeros(()))  # type: ignore[operator]
        if not product.requires_grad:
            continue
        rows = torch.autograd.grad(product, [parameters[i] for i in used], retain_graph=True, allow_unused=True)
        for i, row in zip(used, rows, strict=True):
            total = totals[i]
            if row is not None and total is not None:
                total.addcmul_(row, probe[i])
    return [None if total is None else total / count for total in totals]


def _rows(grad: Tensor, parameters: Sequence[Tensor], width: int) -> Iterator[tuple[int, list[Tensor]]]:
    """Yield the rows of the Hessian that belong to one gradient, in batches: number of the first one, and ``(k,
    *shape)``.
    """
    count = grad.numel()
    size = max(1, CHUNK // max(1, width))
    for start in range(0, count, size):
        stop = min(start + size, count)
        if not grad.requires_grad:  # linear in all of them
            yield start, [p.new_zeros(stop - start, *p.shape) for p in parameters]
            continue
        units = torch.zeros(stop - start, count, dtype=grad.dtype, device=grad.device)
        units[torch.arange(stop - start), torch.arange(start, stop)] = 1.0
        rows = _backward(grad, parameters, units.view(stop - start, *grad.shape))
        yield (
            start,
            [
                p.new_zeros(stop - start, *p.shape) if row is None else row.detach()
                for p, row in zip(parameters, rows, strict=True)
            ],
        )


def _backward(grad: Tensor, parameters: Sequence[Tensor], units: Tensor) -> list[Tensor | None]:
    """The derivatives of ``(units[i] * grad).sum()`` for all ``i``, stacked; ``None`` where there are none."""
    keep: dict[str, Any] = {"retain_graph": True, "allow_unused": True}
    try:
        return list(torch.autograd.grad(grad, parameters, units, is_grads_batched=True, **keep))
    except RuntimeError:  # of some operations (group norm) the second derivatives cannot be batched
        each = [torch.autograd.grad(grad, parameters, unit, **keep) for unit in units]
        return [None if rows[0] is None else torch.stack(rows) for rows in zip(*each, strict=True)]
