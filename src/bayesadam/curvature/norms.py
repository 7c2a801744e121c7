"""Closed forms of normalisation layers: the gradients of their scale and shift."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from bayesadam.curvature.layers import Form
from bayesadam.curvature.totals import Scratch


class NormForm(Form):
    """Scale and shift of normalised inputs.

    Args:
        normalise: From module and inputs to the normalised inputs.
        channels: Whether parameters belong to axis 1; else to the last axes.
    """

    def __init__(self, normalise: Callable[[Any, Tensor], Tensor], *, channels: bool) -> None:
        self.normalise = normalise
        self.channels = channels

    def gradients(
        self, module: Any, inputs: Tensor, grads: Tensor, names: Sequence[str], scratch: Scratch
    ) -> dict[str, Tensor]:
        """See :class:`Form`."""
        gradients = {}
        if "weight" in names:
            gradients["weight"] = self._sum(module, self.normalise(module, inputs).mul_(grads))
        if "bias" in names:
            gradients["bias"] = self._sum(module, grads)
        return gradients

    def bytes_each(self, module: Any, inputs: Tensor, grads: Tensor) -> int:
        """See :class:`Form`."""
        return grads.element_size() * math.prod(grads.shape[1:])

    def least_axes(self, module: Any) -> int:
        """See :class:`Form`; instance normalisation also takes one example alone, without batch axis."""
        if not self.channels:
            return 1 + len(module.normalized_shape)
        return 3 if "Instance" in type(module).__name__ else 2

    def _sum(self, module: Any, values: Tensor) -> Tensor:
        if self.channels:
            return values.reshape(*values.shape[:2], -1).sum(2)
        shape = module.normalized_shape
        return values.reshape(len(values), -1, *shape).sum(1)


def uses_batch_statistics(module: Any) -> bool:
    """Whether a batch or instance normalisation layer computes its statistics from its inputs."""
    return bool(module.training or (module.running_mean is None and module.running_var is None))


def by_running_statistics(module: Any, inputs: Tensor) -> Tensor:
    """Inputs normalised by the layer's running mean and variance."""
    return F.batch_norm(inputs, module.running_mean, module.running_var, None, None, False, 0.0, module.eps)


def by_instance(module: Any, inputs: Tensor) -> Tensor:
    """Inputs normalised as an instance normalisation layer does."""
    if not uses_batch_statistics(module):
        return by_running_statistics(module, inputs)
    return F.instance_norm(inputs, None, None, None, None, True, 0.0, module.eps)
