"""Plain perceptrons, for which populations, ensembles and Laplace approximations have closed forms."""

from __future__ import annotations

from torch import nn

ELEMENTWISE = (
    nn.ReLU,
    nn.LeakyReLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.GELU,
    nn.SiLU,
    nn.ELU,
    nn.Softplus,
    nn.Identity,
    nn.Dropout,
)
Layers = list[tuple[str, nn.Module]]


def plain_layers(model: nn.Module) -> Layers | None:
    """The layers of a plain multi-layer perceptron, or ``None`` for any other network."""
    if type(model) is nn.Linear:
        return [("", model)]
    if type(model) is not nn.Sequential or not any(type(layer) is nn.Linear for layer in model):
        return None
    layers = [(f"{name}.", layer) for name, layer in model.named_children()]
    # A layer or a parameter that is used twice is named once.
    distinct = len(layers) == len(model)
    distinct &= len(list(model.parameters())) == sum(len(list(layer.parameters())) for _, layer in layers)
    plain = all(type(layer) is nn.Linear or type(layer) in ELEMENTWISE for _, layer in layers)
    first = next(i for i, (_, layer) in enumerate(layers) if type(layer) is nn.Linear)
    plain &= not any(type(layer) is nn.Dropout for _, layer in layers[:first])  # one mask for all samples of a member
    hooked = any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules())
    return layers if distinct and plain and not hooked else None
