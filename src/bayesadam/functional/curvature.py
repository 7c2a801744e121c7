"""Gradients of the examples of a minibatch, layer by layer, in closed form, and the sums of their squares.

Everywhere ``m`` is the number of examples, ``inputs`` is what a layer was given, and ``grads`` the gradient of a loss
with respect to what it returned. A layer's parameters see all positions (of a sequence, of an image) of an example, so
an example's gradient is a *sum over positions* and must be formed before it is squared. Source: Goodfellow 2015
(arXiv 1510.01799) for linear layers; the others follow by the chain rule.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LOOP_FROM = 32768
"""From this many elements on, examples are squared one by one into the total: fewer temporaries, and torch uses all
threads for each."""


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute squares in: float32 or wider."""
    return torch.promote_types(dtype, torch.float32)


def add_squares_(total: Tensor, gradients: Tensor, *, alpha: float = 1.0, summed: Tensor | None = None) -> None:
    """``total <- total + alpha sum_i gradients[i]^2``, and ``summed <- summed + sum_i gradients[i]``.

    Args:
        total: Shape of the parameter; changed in place.
        gradients: Of the examples, ``(m, *shape)``; may be overwritten.
        alpha: Multiplies the squares.
        summed: Shape of the parameter; changed in place.
    """
    if total.numel() >= LOOP_FROM or gradients.shape[0] == 1:
        for gradient in gradients:
            total.addcmul_(gradient, gradient, value=alpha)
            if summed is not None:
                summed.add_(gradient)
        return
    if summed is not None:
        summed.add_(gradients.sum(0))
    total.add_(gradients.square_().sum(0), alpha=alpha)


def add_square_products_(total: Tensor, inputs: Tensor, grads: Tensor, *, alpha: float, beta: float) -> None:
    """``total <- beta total + alpha sum_i (grads[i] inputs[i]')^2``, the weight of a linear layer without positions.

    The square of an outer product is the outer product of the squares, so the sum is one matrix product.

    Args:
        total: ``(out, in)``; changed in place, and not read if ``beta`` is 0.
        inputs: Squares of the inputs, ``(m, in)``.
        grads: Squares of the output gradients, ``(m, out)``.
        alpha: Multiplies the sum.
        beta: Multiplies what is there.
    """
    total.addmm_(grads.t(), inputs, alpha=alpha, beta=beta)


def products(inputs: Tensor, grads: Tensor, out: Tensor) -> Tensor:
    """Gradients of a linear layer's weight, summed over positions.

    Args:
        inputs: ``(m, positions, in)``.
        grads: ``(m, positions, out)``.
        out: ``(m, out, in)``; overwritten and returned.
    """
    return torch.bmm(grads.transpose(1, 2), inputs, out=out)


def patches(padded: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Tensor:
    """What a convolution's kernel sees at every position, as a view.

    Args:
        padded: ``(m, channels, *spatial)``, with the padding.
        kernel: Extent of the kernel along each spatial axis.
        stride: Likewise.
        dilation: Likewise.

    Returns:
        ``(m, channels, *kernel, *positions)``.
    """
    positions = [
        (size - step * (extent - 1) - 1) // hop + 1
        for size, extent, hop, step in zip(padded.shape[2:], kernel, stride, dilation, strict=True)
    ]
    first, channel, *spatial = padded.stride()
    within = [s * step for s, step in zip(spatial, dilation, strict=True)]
    between = [s * hop for s, hop in zip(spatial, stride, strict=True)]
    shape = (*padded.shape[:2], *kernel, *positions)
    return padded.as_strided(shape, (first, channel, *within, *between))


def kernel_gradients(columns: Tensor, grads: Tensor, groups: int, out: Tensor) -> Tensor:
    """Gradients of a convolution's weight, summed over positions.

    Args:
        columns: :func:`patches`, contiguous, as ``(m, channels * kernel size, positions)``.
        grads: ``(m, out channels, positions)``, contiguous.
        groups: Of the convolution.
        out: ``(m, out channels, channels * kernel size / groups)``; overwritten and returned.
    """
    examples, outputs, count = grads.shape
    left = grads.view(examples * groups, outputs // groups, count)
    right = columns.view(examples * groups, -1, count).transpose(1, 2)
    torch.bmm(left, right, out=out.view(examples * groups, outputs // groups, -1))
    return out


def embedding_gradients(indices: Tensor, grads: Tensor, size: int) -> Tensor:
    """Gradients of an embedding's weight as full tables.

    Args:
        indices: ``(m, positions)``; negative ones have no gradient.
        grads: ``(m, positions, width)``.
        size: Number of rows of the table.

    Returns:
        ``(m, size, width)``.
    """
    examples, width = indices.shape[0], grads.shape[-1]
    # Row `size` takes what has no gradient: masks would make the number of rows depend on the data.
    rows = torch.where(indices < 0, size, indices) + (size + 1) * torch.arange(examples, device=indices.device)[:, None]
    tables = grads.new_zeros(examples * (size + 1), width)
    tables.index_add_(0, rows.flatten(), grads.reshape(-1, width))
    return tables.view(examples, size + 1, width)[:, :size]


def add_embedding_squares_(total: Tensor, indices: Tensor, grads: Tensor, *, alpha: float = 1.0) -> None:
    """``total <- total + alpha sum_i g_i^2`` for :func:`embedding_gradients` ``g_i``, without making them.

    Rows that an example uses several times are summed first; there are at most ``m * positions`` sums.

    Args:
        total: ``(size, width)``; changed in place.
        indices: ``(m, positions)``; negative ones have no gradient.
        grads: ``(m, positions, width)``.
        alpha: Multiplies the squares.
    """
    size, width = total.shape
    examples = torch.arange(indices.shape[0], device=indices.device)[:, None]
    rows = torch.where(indices < 0, size, indices) + (size + 1) * examples
    used, position = torch.unique(rows.flatten(), return_inverse=True)
    sums = grads.new_zeros(used.shape[0], width).index_add_(0, position, grads.reshape(-1, width))
    sums.square_()
    used = used.remainder_(size + 1)
    sums[used == size] = 0
    total.index_add_(0, used.clamp_(max=size - 1), sums, alpha=alpha)
