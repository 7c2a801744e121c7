"""The networks of the estimators."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU, "gelu": nn.GELU}


def perceptron(inputs: int, hidden: Sequence[int], outputs: int, activation: str) -> nn.Sequential:
    """Create a multi-layer perceptron for standardised inputs, with weights drawn from PyTorch's generator.

    Weights have the distribution N(0, 1 / fan-in), and those of the output layer half its standard deviation. Biases of
    hidden units have the distribution N(0, 1), so that the units bend at different places. All are in single precision,
    whatever PyTorch's default is.
    """
    layers: list[nn.Module] = []
    width = inputs
    for units in hidden:
        layer = nn.Linear(width, units, dtype=torch.float32)
        nn.init.normal_(layer.weight, 0.0, 1.0 / math.sqrt(width))
        nn.init.normal_(layer.bias, 0.0, 1.0)
        layers += [layer, ACTIVATIONS[activation]()]
        width = units
    last = nn.Linear(width, outputs, dtype=torch.float32)
    nn.init.normal_(last.weight, 0.0, 0.5 / math.sqrt(width))
    nn.init.zeros_(last.bias)
    return nn.Sequential(*layers, last)


def shapes_of(widths: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights of a :func:`perceptron` by name, given the widths from inputs to outputs."""
    shapes: dict[str, tuple[int, ...]] = {}
    for number, (before, units) in enumerate(itertools.pairwise(widths)):
        shapes |= {f"{2 * number}.weight": (units, before), f"{2 * number}.bias": (units,)}
    return shapes


def require_device(device: Any) -> None:
    """Raise ``ValueError`` for a device that PyTorch cannot use."""
    try:
        if torch.empty(0, device=device).is_meta:
            raise RuntimeError("it holds no numbers")
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device must be one that PyTorch can use, got {device!r} ({reason})") from None
