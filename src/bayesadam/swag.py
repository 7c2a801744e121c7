"""SWAG: a Gaussian from the weights that stochastic gradient descent passes through."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.functional.curvature import wide
from bayesadam.posterior import LowRankGaussian


class SWAG:
    """Stochastic weight averaging, Gaussian (Maddox et al. 2019, "A simple baseline for Bayesian uncertainty").

    Train as usual, at a constant or cyclical learning rate, and call :meth:`collect` now and then (once per epoch,
    say) when the loss has come down; then :meth:`posterior`::

        swag = ba.SWAG(model)
        for epoch in range(epochs):
            train(model)
            if epoch >= start:
                swag.collect()
        q = swag.posterior()

    The mean of the weights collected has batch norm statistics of its own: those in the model belong to its last
    weights. Bring them up to date before predicting, and they stay in the model, where ``predict`` uses them for all
    samples (Algorithm 1 of the paper takes new ones for every sample)::

        with q.applied(model):
            torch.optim.swa_utils.update_bn(loader, model)

    The running moments are Welford's, in float64: a mean of squares minus the square of a mean, as in the paper, has no
    digit left where weights vary by less than 1e-4 of their size, and may be negative.

    Args:
        model: Its trainable parameters are collected; nothing is copied or changed now.
        rank: How many of the last deviations are kept, ``K`` in the paper; at least 2. Or 0: SWAG-Diagonal.

    Attributes:
        count: How often weights were collected.

    Raises:
        ValueError: Another rank, or a model without trainable parameters.
    """

    def __init__(self, model: nn.Module, *, rank: int = 20) -> None:
        if not isinstance(rank, int) or rank < 0 or rank == 1:
            raise ValueError(f"rank must be 0 or a whole number of at least 2, got {rank!r}")
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self._parameters:
            raise ValueError("model must have a trainable parameter, got none")
        self.rank = rank
        self.count = 0
        self._mean: dict[str, Tensor] = {}
        self._squares: dict[str, Tensor] = {}
        self._deviations: deque[dict[str, Tensor]] = deque(maxlen=rank)

    def __repr__(self) -> str:
        return f"SWAG(rank={self.rank}, {self.count} collected)"

    @torch.no_grad()
    def collect(self) -> None:
        """Take the weights as they are now into the moments, and their deviation from the mean with them.

        Raises:
            ValueError: Weights that are not finite.
        """
        for name, parameter in self._parameters.items():
            if not parameter.isfinite().all():
                raise ValueError(f"the weights of {name!r} must be finite, got inf or nan")
        if not self.count:
            self._mean = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in self._parameters.items()}
            self._squares = {n: torch.zeros_like(mean) for n, mean in self._mean.items()}
        self.count += 1
        deviations = {}
        for name, parameter in self._parameters.items():
            mean = self._mean[name]
            before = parameter.to(mean) - mean
            mean += before / self.count
            after = parameter.to(mean) - mean
            self._squares[name] += before * after
            deviations[name] = after.to(wide(parameter.dtype))
        self._deviations.append(deviations)

    def posterior(self, *, scale: float = 0.5) -> LowRankGaussian:
        """``N(mean, scale (diag(variance) + D D' / (K - 1)))`` (Maddox et al. 2019, section 3.3).

        ``variance`` is the mean squared deviation of all weights collected, and ``D`` has the last ``K`` deviations,
        each from the mean of the weights collected until then; ``K`` is at most ``rank``. The first deviation, which
        is zero, counts as long as it is among them.

        Args:
            scale: Of the covariance; the paper's is 1/2. With ``rank=0`` the paper's SWAG-Diagonal is 1.

        Returns:
            Copies of the moments, in float32 or wider, with ``scale``, ``rank`` and ``count`` among its
            hyper-parameters.

        Raises:
            ValueError: A scale that is not positive.
            RuntimeError: Fewer than 2 collections.
        """
        if not 0 < scale < float("inf"):
            raise ValueError(f"scale must be a positive, finite number, got {scale!r}")
        if self.count < 2:
            raise RuntimeError(f"collect must have been called at least twice, got {self.count!r} times")
        mean, diagonal, factors = {}, {}, {}
        for name, parameter in self._parameters.items():
            dtype = wide(parameter.dtype)
            mean[name] = self._mean[name].to(dtype, copy=True)
            diagonal[name] = (self._squares[name] * (scale / self.count)).to(dtype)
            factors[name] = mean[name].new_empty((len(self._deviations), *parameter.shape))
            for row, deviations in zip(factors[name], self._deviations, strict=True):
                torch.mul(deviations[name], (scale / (len(self._deviations) - 1)) ** 0.5, out=row)
        told = {"method": "swag", "rank": self.rank, "count": self.count, "scale": scale}
        return LowRankGaussian(mean, diagonal, factors, told)

    def state_dict(self) -> dict[str, Any]:
        """What :meth:`load_state_dict` needs to go on: numbers, and tensors that are not copies."""
        return {
            "rank": self.rank,
            "count": self.count,
            "mean": dict(self._mean),
            "squares": dict(self._squares),
            "deviations": list(self._deviations),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave; tensors are copied, to the parameters' devices.

        Raises:
            ValueError: Another rank, or other parameters.
        """
        if state["rank"] != self.rank:
            raise ValueError(f"rank must be that of the state, {state['rank']!r}, got {self.rank!r}")
        parts = [state["mean"], state["squares"], *state["deviations"]]
        for part in parts if state["count"] else []:
            found = {name: tuple(value.shape) for name, value in part.items()}
            expected = {name: tuple(p.shape) for name, p in self._parameters.items()}
            if found != expected:
                raise ValueError(f"the state must be of the model's parameters {expected}, got {found}")
        mean, squares, *deviations = [
            {name: value.to(self._parameters[name].device, copy=True) for name, value in part.items()} for part in parts
        ]
        self.count = state["count"]
        self._mean, self._squares = mean, squares
        self._deviations = deque(deviations, maxlen=self.rank)
