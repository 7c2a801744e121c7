"""One draw of all weights of a network, made as it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from bayesadam import noise
from bayesadam.functional.reparameterized import sample, softplus
from bayesadam.variational import kernels

WEIGHTS, ACTIVATIONS, SIGNS = range(3)
"""What noise is for: the sample's number in :func:`bayesadam.noise.normal`, whose step is the number of the draw."""

P = ParamSpec("P")
R = TypeVar("R")

AHEAD = 64
"""Draws for which the noise of small parameters is made at once, at most."""


def recording() -> AbstractContextManager[Any]:
    """Gradients are recorded inside, whatever the mode outside: what inference mode makes is of no use after it."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else torch.enable_grad()


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """The function, left alone by ``torch.compile``: with every draw, it would compile what draws once more."""
    if torch.compiler.is_compiling():  # importing the compiler takes seconds
        return torch.compiler.disable(function)  # type: ignore[no-any-return, no-untyped-call]
    return function


class Noise:
    """Where a network's noise comes from: transient buffers around :mod:`bayesadam.noise`. A copy starts empty."""

    def __init__(self) -> None:
        self._scratch = noise.Scratch()
        self._ahead = noise.Ahead(self._scratch)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    def weights(self, seed: int, number: int, index: int, std: Mapping[int, Tensor], *, compile: bool) -> Tensor:
        """Standard normals for parameter ``index`` in a new tensor; ``std`` are tensors like all random parameters."""
        like = std[index]
        eps = torch.empty_like(like, memory_format=torch.contiguous_format)
        if 0 < eps.numel() <= noise.SMALL:
            draw = self._ahead.draw(
                seed,
                number,
                WEIGHTS,
                index,
                device=like.device,
                sizes=lambda: {
                    i: s.numel() for i, s in std.items() if 0 < s.numel() <= noise.SMALL and s.device == like.device
                },
                until=1,
                steps=AHEAD,
            )
            return eps.copy_(draw.view(eps.shape))
        if compile and kernels.fits(eps):
            return kernels.normal_(eps, seed, number, WEIGHTS, index)
        return noise.normal(seed, number, WEIGHTS, index, eps.shape, out=eps, scratch=self._scratch)

    def activations(self, seed: int, number: int, index: int, like: Tensor) -> Tensor:
        """Standard normals for the outputs of a layer."""
        with recording():  # the buffers are for later passes too
            out = torch.empty_like(like, memory_format=torch.contiguous_format)
            return noise.normal(seed, number, ACTIVATIONS, index, out.shape, out=out, scratch=self._scratch)


class Draw:
    """One sample of the random weights, and what it is made of; differentiable in means and ``rho``.

    Everything is computed once and kept, with gradients, since the first who asks may not be the one who needs them.

    Args:
        means: Mean of every random parameter by name.
        rho: What the standard deviations are the softplus of.
        indices: Noise index of every random parameter.
        source: Of the noise.
        seed: Of the noise.
        number: Of the draw.
        sign: -1 for the mirror image of the draw with ``+1``.
        compile: Draw large parameters' noise by a compiled kernel; there is a compiler.
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
        compile: bool,
    ) -> None:
        self.means = means
        self.indices = indices
        self.source = source
        self.seed = seed
        self.number = number
        self.sign = sign
        self._rho = rho
        self.compile = compile
        self._std: dict[str, Tensor] = {}
        self._eps: dict[str, Tensor] = {}
        self._deviation: dict[str, Tensor] = {}
        self._theta: dict[str, Tensor] = {}

    def sample(self) -> dict[str, Tensor]:
        """The sample of all parameters."""
        return {name: self.theta(name) for name in self.means}

    def mean(self, name: str) -> Tensor:
        """In the dtype of the standard deviation, which is float32 at least."""
        with recording():
            return self.means[name].to(self._rho[name].dtype)

    def std(self, name: str) -> Tensor:
        """Standard deviations of a parameter."""
        if name not in self._std:
            with recording():
                self._std[name] = softplus(self._rho[name])
        return self._std[name]

    def eps(self, name: str) -> Tensor:
        """The standard normals of a parameter's sample."""
        if name not in self._eps:
            with recording():
                like = {self.indices[other]: rho.detach() for other, rho in self._rho.items()}
                eps = self.source.weights(self.seed, self.number, self.indices[name], like, compile=self.compile)
                self._eps[name] = eps.neg_() if self.sign < 0 else eps
        return self._eps[name]

    def deviation(self, name: str) -> Tensor:
        """The sample less its mean."""
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
