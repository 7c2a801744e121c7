"""The bases in which the posterior of a weight matrix is a product, and their computation from gradients.

The factors are running averages of ``D D'`` and ``D' D``, where ``D`` is the gradient of a minibatch less its running
average, as a matrix. Their eigenvectors are the bases of Shampoo and SOAP (Gupta et al. 2018; Vyas et al. 2024). They
are kept in the coordinates of the present bases, where they are nearly diagonal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bayesadam.engine.passes import Pass
from bayesadam.engine.rule import RECENCY
from bayesadam.functional import eigenbasis

SIDES = ("left", "right")
COORDINATES = "rotated"
"""Name of the mean in the coordinates of the bases. A state that has it has at least one basis."""

PRIOR = "rotated_prior"
"""Name of the diagonal of the prior's precision in these coordinates, if the weights have priors of their own."""


def sides(parameter: Tensor) -> tuple[int, int]:
    """Rows and columns of a tensor as a matrix: its first axis, and all others together. Vectors have neither."""
    return (parameter.shape[0], math.prod(parameter.shape[1:])) if parameter.ndim > 1 else (1, 1)


def rotated_sides(parameter: Tensor, group: Mapping[str, Any]) -> dict[str, int]:
    """Return the sides that have a basis, with their sizes."""
    if not group["perturb"]:
        return {}
    found = dict(zip(SIDES, sides(parameter), strict=True))
    return {side: size for side, size in found.items() if 1 < size <= group["max_side"]}


def rank_of(size: int, group: Mapping[str, Any]) -> int:
    """Return the number of eigenvectors in the basis of a side."""
    return min(size, int(group["rank"]))


def is_rotated(state: Mapping[str, Any]) -> bool:
    """Whether a parameter has a basis."""
    return COORDINATES in state


def matrix(value: Tensor) -> Tensor:
    """A tensor as a matrix."""
    return value.reshape(sides(value))


def of(state: Mapping[str, Any]) -> tuple[Tensor | None, Tensor | None]:
    """Left and right basis."""
    return state.get("left"), state.get("right")


def rotated(state: Mapping[str, Any], work: Pass) -> dict[str, Tensor]:
    """Return the tensors of a state in the coordinates of the bases, on which a pass works."""
    found = {"mean": state[COORDINATES]}
    return {**found, "prior_precision": state[PRIOR]} if work.per_weight else found


def prior_mean(state: Mapping[str, Any]) -> Tensor:
    """A mean of the prior in the coordinates of the bases, with which its gradient is exact.

    A precision ``P`` that is diagonal in the weights is not in the coordinates. Of it only the diagonal ``p`` is kept
    there, and ``p (x - x0)`` is the gradient ``L' P (M - M0) R`` for this ``x0``.
    """
    gradient = into(state["prior_precision"] * (state["mean"] - state["prior_mean"]), state)
    mean: Tensor = state[COORDINATES] - gradient / state[PRIOR]
    return mean


def into(value: Tensor, state: Mapping[str, Any]) -> Tensor:
    """A tensor's coordinates in the parameter's bases, as a new contiguous tensor of the same shape."""
    left, right = of(state)
    return eigenbasis.into(matrix(value), left, right).contiguous().view(value.shape)


def out(value: Tensor, state: Mapping[str, Any]) -> Tensor:
    """Return the tensor with these coordinates."""
    left, right = of(state)
    return eigenbasis.out(matrix(value), left, right).view(value.shape)


def marginal(eigenvalues: Tensor, state: Mapping[str, Any]) -> Tensor:
    """The diagonal of the matrix that has these eigenvalues in the parameter's bases, in the parameter's shape."""
    left, right = (None if basis is None else eigenbasis.dense(basis).square() for basis in of(state))
    return eigenbasis.out(matrix(eigenvalues), left, right).view(eigenvalues.shape)


def collects(group: Mapping[str, Any], step: int) -> bool:
    """Whether the gradient of a step, counted from 1, is added to the factors."""
    return (step - 1) % int(group["collect_every"]) == 0


def refreshes(group: Mapping[str, Any], step: int) -> bool:
    """Whether the bases are refreshed after a step: every ``refresh_every``, and before these at powers of two."""
    every = int(group["refresh_every"])
    return step % every == 0 or (step < every and step & (step - 1) == 0)


@torch.no_grad()
def collected(state: Mapping[str, Any], grad: Tensor, group: Mapping[str, Any], step: int) -> dict[str, Tensor]:
    """The factors after a gradient in the coordinates of the bases, with the running average from before this step.

    The gradient of the ``c``-th collection has the weight ``3 / (c + 2)``, as the curvature of
    :func:`~bayesadam.engine.rule.curvature_rate`, and not less than ``1 - b2`` for every step since the last.
    """
    earlier = 1.0 - float(state["beta1_product"])
    moved = matrix(grad if earlier == 0 else grad - state["exp_avg"] / earlier)
    every = int(group["collect_every"])
    share = max(1.0 - group["betas"][1] ** every, RECENCY / ((step - 1) // every + RECENCY))
    turned = {"left": moved, "right": moved.mT}
    with torch.autocast(moved.device.type, enabled=False):
        return {name: state[name].lerp(turned[side] @ turned[side].mT, share) for side, name in factors(state)}


def factors(state: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Sides and names of the factors that a state has."""
    return [(side, f"{side}_factor") for side in SIDES if side in state]


@torch.no_grad()
def refreshed(state: Mapping[str, Any], group: Mapping[str, Any]) -> dict[str, Tensor]:
    """Bases of eigenvectors of the factors, and everything else in their coordinates.

    Mean and momentum are rotated. The Hessian ``s`` is projected: the diagonal of the same matrix in the new bases,
    ``(T_L * T_L) s (T_R * T_R)'`` with ``T = Q_new' Q_old``, which minimises ``KL(q_new || q_old)`` over the diagonals.
    """
    found: dict[str, Tensor] = {}
    turns: dict[str, Tensor] = {}
    for side, name in factors(state):
        factor, old = state[name], eigenbasis.dense(state[side])
        if not factor.any():  # without gradients, any basis is equally good
            continue
        basis = eigenbasis.from_vectors(_eigenvectors(factor, old), rank_of(len(factor), group), factor.dtype)
        turn = turns[side] = eigenbasis.into(old, eigenbasis.dense(basis), None).mT
        found |= {side: basis, name: eigenbasis.into(factor, turn, turn)}
    maps = [turns.get(side) for side in SIDES]
    squares = [None if turn is None else turn.square() for turn in maps]
    for name, applied in ((COORDINATES, maps), ("exp_avg", maps), ("hessian", squares)):
        found[name] = eigenbasis.into(matrix(state[name]), *applied).contiguous().view(state[name].shape)
    if PRIOR in state:
        whole = [eigenbasis.dense(found.get(side, state[side])).square() if side in state else None for side in SIDES]
        found[PRIOR] = eigenbasis.into(matrix(state["prior_precision"]), *whole).view(state[PRIOR].shape)
    return found


def _eigenvectors(factor: Tensor, basis: Tensor) -> Tensor:
    """Eigenvectors of a factor that is given in the coordinates of a basis, from the largest eigenvalue to the
    smallest.
    """
    with torch.autocast(factor.device.type, enabled=False):
        vectors: Tensor = basis @ torch.linalg.eigh(torch.lerp(factor, factor.mT, 0.5)).eigenvectors.flip(-1)
        return 1.5 * vectors - 0.5 * vectors @ (
            vectors.mT @ vectors
        )  # remains orthogonal up to rounding after many steps
