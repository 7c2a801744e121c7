"""The rules by which mean and variance pass through layers and functions; a new rule is a new entry here.

A layer's rule is found by its exact type, since a subclass may compute something else. Units are always treated as
independent of each other, and so are values that are added or multiplied. This is an approximation for the branches of
a residual network, and for positions that share the weights of a convolution. A unit that is added to or multiplied by
itself, or by a function of itself alone, is refused (see :func:`bayesadam.moments.trace.steps_of`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from bayesadam.functional import moments as maps
from bayesadam.moments.values import Moments

Weights = Callable[[str], Moments | None]
"""Function that returns the moments of a module's parameter by its local name; ``None`` if there is no such one."""
ModuleRule = Callable[[Any, Moments, Weights], Moments]

MODULES: dict[type[nn.Module], ModuleRule] = {}
ELEMENTWISE: set[type[nn.Module]] = set()
"""Layers whose outputs are functions of a single unit each, or units in another place."""
VIEWING: set[type[nn.Module]] = {nn.Identity, nn.Flatten, nn.Unflatten, nn.Dropout}
"""Layers whose outputs may share the memory of their inputs."""
FUNCTIONS: dict[Any, Callable[..., Any]] = {}
METHODS: dict[str, Callable[..., Any]] = {}
SHAPES = ("size", "dim", "numel", "shape", "ndim", "dtype", "device")
"""Attributes and methods of a random value that are not random themselves."""

Rule = TypeVar("Rule", bound=ModuleRule)


def register(*types: type[nn.Module], elementwise: bool = False) -> Callable[[Rule], Rule]:
    """Register the rule ``rule(module, input, weights) -> Moments`` of layers of exactly these types.

    ``weights("weight")`` are the :class:`Moments` of the module's parameter ``weight``, or ``None`` if it has none.

    Args:
        types: Types of the layers.
        elementwise: Whether every unit of the output is a function of one unit of the input. Their sum or product is
            then refused, since the two are not independent.
    """

    def decorate(rule: Rule) -> Rule:
        MODULES.update(dict.fromkeys(types, rule))
        (ELEMENTWISE.update if elementwise else ELEMENTWISE.difference_update)(types)
        return rule

    return decorate


@register(nn.Identity, elementwise=True)
def _identity(module: nn.Identity, x: Moments, weights: Weights) -> Moments:
    return x


@register(nn.Flatten, nn.Unflatten, elementwise=True)
def _moved(module: nn.Module, x: Moments, weights: Weights) -> Moments:
    return x.moved(module)


@register(nn.Linear)
def _linear(module: nn.Linear, x: Moments, weights: Weights) -> Moments:
    return linear(x, weights("weight"), weights("bias"))


