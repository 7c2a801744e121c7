"""Helpers for positive parameters of likelihoods, checks of targets, curvature factors, and sums over outputs."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, constraints

from bayesadam.checks import check, check_tensor, is_positive

Module = TypeVar("Module", bound=nn.Module)


def set_log(module: nn.Module, name: str, value: float | Tensor, *, learned: bool) -> None:
    """Keep the logarithm of a positive parameter as ``log_<name>``, a parameter if it is learned and otherwise a
    buffer.

    Raises:
        ValueError: The value is not positive or not finite.
    """
    check(name, value, "positive and finite", _are_positive)
    tensor = torch.as_tensor(value, dtype=torch.get_default_dtype())
    if learned:
        module.register_parameter(f"log_{name}", nn.Parameter(tensor.log()))
    else:
        module.register_buffer(f"log_{name}", tensor.log())


def values_of_logs(module: nn.Module) -> list[str]:
    """The values of the positive parameters with three digits, as ``noise_precision=25``; at most four of each."""
    logs = {name: value for name, value in module.state_dict().items() if name.startswith("log_")}
    numbers = {name.removeprefix("log_"): value.exp().flatten().tolist() for name, value in logs.items()}
    texts = {name: [f"{number:.3g}" for number in values[:4]] for name, values in numbers.items()}
    return [f"{name}={' '.join(texts[name])}{' ...' * (len(numbers[name]) > 4)}" for name in texts]


def _are_positive(value: float | Tensor) -> bool:
    tensor = torch.as_tensor(value, dtype=torch.get_default_dtype())
    return bool(((tensor > 0) & tensor.isfinite()).all())


def with_log(module: Module, name: str, value: Tensor) -> Module:
    """Return a copy in which ``log_<name>`` has another value, possibly of another shape."""
    changed = copy.deepcopy(module)
    before = getattr(module, f"log_{name}")
    value = value.detach().clone()
    if isinstance(before, nn.Parameter):
        value = nn.Parameter(value, requires_grad=before.requires_grad)
    setattr(changed, f"log_{name}", value)
    return changed


def scale_factor(temperature: float) -> Tensor:
    """The factor of the scale of noise at a temperature, by which its square is multiplied; in float64.

    Raises:
        ValueError: The temperature is not positive or not finite.
    """
    check("temperature", temperature, "positive and finite", is_positive)
    return torch.tensor(temperature, dtype=torch.float64).sqrt()


def check_every_axis(points: torch.Size, output: Tensor, target: Tensor) -> None:
    """Raise ``ValueError`` unless the shape of the densities begins as the target's, without sample axes before it."""
    if points != target.shape[: len(points)]:
        raise ValueError(
            f"target must have all axes of the output {tuple(output.shape)} that count data points, got the shape "
            f"{tuple(target.shape)} (log_prob takes outputs of several samples)"
        )


def check_shape(shape: torch.Size, target: Tensor, described: str = "the output's shape") -> None:
    """Raise ``ValueError`` unless the target is a tensor of the given shape, except for sample axes before it."""
    check_tensor("target", target)
    if shape[len(shape) - target.ndim :] != target.shape or len(shape) < target.ndim:
        raise ValueError(f"target must be of {described} {tuple(shape)}, got {tuple(target.shape)}")


def check_terms(method: str, shape: torch.Size, target: Tensor) -> None:
    """Raise ``ValueError`` unless what a likelihood's method returns has the axes of the target, after sample axes.

    An axis that is missing would be broadcast, and sums over it would be those of other numbers.
    """
    if len(shape) < target.ndim or (target.ndim and shape[-1] != target.shape[-1]):
        raise ValueError(f"{method} must have the axes of the target {tuple(target.shape)}, got shape {tuple(shape)}")


def check_equal_shapes(method: str, first: Tensor, second: Tensor) -> None:
    """Raise ``ValueError`` unless the two tensors that a likelihood's method returns have one shape: they would
    broadcast.
    """
    if first.shape != second.shape:
        raise ValueError(
            f"{method} must return two tensors of one shape, got {tuple(first.shape)} and {tuple(second.shape)}"
        )


def check_densities(densities: Tensor, output: Tensor, target: Tensor) -> Tensor:
    """Return log densities; raise ``ValueError`` unless there is one for each data point of the output."""
    shapes = [output.shape] if target.ndim <= 1 else []  # with one output for each, without an axis
    if output.ndim > 1 or target.ndim == 0:
        shapes.append(output.shape[:-1])
    if densities.shape not in shapes:
        wanted, got = tuple(shapes[-1]), tuple(densities.shape)
        raise ValueError(f"log_density must be one number for each data point {wanted}, got shape {got}")
    return densities


def check_values(target: Tensor, fine: Tensor, rule: str) -> None:
    """Raise ``ValueError`` if a value of a target breaks a rule; the message shows the first one.

    On a GPU, which is not waited for, an assertion of the device fails later, as for PyTorch's losses.
    """
    if target.is_cuda:
        torch._assert_async(fine.all(), f"target must be {rule}")
    elif not fine.all():
        raise ValueError(f"target must be {rule}, got {target[~fine][0].tolist()!r}")


def check_classes(target: Tensor, classes: int) -> None:
    """Raise ``ValueError`` unless a target has integer class numbers below ``classes``.

    On a GPU ``gather`` checks the range itself, without a wait for the device.
    """
    if target.is_floating_point() or target.is_complex():
        raise ValueError(f"target must be integer class numbers, got dtype {target.dtype}")
    if target.numel() and not target.is_cuda:
        lowest, highest = torch.stack(target.aminmax()).tolist()
        if not 0 <= lowest <= highest < classes:
            raise ValueError(f"target must be in [0, {classes}), got {lowest} to {highest}")


def diagonal_factor(roots: Tensor) -> Tensor:
    """Blocks of one output each, ``(N, P, 1, 1)``, from the square roots of a diagonal curvature ``(N, ...)``."""
    return roots.reshape(len(roots), -1, 1, 1)


def summed(terms: Tensor, target: Tensor) -> Tensor:
    """Sum of terms over the outputs of a data point, along the last axis unless this counts data points."""
    return terms.sum(-1) if target.ndim > 1 else terms


def target_shape(output: Tensor, outputs_per_target: int) -> torch.Size:
    """The shape of the targets of outputs, after sample axes, if each has some outputs next to each other.

    Raises:
        ValueError: The last axis of the output has another number of outputs.
    """
    if outputs_per_target == 1:
        return output.shape
    if output.ndim == 0 or output.shape[-1] % outputs_per_target:
        raise ValueError(
            f"output must have {outputs_per_target} numbers for each target along its last axis, got shape "
            f"{tuple(output.shape)}"
        )
    return torch.Size([*output.shape[:-1], output.shape[-1] // outputs_per_target])


def support_of(distribution: Distribution) -> Any:
    """The constraint of a distribution's values; None if it has none or says none."""
    try:
        support: Any = distribution.support
    except NotImplementedError:
        return None
    return None if support is constraints.real else support
