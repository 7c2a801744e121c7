"""Selection of the random parameters of a network, and their initial standard deviations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from bayesadam.bayes_by_backprop.draws import recording
from bayesadam.bayes_by_backprop.fused import dense
from bayesadam.checks import check_model
from bayesadam.functional.curvature import wide
from bayesadam.modules.wrappers import buffers_of
from bayesadam.posterior import DiagonalGaussian

Net = TypeVar("Net", bound=nn.Module)
InitialStd = float | Mapping[str, float | Tensor] | Callable[[str, nn.Parameter], float | Tensor]


def random_parameters(model: nn.Module, select: Callable[[str], bool] | None) -> dict[str, int]:
    """Names of the trainable parameters that are selected, with their positions among all parameters.

    Raises:
        ValueError: The model is not a network, no such parameter exists, or one is not real.
    """
    check_model(model)
    indices = {}
    for index, (name, parameter) in enumerate(model.named_parameters()):
        if parameter.requires_grad and (select is None or select(name)):
            if not parameter.is_floating_point():
                raise ValueError(f"parameter {name!r} must be real to be random, got dtype {parameter.dtype}")
            indices[name] = index
    if not indices:
        raise ValueError("model must have a trainable parameter that is selected, got none")
    return indices


def initial(
    name: str, parameter: nn.Parameter, initial_std: InitialStd, inverse: Callable[[Tensor], Tensor]
) -> nn.Parameter:
    """Make the parameter that determines the standard deviations of a parameter, at its initial value.

    Args:
        name: Name of the parameter.
        parameter: Parameter that gives the shape, and the dtype if it is float32 or wider.
        initial_std: A number, numbers or tensors by name, or a function of name and parameter.
        inverse: Element-wise inverse of the function that gives the standard deviations.

    Raises:
        ValueError: A standard deviation is missing, or not positive and finite.
    """
    if callable(initial_std):
        std = initial_std(name, parameter)
    elif isinstance(initial_std, Mapping):
        if name not in initial_std:
            raise ValueError(f"initial_std must have the random parameter {name!r}, got none of that name")
        std = initial_std[name]
    else:
        std = initial_std
    value = torch.as_tensor(std, dtype=torch.float64)
    if not ((value > 0) & (value < math.inf)).all():
        raise ValueError(f"initial_std of {name!r} must be positive and finite, got {std!r}")
    start = torch.empty_like(parameter, dtype=wide(parameter.dtype), requires_grad=False)
    with torch.no_grad():
        return nn.Parameter(start.copy_(inverse(value).expand_as(parameter)))


@contextmanager
def replaced(model: nn.Module, parameters: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Iterator[None]:
    """Return a context in which the model has other tensors in place of parameters, by the same names.

    The padding row of an embedding, which PyTorch does not train, stays as it is.
    """
    by_id = {id(parameter): values[name] for name, parameter in parameters.items()}
    places: list[tuple[nn.Module, str, Any]] = [
        (module, name, parameter)
        for module in model.modules()
        for name, parameter in module._parameters.items()
        if id(parameter) in by_id
    ]
    try:
        for owner, name, parameter in places:
            value = by_id[id(parameter)]
            if isinstance(owner, nn.Embedding) and owner.padding_idx is not None:
                with nullcontext() if torch.compiler.is_compiling() else recording():  # no part of a checkpoint
                    rows = torch.arange(len(parameter), device=parameter.device).unsqueeze(1)
                    value = dense(torch.where(rows == owner.padding_idx, parameter.detach(), value))
            owner._parameters[name] = value  # type: ignore[assignment]
        yield
    finally:
        for owner, name, parameter in places:
            owner._parameters[name] = parameter


def as_posterior(
    model: nn.Module, variance: Mapping[str, Tensor], hyperparameters: Mapping[str, Any]
) -> DiagonalGaussian:
    """Make the Gaussian around a network's parameters, with copies in float32 or wider, and with its buffers.

    Args:
        model: Network whose trainable parameters are the means.
        variance: Variances of the random parameters, by name; the others are point masses.
        hyperparameters: JSON values, as for the posterior.
    """
    mean, variances = {}, {}
    for name, parameter in model.named_parameters():
        if name in variance or parameter.requires_grad:
            mean[name] = parameter.detach().to(wide(parameter.dtype), copy=True)
            variances[name] = variance[name].detach() if name in variance else torch.zeros_like(mean[name])
    return DiagonalGaussian(mean, variances, hyperparameters=hyperparameters).with_buffers(buffers_of(model))


def around(net: nn.Module, wrapper: nn.Module | None) -> nn.Module:
    """The module that is called for a network: itself, or a wrapper of it (``DistributedDataParallel``,
    ``torch.compile``).

    Raises:
        ValueError: The network is not inside of the wrapper.
    """
    inner = net if wrapper is None else wrapper
    while inner is not net:
        wrapped = getattr(inner, "_orig_mod", None) or getattr(inner, "module", None)
        if not isinstance(wrapped, nn.Module):
            raise ValueError(f"wrapper must contain the network whose loss is computed, got {type(wrapper).__name__}")
        inner = wrapped
    return net if wrapper is None else wrapper


def escaped(name: str) -> str:
    """A name that a module's parameter may have, without dots."""
    return name.replace(".", "/")
