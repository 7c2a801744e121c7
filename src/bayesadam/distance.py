"""``distance_aware``: networks whose last layer knows how far an input is from the training data.

Spectral-normalised neural Gaussian processes (Liu et al. 2020, arXiv 2006.10108): the last layer is a Gaussian process
in random features, and the layers before it may keep distances between inputs within bounds.
"""

from __future__ import annotations

import copy
import math
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from bayesadam.checks import check, check_count, check_model, check_positive, is_positive

__all__ = ["RandomFeatures", "SpectralBound", "distance_aware"]

BOUNDED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Layers whose weights are bounded. Transposed convolutions, whose outputs are the second axis, are not."""

FIRST_ITERATIONS = 15
"""Number of power iterations for the first estimate of a spectral norm; each training step makes another one."""


class SpectralBound(nn.Module):
    """A parametrisation that divides a weight by its spectral norm, as far as this exceeds a bound.

    The weight is taken as a matrix of the outputs by everything else. For a convolution, its spectral norm is smaller
    than that of the layer by a factor of at most the square root of the number of positions in its kernel.

    Args:
        weight: The weight, with its outputs along the first axis.
        bound: Largest spectral norm.
    """

    direction: Tensor

    def __init__(self, weight: Tensor, *, bound: float) -> None:
        super().__init__()
        self.bound = bound
        matrix = weight.detach().flatten(1)
        self.register_buffer("direction", functional.normalize(torch.randn_like(matrix[:, 0]), dim=0))
        for _ in range(FIRST_ITERATIONS):
            self._iterate(matrix)

    def extra_repr(self) -> str:
        """The bound, as text."""
        return f"bound={self.bound:g}"

    def forward(self, weight: Tensor) -> Tensor:
        """The bounded weight. In training mode, the estimate of the largest singular vector is improved as well."""
        matrix = weight.flatten(1)
        if self.training and torch._C._current_graph_task_id() == -1:  # not when a checkpoint is run again
            self._iterate(matrix.detach())
        direction = self.direction.clone()  # the next iteration may come before the backward pass
        right = functional.normalize(matrix.detach().T @ direction, dim=0)
        return weight / (direction @ (matrix @ right) / self.bound).clamp_min(1.0)

    @torch.no_grad()
    def _iterate(self, matrix: Tensor) -> None:
        right = functional.normalize(matrix.T @ self.direction, dim=0)
        self.direction.copy_(functional.normalize(matrix @ right, dim=0))


class RandomFeatures(nn.Module):
    """Random Fourier features ``sqrt(2 / F) cos(W z + b)`` of the kernel ``exp(-|z - z'|^2 / 2)`` (Rahimi, Recht 2007).

    Here ``z = (h - m) / (s l sqrt(D))``, with the running means ``m`` and standard deviations ``s`` of the inputs
    ``h``, so that two typical inputs have a squared distance of about ``2 / l^2``, whatever their number ``D`` is.

    Args:
        in_features: Number ``D`` of inputs.
        features: Number ``F`` of features.
        length_scale: The length scale ``l``.

    Attributes:
        frequencies: ``W``, ``(F, D)``, standard normal; not trained.
        phases: ``b``, ``(F,)``, uniform in ``[0, 2 pi]``; not trained.
    """

    frequencies: Tensor
    phases: Tensor

    def __init__(self, in_features: int, *, features: int = 1024, length_scale: float = 1.0) -> None:
        super().__init__()
        self.length_scale = length_scale
        self.scaling = nn.BatchNorm1d(in_features, affine=False)
        self.register_buffer("frequencies", torch.randn(features, in_features))
        self.register_buffer("phases", 2.0 * math.pi * torch.rand(features))

    def extra_repr(self) -> str:
        """The number of features and the length scale, as text."""
        return f"features={len(self.phases)}, length_scale={self.length_scale:g}"

    def forward(self, h: Tensor) -> Tensor:
        """Features ``(..., F)`` of inputs ``(..., D)``; each has the squared norm 1 up to the error of the features."""
        z = self.scaling(h.flatten(0, -2)).view(h.shape) / (self.length_scale * math.sqrt(h.shape[-1]))
        return math.sqrt(2.0 / len(self.phases)) * torch.cos(functional.linear(z, self.frequencies, self.phases))


def distance_aware(
    model: nn.Module,
    *,
    features: int = 1024,
    length_scale: float = 1.0,
    bound: float | None = None,
    last_layer: str | None = None,
) -> nn.Module:
    """Return a copy of a network whose last layer is replaced by a Gaussian process in random features.

    Train the result as any network, for example by Adam. Then
    ``ba.laplace(net, data, likelihood=..., structure="last_layer_kron", prior_precision=1.0)`` is the posterior of the
    new last layer. Its predictions, for which :func:`bayesadam.predict` samples the layer by default
    (``method="linearized"`` is exact), return to the prior with the distance from the training inputs: this is the
    method of Liu et al. 2020, with a Laplace approximation for all outputs together.

    Args:
        model: A network with an ``nn.Linear`` whose inputs are representations ``(..., D)``. It is not changed. Here
            and below, subclasses and layers with parametrised weights count as well.
        features: Number of random features, and inputs of the new last layer.
        length_scale: Length scale of the kernel, see :class:`RandomFeatures`. With smaller values the network is sure
            in the neighbourhood of training inputs only.
        bound: Largest spectral norm of the weights of all other linear and convolutional layers, see
            :class:`SpectralBound`; 0.95 in the paper. It is applied after parametrisations that a weight has. Distances
            between representations are then bounded by those between inputs. The default, ``None``, is no bound:
            networks without residual connections, which lose distances, are better off without
            (``benchmarks/distance.py``).
        last_layer: Name of the layer that is replaced, under all of its names; default: the last ``nn.Linear`` in
            ``model.named_modules()``.

    Raises:
        ValueError: A number is out of range; there is no such layer, or it is a lazy one that has not run; or a bound
            is given and a weight cannot be parametrised, such as that of ``nn.utils.spectral_norm`` or a lazy layer.
    """
    check_model(model)
    check_count("features", features)
    check_positive("length_scale", length_scale)
    check("bound", bound, "None or a positive, finite number", lambda v: v is None or is_positive(v))
    linear = {n: m for n, m in model.named_modules(remove_duplicate=False) if _is_called_linear(m)}
    if not linear:
        raise ValueError("model must have an nn.Linear, got none")
    if last_layer is not None and last_layer not in linear:
        raise ValueError(f"last_layer must be the name of an nn.Linear, one of {[*linear]}, got {last_layer!r}")
    *_, last = (m for m in model.modules() if _is_called_linear(m))
    last = last if last_layer is None else linear[last_layer]
    names = [name for name, module in linear.items() if module is last]
    if is_lazy(last.weight):
        raise ValueError(f"model must have run once, to initialise its last layer, got {last!r} at {names[0]!r}")
    others = [name for name, module in model.named_modules() if isinstance(module, BOUNDED) and module is not last]
    for name in others:
        if bound is not None and not _takes_bound(model.get_submodule(name)):
            raise ValueError(f"bound must be None if a weight cannot be parametrised, got {bound!r} for {name!r}")
    model = copy.deepcopy(model)
    old = model.get_submodule(names[0])
    assert isinstance(old, nn.Linear)
    new = nn.Sequential(
        RandomFeatures(old.in_features, features=features, length_scale=length_scale),
        nn.Linear(features, old.out_features),
    ).to(old.weight.device, old.weight.dtype)
    if bound is not None:
        for module in map(model.get_submodule, others):
            weight: Tensor = module.weight  # type: ignore[assignment]
            parametrize.register_parametrization(module, "weight", SpectralBound(weight, bound=bound))
    if names == [""]:
        return new
    for parent, _, own in (name.rpartition(".") for name in names):
        setattr(model.get_submodule(parent), own, new)
    return model


def _is_called_linear(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a module is a linear layer, and not one whose weights ``nn.MultiheadAttention`` uses without a call."""
    return isinstance(module, nn.Linear) and not isinstance(module, NonDynamicallyQuantizableLinear)


def _takes_bound(layer: nn.Module) -> bool:
    """Whether a copy of a layer can get a parametrisation of its weight without a change of the original.

    A layer with a parametrisation has a class of its own, which copies share: no other tensor can get the first one.
    """
    if parametrize.is_parametrized(layer):
        return parametrize.is_parametrized(layer, "weight")
    weight = layer._parameters.get("weight")
    return weight is not None and not is_lazy(weight)
