"""What losses of variational networks have in common: inputs, outputs, and the factor of the KL divergence."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from bayesadam.checks import check_temperature

Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]
"""What a network is called with: a tensor; a tuple, ``net(*inputs)``; or a dict, ``net(**inputs)``."""


def kl_scale(num_data: float, kl_weight: float, temperature: float) -> float:
    """Factor of the KL divergence in a loss per data point.

    Raises:
        ValueError: A number is out of its range.
    """
    if not 0 < num_data < math.inf:
        raise ValueError(f"num_data must be a positive, finite number, got {num_data!r}")
    if not 0 <= kl_weight < math.inf:
        raise ValueError(f"kl_weight must be finite and not negative, got {kl_weight!r}")
    check_temperature(temperature)
    return kl_weight * temperature / num_data


def call(net: nn.Module, inputs: Inputs) -> Any:
    """What a network returns for a tensor, a tuple or a dict."""
    if isinstance(inputs, Mapping):
        return net(**inputs)
    return net(*inputs) if isinstance(inputs, tuple) else net(inputs)


def output_of(net: nn.Module, inputs: Inputs, output: Callable[[Any], Tensor] | None) -> Tensor:
    """The tensor that a network returns, or that ``output`` takes out of what it returns."""
    result = call(net, inputs)
    if output is not None:
        result = output(result)
    if not isinstance(result, Tensor):
        raise TypeError(
            "output must be given for a network that returns no tensor (output=lambda out: out.logits, say), "
            f"got {type(result).__name__}"
        )
    return result