@register(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def _convolution(module: nn.Conv2d, x: Moments, weights: Weights) -> Moments:
    return _map(partial(maps.convolution, module._conv_forward), x, weights("weight"), weights("bias"))


@register(nn.AvgPool2d)
def _avg_pool(module: nn.AvgPool2d, x: Moments, weights: Weights) -> Moments:
    options = ("stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
    values = {option: getattr(module, option) for option in options}
    return Moments(*maps.avg_pool2d(x.mean, x.variance, module.kernel_size, **values))


@register(nn.AdaptiveAvgPool2d)
def _adaptive_avg_pool(module: nn.AdaptiveAvgPool2d, x: Moments, weights: Weights) -> Moments:
    return Moments(*maps.adaptive_avg_pool2d(x.mean, x.variance, module.output_size))


@register(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
def _max_pool(module: nn.MaxPool2d, x: Moments, weights: Weights) -> Moments:
    rule = FUNCTIONS[getattr(functional, f"max_pool{type(module).__name__[-2:].lower()}")]
    options = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
    moments: Moments = rule(x, **{option: getattr(module, option) for option in options})
    return moments


@register(nn.Embedding)
def _embedding(module: nn.Embedding, x: Moments, weights: Weights) -> Moments:
    """Look up means and variances of rows; rows that are looked up several times are treated as independent.

    The padding row has no variance, and no gradient as in PyTorch.
    """
    weight = weights("weight")
    assert weight is not None
    if module.max_norm is not None:
        raise ValueError(f"max_norm must be None to propagate moments through an embedding, got {module.max_norm!r}")
    rows = weight.moved(partial(functional.embedding, x.mean, padding_idx=module.padding_idx))
    if rows.variance is None or module.padding_idx is None:
        return rows
    return Moments(rows.mean, rows.variance.masked_fill((x.mean == module.padding_idx).unsqueeze(-1), 0.0))


@register(nn.Dropout, elementwise=True)
def _dropout(module: nn.Dropout, x: Moments, weights: Weights) -> Moments:
    return Moments(*maps.dropout(x.mean, x.variance, module.p)) if module.training else x


@register(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, elementwise=True)
def _batch_norm(module: nn.BatchNorm2d, x: Moments, weights: Weights) -> Moments:
    if module.running_mean is None or module.running_var is None or module.training:
        raise RuntimeError(
            f"{type(module).__name__} must have running statistics and be in eval mode to propagate moments (call "
            f".eval() of this layer after train() of the network), got training={module.training}"
        )

    def along(vector: Tensor) -> Tensor:
        return vector.view(-1, *[1] * (x.mean.ndim - 2))

    weight, bias = weights("weight") or Moments(torch.ones_like(module.running_mean)), weights("bias")
    shift = None if bias is None else bias.mean
    statistics = (module.running_mean, module.running_var)
    mean = functional.batch_norm(x.mean, *statistics, weight.mean, shift, False, 0.0, module.eps)
    scale = along((module.running_var + module.eps).rsqrt())
    normalised = Moments((x.mean - along(module.running_mean)) * scale)
    if x.variance is not None:
        normalised = Moments(normalised.mean, x.variance * scale.square())
    scaled = multiply(normalised, weight.moved(along))
    return Moments(mean, scaled.variance if bias is None else add(scaled, bias.moved(along)).variance)


@register(nn.LeakyReLU, elementwise=True)
def _leaky_relu(module: nn.LeakyReLU, x: Moments, weights: Weights) -> Moments:
    return leaky_relu(x, module.negative_slope)


@register(nn.GELU, elementwise=True)
def _gelu(module: nn.GELU, x: Moments, weights: Weights) -> Moments:
    return gelu(x, module.approximate)


def _plain(rule: Callable[[Moments], Moments]) -> ModuleRule:
    """The rule of a layer without options."""
    return lambda module, x, weights: rule(x)


_QUADRATURE = (nn.ELU, nn.SELU, nn.CELU, nn.Softplus, nn.Softsign, nn.Mish, nn.LogSigmoid, nn.Hardtanh, nn.ReLU6)


@register(*_QUADRATURE, elementwise=True)
def _by_quadrature(module: nn.Module, x: Moments, weights: Weights) -> Moments:
    def function(values: Tensor) -> Tensor:
        result: Tensor = module(values.clone() if getattr(module, "inplace", False) else values)
        return result

    return elementwise(x, function, partial(maps.gauss_hermite, function))


def linear(x: Moments, weight: Moments | None, bias: Moments | None = None) -> Moments:
    """``functional.linear``."""
    return _map(maps.linear, x, weight, bias)


def add(a: Any, b: Any) -> Moments:
    """``a + b``, for independent values."""
    a, b = _moments(a), _moments(b)
    mean, variance = maps.add(a.mean, a.variance, b.mean, b.variance)
    return Moments(mean, None if variance is None else variance.expand(mean.shape))


def subtract(a: Any, b: Any) -> Moments:
    """``a - b``, for independent values."""
    b = _moments(b)
    return add(a, Moments(-b.mean, b.variance))


def multiply(a: Any, b: Any) -> Moments:
    """``a * b``, for independent values."""
    a, b = _moments(a), _moments(b)
    return Moments(*maps.multiply(a.mean, a.variance, b.mean, b.variance))


def divide(a: Any, b: Any) -> Moments:
    """``a / b`` for a constant ``b``.

    Raises:
        TypeError: ``b`` is random.
    """
    a, b = _moments(a), _moments(b)
    if b.variance is not None:
        raise TypeError("a divisor must have no variance to propagate moments, got a random one")
    return Moments(a.mean / b.mean, None if a.variance is None else a.variance / b.mean.square())


def elementwise(x: Moments, plain: Callable[[Tensor], Tensor], rule: Callable[[Tensor, Tensor], Any]) -> Moments:
    """Apply a function to every unit, by its rule, or directly if there is no variance."""
    if x.variance is None:
        return Moments(plain(x.mean))
    return Moments(*rule(x.mean, x.variance))


def relu(x: Moments, inplace: bool = False) -> Moments:
    """``functional.relu``."""
    return elementwise(x, functional.relu, maps.relu)


def leaky_relu(x: Moments, negative_slope: float = 0.01, inplace: bool = False) -> Moments:
    """``functional.leaky_relu``."""
    plain = partial(functional.leaky_relu, negative_slope=negative_slope)
    return elementwise(x, plain, partial(maps.leaky_relu, negative_slope=negative_slope))


def sigmoid(x: Moments) -> Moments:
    """``torch.sigmoid``."""
    return elementwise(x, torch.sigmoid, maps.sigmoid)


def tanh(x: Moments) -> Moments:
    """``torch.tanh``."""
    return elementwise(x, torch.tanh, maps.tanh)


def gelu(x: Moments, approximate: str = "none") -> Moments:
    """``functional.gelu``."""
    plain = partial(functional.gelu, approximate=approximate)
    return elementwise(x, plain, partial(maps.gelu, approximate=approximate))


def silu(x: Moments, inplace: bool = False) -> Moments:
    """``functional.silu``."""
    return elementwise(x, functional.silu, maps.silu)


for _kind, _rule in ((nn.ReLU, relu), (nn.Sigmoid, sigmoid), (nn.Tanh, tanh), (nn.SiLU, silu)):
    register(_kind, elementwise=True)(_plain(_rule))


def _map(call: Callable[..., Any], x: Moments, weight: Moments | None, bias: Moments | None) -> Moments:
    assert weight is not None
    b = bias or Moments(None)  # type: ignore[arg-type]
    return Moments(*call(x.mean, x.variance, weight.mean, weight.variance, b.mean, b.variance))


def _max_pooling(axes: int, plain: Callable[..., Any]) -> Callable[..., Moments]:
    """The rule of ``functional.max_pool1d``, ``2d`` or ``3d``."""

    def pool(
        x: Moments,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Moments:
        if return_indices:
            raise ValueError("return_indices must be False to propagate moments through max pooling, got True")
        numbers = (kernel_size, kernel_size if stride is None else stride, padding, dilation)
        if x.variance is None:
            return Moments(plain(x.mean, *numbers, ceil_mode=ceil_mode))
        kernel, *rest = (number if isinstance(number, tuple | list) else (number,) * axes for number in numbers)
        return Moments(*maps.max_pool(x.mean, x.variance, kernel, rest[0], rest[1], rest[2], ceil_mode))

    return pool


def _moments(value: Any) -> Moments:
    return value if isinstance(value, Moments) else Moments(torch.as_tensor(value))


def _mover(name: str) -> Callable[..., Moments]:
    def move(x: Moments, *args: Any, **kwargs: Any) -> Moments:
        return x.moved(lambda tensor: getattr(tensor, name)(*args, **kwargs))

    return move


def _cat(values: Any, dim: int = 0) -> Moments:
    parts = [_moments(value) for value in values]
    mean = torch.cat([part.mean for part in parts], dim)
    if all(part.variance is None for part in parts):
        return Moments(mean)
    return Moments(mean, torch.cat([part.spread() for part in parts], dim))


_MOVES = ("flatten", "view", "reshape", "permute", "transpose", "squeeze", "unsqueeze", "movedim", "contiguous")
METHODS.update({name: _mover(name) for name in _MOVES})
METHODS["view"] = METHODS["reshape"]  # a variance may be an expanded tensor where the mean is not
METHODS.update({"relu": relu, "sigmoid": sigmoid, "tanh": tanh, "add": add, "mul": multiply, "sub": subtract})
METHODS.update({"div": divide})
FUNCTIONS.update({getattr(torch, name): METHODS[name] for name in _MOVES if hasattr(torch, name)})
FUNCTIONS.update({operator.getitem: lambda x, index: x.moved(lambda tensor: tensor[index])})
FUNCTIONS.update({functional.linear: linear, torch.cat: _cat})
FUNCTIONS.update(dict.fromkeys((operator.add, operator.iadd, torch.add), add))
FUNCTIONS.update(dict.fromkeys((operator.sub, operator.isub, torch.sub), subtract))
FUNCTIONS.update(dict.fromkeys((operator.mul, operator.imul, torch.mul), multiply))
FUNCTIONS.update(dict.fromkeys((operator.truediv, operator.itruediv, torch.div), divide))
FUNCTIONS.update(dict.fromkeys((functional.relu, torch.relu), relu))
FUNCTIONS.update(dict.fromkeys((functional.sigmoid, torch.sigmoid), sigmoid))
FUNCTIONS.update(dict.fromkeys((functional.tanh, torch.tanh), tanh))
FUNCTIONS.update({functional.leaky_relu: leaky_relu, functional.gelu: gelu, functional.silu: silu})
_POOLS = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)
FUNCTIONS.update({plain: _max_pooling(axes, plain) for axes, plain in enumerate(_POOLS, start=1)})
MAX_POOLING = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, *(FUNCTIONS[plain] for plain in _POOLS))
"""Layers and rules of functions that take the largest values in windows."""
MIXING = (linear, *(FUNCTIONS[plain] for plain in _POOLS))
"""Rules of functions whose units differ from those of their inputs."""
VIEWS = (*(METHODS[name] for name in _MOVES), FUNCTIONS[operator.getitem])
"""Rules of functions whose values may share the memory of their inputs."""
COMBINING = (add, subtract, multiply)
"""Rules of two values that must be for independent values."""
