"""One draw of all weights of a network, computed on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from bayesadam import noise
from bayesadam.bayes_by_backprop import fused

WEIGHTS, ACTIVATIONS, SIGNS = range(3)
"""Uses of noise: the sample number in :func:`bayesadam.noise.normal`, whose step is the number of the draw."""

_KEPT = torch.autograd.graph.saved_tensors_hooks(Tensor.detach, lambda tensor: tensor)

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def recording() -> Iterator[None]:
    """Return a context in which gradients are recorded whatever the mode outside, since tensors of inference mode
    cannot be reused, and saved tensors are kept whatever hooks there are: activation checkpointing would compare them
    with those of a second run, which draws nothing.
    """
    mode = torch.inference_mode(False) if torch.is_inference_mode_enabled() else torch.enable_grad()
    with mode, _KEPT:
        yield


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """Exclude a function from ``torch.compile``, which would compile the drawing again for every draw."""
    if torch.compiler.is_compiling():  # importing the compiler takes seconds
        return torch.compiler.disable(function)  # type: ignore[no-any-return, no-untyped-call]
    return function


def normals(seed: int, number: int, use: int, like: Mapping[int, Tensor]) -> list[Tensor]:
    """Standard normals in new tensors like those given, which are parameters, or outputs of layers, by index."""
    eps = {i: torch.empty_like(t, memory_format=torch.contiguous_format) for i, t in like.items()}
    noise.fill_many(eps, seed, number, use)
    return list(eps.values())


def signs(seed: int, number: int, index: int, shape: tuple[int, int], like: Tensor) -> Tensor:
    """Random signs of this shape for the inputs and outputs of a layer: those of standard normals."""
    (eps,) = normals(seed, number, SIGNS, {index: like.new_empty(shape)})
    return torch.copysign(torch.ones_like(eps), eps)


class Draw:
    """One sample of the random weights and its components, differentiable in means and ``rho``.

    Everything is computed once and cached, with gradients, since a later use may need them even if the first does not.

    Args:
        means: Mean of every random parameter by name.
        rho: Parameters whose softplus is the standard deviation.
        indices: Noise index of every random parameter.
        seed: Seed of the noise.
        number: Number of the draw.
        sign: -1 for the mirror image of the draw with ``+1``.
        center: Number with which :meth:`sums` compare the means.
    """

    def __init__(
        self,
        means: Mapping[str, Tensor],
        rho: Mapping[str, Tensor],
        indices: Mapping[str, int],
        *,
        seed: int,
        number: int,
        sign: float,
        center: float = 0.0,
    ) -> None:
        self.means = means
        self.indices = indices
        self.seed = seed
        self.number = number
        self.sign = sign
        self.center = center
        self._rho = rho
        self._eps: dict[str, Tensor] = {}
        self._deviations: dict[str, Tensor] = {}
        self._variances: dict[str, Tensor] = {}
        self._theta: dict[str, Tensor] = {}
        self._sums: Tensor | None = None

    def sample(self) -> dict[str, Tensor]:
        """The sample of all parameters."""
        if not self._theta:
            self._theta = self._computed(self.eps())
        return {name: self.theta(name) for name in self.means}

    def deviations(self) -> dict[str, Tensor]:
        """The sample minus the means, in the dtypes of ``rho``."""
        if not self._deviations:
            self._deviations = self._computed(self.eps(), around_mean=False)
        return self._deviations

    def variances(self) -> dict[str, Tensor]:
        """Variances of all parameters, in the dtypes of ``rho``."""
        if not self._variances:
            self._variances = self._computed(None, around_mean=False)
        return self._variances

    def sums(self) -> Tensor:
        """Sums of ``(mean - center)^2``, ``std^2`` and ``log(std)`` over all weights, ``(3,)`` in float64."""
        if self._sums is None:
            _ = self.variances() if self._theta else self.sample()
        assert self._sums is not None
        return self._sums

    def eps(self) -> list[Tensor]:
        """The standard normals of the sample."""
        if not self._eps:
            with recording():
                like = {self.indices[name]: rho for name, rho in self._rho.items()}
                eps = normals(self.seed, self.number, WEIGHTS, like)
                self._eps = {
                    name: each.neg_() if self.sign < 0 else each for name, each in zip(self._rho, eps, strict=True)
                }
        return list(self._eps.values())

    def theta(self, name: str) -> Tensor:
        """The sample of a parameter, in the parameter's dtype."""
        if name not in self._theta:
            self.eps()
            with recording():
                one = [self.means[name]], [self._rho[name]], [self._eps[name]]
                (self._theta[name],), _ = fused.sample(*one, self.center)
        return self._theta[name]

    def again(self) -> Draw:
        """The same draw with gradient graphs of its own, since backward passes free those of this one."""
        coordinates: dict[str, Any] = {"seed": self.seed, "number": self.number, "sign": self.sign}
        draw = Draw(self.means, self._rho, self.indices, **coordinates)
        draw._eps = self._eps
        for name in self._theta:
            draw.theta(name)
        return draw

    def _computed(self, eps: Sequence[Tensor] | None, *, around_mean: bool = True) -> dict[str, Tensor]:
        """What :func:`bayesadam.bayes_by_backprop.fused.sample` gives for all parameters, by name."""
        means, rhos = list(self.means.values()), list(self._rho.values())
        with recording():
            samples, self._sums = fused.sample(means, rhos, eps, self.center, around_mean=around_mean)
        return dict(zip(self.means, samples, strict=True))
