"""Of which weights the running statistics of batch norm are, which a posterior has among its buffers."""

from __future__ import annotations

from torch import nn

from bayesadam.modules.exclusive import Parts

STATISTICS = "batch_norm"
"""Key in a posterior's hyper-parameters that says of which weights its batch norm statistics are."""
OF_MEAN, OF_TRAINING = "mean", "training"
"""Values for this key: the posterior's mean, or the weights in training, such as samples."""


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
