"""The perceptron of several benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn


def perceptron(
    *widths: int, layer: Callable[[int, int], nn.Module] = nn.Linear, seed: int | None = None
) -> nn.Sequential:
    """Linear layers with ReLU in between, from torch's global generator, which ``seed`` seeds."""
    if seed is not None:
        torch.manual_seed(seed)
    return nn.Sequential(*[m for i, o in pairwise(widths) for m in (layer(i, o), nn.ReLU())][:-1])
