"""Functions of a network's outputs: log probabilities, and second derivatives as factors ``S`` with ``H = S S'``."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["log_mean_exp", "log_softmax", "logistic_scale", "softmax_factor"]

FEW = 16
"""Number of classes below which PyTorch's softmax over the last axis is several times slower on a CPU than over the
first.
"""


def log_softmax(logits: Tensor) -> Tensor:
    """``logits.log_softmax(-1)`` up to rounding, and faster for few classes on a CPU."""
    if logits.device.type != "cpu" or not 1 < logits.shape[-1] < FEW:
        return logits.log_softmax(-1)
    first = logits.movedim(-1, 0).contiguous()
    return first.log_softmax(0).movedim(0, -1).contiguous()


def log_mean_exp(values: Tensor) -> Tensor:
    """``log(mean(exp(values)))`` along the first axis."""
    return values.logsumexp(0) - math.log(len(values))


def softmax_factor(logits: Tensor) -> Tensor:
    """``S = diag(sqrt p) - p sqrt(p)'`` of ``H = diag(p) - p p'`` with ``p = softmax(logits)``.

    If one class has nearly all the probability, ``1 - p`` of that class has no correct digit; ``S S'`` is then
    determined by the other columns, which are accurate.

    Args:
        logits: Logits, ``(..., C)``.

    Returns:
        Factors, ``(..., C, C)``.
    """
    probs, roots = logits.softmax(-1), (0.5 * logits.log_softmax(-1)).exp()
    return torch.diag_embed(roots) - probs.unsqueeze(-1) * roots.unsqueeze(-2)


def logistic_scale(logits: Tensor) -> Tensor:
    """``sqrt(p (1 - p))`` with ``p = sigmoid(logits)``, element-wise; it is 0 only if its logarithm is out of range."""
    return (0.5 * (functional.logsigmoid(logits) + functional.logsigmoid(-logits))).exp()
