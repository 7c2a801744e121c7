"""Gradient estimators for a network at random weights: a shared sample, local reparameterisation, or Flipout.

The shared sample replaces the parameters for one forward pass, which works for every model. The other two estimators
put placeholders there and intercept the functions that are called: a linear function (``linear``, ``conv``,
``conv_transpose``) of a placeholder is replaced, and every other function gets the shared sample. Placeholders are NaN
and refuse gradients, so that a use that is not intercepted (in a custom autograd function, for example) is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from bayesadam.bayes_by_backprop.draws import ACTIVATIONS, Draw, normals, recording, signs, uncompiled
from bayesadam.functional.reparameterized import sample_of_variance

_CHANNELS = {
    functional.linear: -1,
    functional.conv1d: -2,
    functional.conv2d: -3,
    functional.conv3d: -4,
    functional.conv_transpose1d: -2,
    functional.conv_transpose2d: -3,
    functional.conv_transpose3d: -4,
}
"""Functions that are linear in their weight, and the axis of inputs and outputs that has the channels."""

_SHAPES = (Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point, Tensor.is_complex)


Network = Callable[[Mapping[str, Tensor]], Any]
"""Runs a network, or a part of it, at other values of its random weights."""


def shared(draw: Draw, run: Network) -> Any:
    """Run the model at one weight sample."""
    return run(uncompiled(draw.sample)())


class Reparameterized(TorchFunctionMode):
    """Replaces linear functions of random weights while it is active, for one forward pass."""

    estimator = ""

    def __init__(self, draw: Draw) -> None:
        super().__init__()
        self.draw = draw
        self.placeholders = {
            name: _placeholder(name, mean.shape, mean.dtype, mean.device, self.estimator)
            for name, mean in draw.means.items()
        }
        self._names = {id(tensor): name for name, tensor in self.placeholders.items()}
        self._uses: dict[str, object] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Called for every PyTorch function instead of the function."""
        kwargs = kwargs or {}
        if func in _SHAPES:
            return func(*args, **kwargs)
        if getattr(func, "__name__", "") == "__get__":
            value = func(*args, **kwargs)
            if not isinstance(value, Tensor) or id(args[0]) not in self._names:
                return value
        if func in _CHANNELS:
            given = {**dict(zip(("input", "weight", "bias"), args, strict=False)), **kwargs}
            weight = self._names.get(id(given["weight"]))
            if weight is not None and self._uses.get(weight) != "shared":
                bias = given.pop("bias", None)
                rest = args[3:]
                options = {key: value for key, value in given.items() if key not in ("input", "weight")}

                def call(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
                    result: Tensor = func(x, w, b, *rest, **options)
                    return result

                return self.linear(call, self._sampled(given["input"]), weight, bias, _CHANNELS[func])
        return func(*self._sampled(args), **self._sampled(kwargs))

    def linear(self, call: Callable[..., Tensor], x: Tensor, weight: str, bias: Tensor | None, channels: int) -> Tensor:
        """A linear function ``call(x, weight, bias)`` of a random weight."""
        raise NotImplementedError

    def _bias(self, bias: Tensor | None, use: object) -> tuple[str | None, Tensor | None]:
        """Name of a bias that is random and used nowhere else, or its replacement."""
        name = self._names.get(id(bias))
        if name is None or self._uses.get(name) == "shared":
            return None, self._sampled(bias)
        self._note(name, use)
        return name, None

    def _sampled(self, value: Any) -> Any:
        """The shared sample in place of placeholders."""
        if isinstance(value, Tensor):
            name = self._names.get(id(value))
            if name is None:
                return value
            self._note(name, "shared")
            return self.draw.theta(name)
        if isinstance(value, list | tuple) and type(value) in (list, tuple):
            return type(value)(map(self._sampled, value))
        if isinstance(value, dict):
            return {key: self._sampled(part) for key, part in value.items()}
        return value

    def _note(self, name: str, use: object) -> None:
        """Record how a parameter is used, and refuse uses that exclude each other.

        Raises:
            RuntimeError: Uses of a parameter would have different samples.
        """
        before = self._uses.setdefault(name, use)
        if before != use:
            raise RuntimeError(
                f"parameter {name!r} must be used in one way in a forward pass with estimator={self.estimator!r}, got "
                f"{before} and then {use}: use estimator='shared', or exclude it by select"
            )


@cache
def _placeholder(name: str, shape: torch.Size, dtype: torch.dtype, device: torch.device, estimator: str) -> Tensor:
    """A tensor in place of a parameter; one for all passes, since it has no values and no gradient."""

    def refuse(grad: Tensor) -> None:
        raise RuntimeError(
            f"parameter {name!r} must be used by PyTorch functions with estimator={estimator!r}, got a use that "
            "cannot be seen (a custom autograd function, say): use estimator='shared', or exclude it by select"
        )

    with recording():
        placeholder = torch.full((), torch.nan, dtype=dtype, device=device).expand(shape).requires_grad_()
        placeholder.register_hook(refuse)  # type: ignore[no-untyped-call]
    return placeholder


class Local(Reparameterized):
    """``y = E[y] + std(y) * eps`` with ``Var[y] = call(x^2, std^2)`` (Kingma et al. 2015, section 2.3)."""

    estimator = "local"

    def linear(self, call: Callable[..., Tensor], x: Tensor, weight: str, bias: Tensor | None, channels: int) -> Tensor:
        """The sampled output, as in the base class."""
        use = f"the outputs of linear function {len(self._uses)} drawn"
        self._note(weight, use)
        name, fixed = self._bias(bias, use)
        draw = self.draw
        mean = call(x, draw.means[weight], fixed if name is None else draw.means[name])
        dtype = torch.float32 if x.dtype == torch.float16 else x.dtype  # squares leave the range of float16
        variance, of_bias = (None if key is None else draw.variances()[key].to(dtype) for key in (weight, name))
        (eps,) = normals(draw.seed, draw.number, ACTIVATIONS, {draw.indices[weight]: mean})
        if draw.sign < 0:
            eps.neg_()
        return sample_of_variance(mean, call(x.to(dtype).square(), variance, of_bias), eps)


class Flipout(Reparameterized):
    """``y = call(x, mean) + s * call(x * r, deviation)``, with signs ``s`` and ``r`` that differ between data points.

    It is eq. 4 of Wen et al. 2018.
    """

    estimator = "flipout"

    def linear(self, call: Callable[..., Tensor], x: Tensor, weight: str, bias: Tensor | None, channels: int) -> Tensor:
        """The output with random signs, as in the base class."""
        draw = self.draw
        rows = len(x) if x.ndim > -channels else 1
        use = f"the signs of {weight!r} for {rows} data points"
        self._note(weight, use)
        name, fixed = self._bias(bias, use)
        mean = call(x, draw.means[weight], fixed if name is None else draw.means[name])
        width = x.shape[channels]
        shape = rows, width + mean.shape[channels]
        both = signs(draw.seed, draw.number, draw.indices[weight], shape, mean)
        axes = (rows, *[1] * (x.ndim - 1 + channels), -1, *[1] * (-1 - channels))
        before, after = (part.reshape(axes) for part in both.tensor_split([width], dim=1))
        if x.ndim == -channels:
            before, after = before[0], after[0]
        deviation, of_bias = (None if key is None else draw.deviations()[key].to(x.dtype) for key in (weight, name))
        change = call(x * before, deviation, of_bias)
        return mean.addcmul(change, after)


def _run(kind: type[Reparameterized], draw: Draw, run: Network) -> Any:
    mode = kind(draw)
    with mode:
        return run(mode.placeholders)


def _by_layers(kind: type[Reparameterized]) -> Callable[[Draw, Network], Any]:
    return lambda draw, run: uncompiled(_run)(kind, draw, run)


ESTIMATORS: Mapping[str, Callable[[Draw, Network], Any]] = {
    "shared": shared,
    "local": _by_layers(Local),
    "flipout": _by_layers(Flipout),
}
