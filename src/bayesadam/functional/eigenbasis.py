"""Orthogonal bases of the rows and columns of matrices, complete or by their leading vectors only.

A basis of a side of ``n`` numbers is a tensor of one of two shapes. ``(n, n)`` is the orthogonal matrix ``Q`` itself.
``(2, n, k)`` holds ``V`` and ``W`` with ``Q = I - W V'``: the first ``k`` columns of ``Q`` are given vectors, and the
others complete them by Householder reflections. A product with it costs ``4 n k`` instead of ``2 n^2`` operations for
every column.
"""

from __future__ import annotations

import torch
from torch import Tensor


def identity(size: int, rank: int, like: Tensor) -> Tensor:
    """The basis that changes nothing, of ``rank`` vectors if these are fewer than half of ``size``."""
    if is_complete(size, rank):
        return torch.eye(size, dtype=like.dtype, device=like.device)
    return like.new_zeros(2, size, rank)


def is_complete(size: int, rank: int) -> bool:
    """Whether a basis is kept as a matrix, which is then cheaper than ``rank`` reflections."""
    return 2 * rank >= size


def from_vectors(vectors: Tensor, rank: int, dtype: torch.dtype) -> Tensor:
    """The basis whose first columns are these orthonormal vectors, up to their signs.

    The reflections are those of the QR decomposition of the first ``rank`` vectors, ``H_1 ... H_k = I - V T V'`` with
    ``T^-1 = striu(V' V) + diag(1 / t)`` for the factors ``t`` of the reflections.

    Args:
        vectors: ``(n, n)``, orthogonal; the most important vector is the first column.
        rank: Number of vectors that are kept, unless the basis is complete.
        dtype: Dtype of the result. The computation is in float64.
    """
    if is_complete(len(vectors), rank):
        return vectors.to(dtype)
    packed, factors = torch.geqrf(vectors[:, :rank].double())
    v = packed.tril(-1)
    v.diagonal().fill_(1.0)
    inverse = (v.mT @ v).triu(1) + torch.diag(1.0 / factors.clamp_min(1e-30))  # a factor of 0 is no reflection
    kernel = torch.linalg.solve_triangular(inverse, torch.eye(rank, dtype=v.dtype, device=v.device), upper=True)
    return torch.stack([v, v @ kernel]).to(dtype)


def dense(basis: Tensor) -> Tensor:
    """``Q``, ``(n, n)``."""
    if basis.ndim == 2:
        return basis
    eye = torch.eye(len(basis[0]), dtype=basis.dtype, device=basis.device)
    return into(eye, None, basis)


def into(matrix: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor:
    """``L' X R``, the coordinates of a matrix ``X`` in bases of its rows and columns; None is the identity."""
    with torch.autocast(matrix.device.type, enabled=False):
        if right is not None:
            matrix = matrix @ right if right.ndim == 2 else _reflected(matrix, right[1], right[0])
        if left is not None:
            matrix = left.mT @ matrix if left.ndim == 2 else _reflected(matrix.mT, left[1], left[0]).mT
    return matrix


def out(matrix: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor:
    """``L X R'``, the inverse of :func:`into`."""
    with torch.autocast(matrix.device.type, enabled=False):
        if right is not None:
            matrix = matrix @ right.mT if right.ndim == 2 else _reflected(matrix, right[0], right[1])
        if left is not None:
            matrix = left @ matrix if left.ndim == 2 else _reflected(matrix.mT, left[0], left[1]).mT
    return matrix


def _reflected(matrix: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """``X - (X A) B'``."""
    return torch.addmm(matrix, matrix @ first, second.mT, alpha=-1.0)
