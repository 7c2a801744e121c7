"""Matrices in rotated bases: products with Kronecker products of two orthogonal matrices, which are never formed."""

from __future__ import annotations

from torch import Tensor

from bayesadam.functional.autocast import without_autocast

__all__ = ["between", "rotate"]


def rotate(matrices: Tensor, left: Tensor | None, right: Tensor | None, *, back: bool = False) -> Tensor:
    """``L' X R``, the coordinates of matrices in other bases of their rows and columns; with ``back`` the inverse, ``L
    X R'``.

    Flattened row by row, it is the product of ``(L kron R)'``, or of ``L kron R``, with a vector of ``O I`` numbers; it
    costs ``O(O^2 I + O I^2)``.

    Args:
        matrices: Matrices ``X``, ``(..., O, I)``.
        left: ``L``, ``(O, O)``, of any dtype; None for the identity.
        right: ``R``, ``(I, I)``, of any dtype; None for the identity.
        back: Whether to compute ``L X R'``.
    """
    with without_autocast([matrices]):
        if left is not None:
            matrices = (left if back else left.mT).to(matrices.dtype) @ matrices
        if right is not None:
            matrices = matrices @ (right.mT if back else right).to(matrices.dtype)
    return matrices


def between(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """``first' second``, which maps coordinates in the second basis to those in the first; None is the identity."""
    if first is None:
        return second
    return first.mT if second is None else first.mT @ second
