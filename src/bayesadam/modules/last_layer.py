"""Linear layers that can be the only random layer of a network, such as its last layer."""

from __future__ import annotations

from typing import TypeGuard

from torch import nn

from bayesadam.modules.calls import computes_as


def is_plain_linear(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a module is a linear layer whose weight and bias are parameters and not computed from other tensors."""
    if not computes_as(module, nn.Linear):
        return False
    names = dict(module.named_parameters()).keys()
    return "weight" in names and names <= {"weight", "bias"}


def parameters_of_layer(model: nn.Module, layer: str) -> dict[str, nn.Parameter]:
    """Weight and bias of a layer, by the model's names.

    Raises:
        ValueError: One is frozen, or shared with another module.
    """
    parameters = dict(model.get_submodule(layer).named_parameters(prefix=layer))
    _, everywhere = zip(*model.named_parameters(remove_duplicate=False), strict=True)
    identities = list(map(id, everywhere))
    for name, parameter in parameters.items():
        if not parameter.requires_grad or identities.count(id(parameter)) > 1:
            state = "shared with another module" if parameter.requires_grad else "frozen"
            raise ValueError(f"last_layer must have trainable parameters of its own, got {name!r}, which is {state}")
    return parameters
