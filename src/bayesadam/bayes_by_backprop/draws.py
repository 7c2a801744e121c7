"""One draw of all weights of a network, computed on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from bayesadam import noise
from bayesadam.bayes_by_backprop import fused
from bayesadam.functional.reparameterized import sample, sample_again, softplus

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


class Noise:
    """Source of a network's noise: transient buffers around :mod:`bayesadam.noise`. A copy starts with empty
    buffers.
    """

    def __init__(self) -> None:
        self._scratch = noise.Scratch()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    def normals(self, seed: int, number: int, use: int, like: Mapping[int, Tensor]) -> list[Tensor]:
        """Standard normals in new tensors like those given, which are parameters, or outputs of layers, by index."""
        eps = {i: torch.empty_like(t, memory_format=torch.contiguous_format) for i, t in like.items()}
        noise.fill_many(eps, seed, number, use, scratch=self._scratch)
        return list(eps.values())

    def signs(self, seed: int, number: int, index: int, shape: tuple[int, int], like: Tensor) -> Tensor:
        """Random signs of this shape for the inputs and outputs of a layer: those of standard normals."""
        normals = torch.empty(shape, dtype=like.dtype, device=like.device)
        noise.fill_many({index: normals}, seed, number, SIGNS, scratch=self._scratch)
        return torch.copysign(torch.ones_like(normals), normals)


class Draw:
    """One sample of the random weights and its components, differentiable in means and ``rho``.

    Everything is computed once and cached, with gradients, since a later use may need them even if the first does not.

    Args:
        means: Mean of every random parameter by name.
        rho: Parameters whose softplus is the standard deviation.
        indices: Noise index of every random parameter.
        source: Source of the noise.
        seed: Seed of the noise.
        number: Number of the draw.
        sign: -1 for the mirror image of the draw with ``+1``.
        center: Mean of the prior, if its divergence is to be computed from :meth:`sums`.
    """

    def __init__(
        self,
        means: Mapping[str, Tensor],
        rho: Mapping[str, Tensor],
        indices: Mapping[str, int],
        *,
        source: Noise,
        seed: int,
        number: int,
        sign: float,
        center: float | None = None,
    ) -> None:
        self.means = means
        self.indices = indices
        self.source = source
        self.seed = seed
        self.number = number
        self.sign = sign
        self.center = center
        self._rho = rho
        self._std: dict[str, Tensor] = {}
        self._eps: dict[str, Tensor] = {}
        self._variance: dict[str, Tensor] = {}
        self._deviation: dict[str, Tensor] = {}
        self._theta: dict[str, Tensor] = {}
        self._sums: Tensor | None = None

    def sample(self) -> dict[str, Tensor]:
        """The sample of all parameters."""
        self._draw([name for name in self.means if name not in self._eps])
        if self.center is not None and not self._theta and self._fits():
            means, rhos = list(self.means.values()), [self._rho[name] for name in self.means]
            with recording():
                eps = [self._eps[name] for name in self.means]
                thetas, self._sums = fused.sample(means, rhos, eps, self.center)
            self._theta = dict(zip(self.means, thetas, strict=True))
        return {name: self.theta(name) for name in self.means}

    def spread(self) -> None:
        """Compute the variances of all parameters together, if they can be."""
        if self._fits():
            self._variance = self._around_zero(None)

    def deviate(self) -> None:
        """Draw the noise of all parameters together, and compute their deviations together, if they can be."""
        self._draw([name for name in self.means if name not in self._eps])
        if self._fits():
            self._deviation = self._around_zero([self._eps[name] for name in self.means])

    def _fits(self) -> bool:
        return fused.fits(list(self.means.values()), [self._rho[name] for name in self.means])

    def _around_zero(self, eps: Sequence[Tensor] | None) -> dict[str, Tensor]:
        """The standard deviations times ``eps`` by name, or the variances, and the sums, by the compiled function."""
        means, rhos = list(self.means.values()), [self._rho[name] for name in self.means]
        with recording():
            found, sums = fused.sample(means, rhos, eps, self.center or 0.0, around_mean=False)
        if self.center is not None:
            self._sums = sums
        return dict(zip(self.means, found, strict=True))

    def again(self) -> Draw:
        """The same draw with gradient graphs of its own, since backward passes free those of this one."""
        coordinates: dict[str, Any] = {"seed": self.seed, "number": self.number, "sign": self.sign}
        draw = Draw(self.means, self._rho, self.indices, source=self.source, **coordinates)
        draw._eps = self._eps
        with recording():
            for name, theta in self._theta.items():
                draw._theta[name] = sample_again(theta.detach(), self.means[name], self._rho[name], self._eps[name])
        return draw

    def sums(self) -> Tensor | None:
        """Sums of ``(mean - center)^2``, ``std^2`` and ``log(std)`` over all weights, if they are computed with the
        sample.
        """
        if self.center is not None and self._sums is None:
            self.sample()
        return self._sums

    def mean(self, name: str) -> Tensor:
        """Means of a parameter, in the dtype of the standard deviation, which is float32 or wider."""
        with recording():
            return self.means[name].to(self._rho[name].dtype)

    def std(self, name: str) -> Tensor:
        """Standard deviations of a parameter."""
        if name not in self._std:
            with recording():
                self._std[name] = softplus(self._rho[name])
        return self._std[name]

    def variance(self, name: str) -> Tensor:
        """Variances of a parameter."""
        if name not in self._variance:
            with recording():
                self._variance[name] = self.std(name).square()
        return self._variance[name]

    def eps(self, name: str) -> Tensor:
        """The standard normals of a parameter's sample."""
        if name not in self._eps:
            self._draw([name])
        return self._eps[name]

    def deviation(self, name: str) -> Tensor:
        """The sample minus its mean."""
        if name not in self._deviation:
            with recording():
                self._deviation[name] = self.std(name) * self.eps(name)
        return self._deviation[name]

    def theta(self, name: str) -> Tensor:
        """The sample of a parameter, in the parameter's dtype."""
        if name not in self._theta:
            mean, eps = self.means[name], self.eps(name)
            with recording():
                if name in self._std:
                    self._theta[name] = torch.addcmul(self.mean(name), self._std[name], eps).to(mean.dtype)
                else:
                    self._theta[name], self._std[name] = sample(mean, self._rho[name], eps)
        return self._theta[name]

    def _draw(self, names: Sequence[str]) -> None:
        """The standard normals of some parameters' samples, together."""
        with recording():
            like = {self.indices[name]: self._rho[name] for name in names}
            eps = self.source.normals(self.seed, self.number, WEIGHTS, like)
            for name, each in zip(names, eps, strict=True):
                self._eps[name] = each.neg_() if self.sign < 0 else each
