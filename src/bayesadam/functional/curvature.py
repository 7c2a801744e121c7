"""Gradients of the examples of a minibatch, layer by layer, in closed form, and the sums of their squares.

Everywhere ``m`` is the number of examples, ``inputs`` are the inputs of a layer, and ``grads`` the gradient of a loss
with respect to its outputs. All positions (of a sequence, of an image) of an example contribute to the gradient of a
layer's parameters, so an example's gradient is a *sum over positions* and must be formed before it is squared. Source:
Goodfellow 2015 (arXiv 1510.01799) for linear layers; the others follow by the chain rule.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = [
    "add_embedding_squares_",
    "add_squares_",
    "embedding_gradients",
    "kernel_gradients",
    "patches",
    "precision",
    "wide",
    "widened",
]

LOOP_FROM = 32768
"""Number of elements from which examples are squared one by one into the total on a CPU, which needs fewer temporary
tensors, and lets torch use all threads for each.
"""


def wide(dtype: torch.dtype) -> torch.dtype:
    """Dtype in which squares are computed: float32 or wider."""
    return torch.promote_types(dtype, torch.float32)


def widened(tensor: Tensor) -> Tensor:
    """A tensor of numbers in float32 or wider; indices and masks as they are."""
    return tensor.to(wide(tensor.dtype)) if tensor.is_floating_point() else tensor


def precision(like: Tensor) -> float:
    """Relative rounding error of products like this tensor: for float32 off the CPU that of TF32, which PyTorch uses
    there for convolutions by default.
    """
    is_tf32 = like.dtype == torch.float32 and not like.is_cpu
    return 2.0**-10 if is_tf32 else torch.finfo(like.dtype).eps


def add_squares_(total: Tensor, gradients: Tensor, *, alpha: float = 1.0, summed: Tensor | None = None) -> None:
    """``total <- total + alpha sum_i gradients[i]^2``, and ``summed <- summed + sum_i gradients[i]``.

    Args:
        total: Total with the shape of the parameter; changed in place.
        gradients: Gradients of the examples, ``(m, *shape)``; they may be overwritten.
        alpha: Factor of the squares.
        summed: Sum with the shape of the parameter; changed in place.
    """
    if not total.is_cpu:
        norms = torch.linalg.vector_norm(gradients, dim=0)  # in one launch, which makes no squares
        total.addcmul_(norms, norms, value=alpha)
        if summed is not None:
            summed.add_(gradients.sum(0))
        return
    if total.numel() >= LOOP_FROM or gradients.shape[0] == 1:
        for gradient in gradients:
            total.addcmul_(gradient, gradient, value=alpha)
            if summed is not None:
                summed.add_(gradient)
        return
    if summed is not None:
        summed.add_(gradients.sum(0))
    total.add_(gradients.square_().sum(0), alpha=alpha)


def patches(padded: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Tensor:
    """Patches of the input of a convolution under its kernel at every position, as a view.

    Args:
        padded: Input with padding, ``(m, channels, *spatial)``.
        kernel: Size of the kernel along each spatial axis.
        stride: Stride along each spatial axis.
        dilation: Dilation along each spatial axis.

    Returns:
        Patches, ``(m, channels, *kernel, *positions)``.
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
        grads: Output gradients, ``(m, out channels, positions)``, contiguous.
        groups: Number of groups of the convolution.
        out: Tensor ``(m, out channels, channels * kernel size / groups)`` that is overwritten and returned.
    """
    examples, outputs, count = grads.shape
    left = grads.view(examples * groups, outputs // groups, count)
    right = columns.view(examples * groups, -1, count).transpose(1, 2)
    torch.bmm(left, right, out=out.view(examples * groups, outputs // groups, -1))
    return out


def embedding_gradients(indices: Tensor, grads: Tensor, size: int) -> Tensor:
    """Gradients of an embedding's weight as full tables.

    Args:
        indices: Indices, ``(m, positions)``; negative ones have no gradient.
        grads: Output gradients, ``(m, positions, width)``.
        size: Number of rows of the table.

    Returns:
        Gradients, ``(m, size, width)``.
    """
    examples, width = indices.shape[0], grads.shape[-1]
    # Row `size` takes indices without a gradient, since masks would make the number of rows depend on the data.
    rows = torch.where(indices < 0, size, indices) + (size + 1) * torch.arange(examples, device=indices.device)[:, None]
    tables = grads.new_zeros(examples * (size + 1), width)
    tables.index_add_(0, rows.flatten(), grads.reshape(-1, width))
    return tables.view(examples, size + 1, width)[:, :size]


def add_embedding_squares_(total: Tensor, indices: Tensor, grads: Tensor, *, alpha: float = 1.0) -> None:
    """``total <- total + alpha sum_i g_i^2`` for ``g_i`` of :func:`embedding_gradients`, without forming them.

    Rows that an example uses several times are summed first; there are at most ``m * positions`` sums.

    Args:
        total: Total ``(size, width)``; changed in place.
        indices: Indices, ``(m, positions)``; negative ones have no gradient.
        grads: Output gradients, ``(m, positions, width)``.
        alpha: Factor of the squares.
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
