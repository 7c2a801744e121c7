"""The buffers of a network that belong to its posterior, above all the running statistics of batch norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bayesadam.modules.exclusive import Parts
from bayesadam.modules.sharding import full
from bayesadam.modules.wrappers import innermost

STATISTICS = "batch_norm"
"""Key in a posterior's hyper-parameters that says of which weights its batch norm statistics are."""
OF_MEAN, OF_TRAINING = "mean", "training"
"""Values for this key: the posterior's mean, or the weights in training, such as samples."""


@torch.no_grad()
def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    """Copies of a model's buffers by name, without those that its state dict leaves out."""
    copies = {}
    for path, module in innermost(model).named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                copies[f"{path}.{name}" if path else name] = full(buffer).clone()
    return copies


def statistics_are_fixed(model: nn.Module) -> bool:
    """Whether batch norm statistics do not depend on random weights: all parameters up to the last such layer are
    frozen, or there is none.
    """
    parts = Parts(model)
    before = parts.modules[: parts.modules.index(parts.normalized[-1]) + 1] if parts.normalized else []
    return not any(p.requires_grad for module in before for p in module.parameters(recurse=False))


def of_training(model: nn.Module) -> dict[str, str]:
    """Hyper-parameters of a posterior that has the statistics of the weights in training, which are not at its mean."""
    return {} if statistics_are_fixed(model) else {STATISTICS: OF_TRAINING}
