"""SWAG: a Gaussian fitted to the weights along a trajectory of stochastic gradient descent."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.checks import check, check_positive, is_whole, truths
from bayesadam.functional.curvature import wide
from bayesadam.modules.batch_norm import of_training
from bayesadam.modules.wrappers import buffers_of, innermost
from bayesadam.posterior import LowRankGaussian


class SWAG:
    """Stochastic weight averaging, Gaussian (Maddox et al. 2019, "A simple baseline for Bayesian uncertainty").

    Train as usual, at a constant or cyclical learning rate. When the loss has decreased, call :meth:`collect` regularly
    (for example once per epoch), and at the end :meth:`posterior`::

        swag = ba.SWAG(model)
        for epoch in range(epochs):
            train(model)
            if epoch >= start:
                swag.collect()
        q = swag.posterior()

    The batch norm statistics in the model belong to its last weights, and not to the mean of the weights collected.
    Compute those of the mean; ``predict`` then uses them for all samples (Algorithm 1 of the paper takes new ones for
    every sample, as ``batch_norm=`` of ``predict`` does)::

        q = ba.predictive.with_batch_norm(model, q, loader)

    The running moments are computed by Welford's method in float64. The paper's formula, the mean of squares minus the
    square of the mean, loses all digits where weights vary by less than 1e-4 of their size, and may be negative.

    Args:
        model: Network whose trainable parameters are collected; the constructor does not copy or change it.
        rank: Number of the last deviations that are kept, ``K`` in the paper; at least 2, or 0 for SWAG-Diagonal.

    Attributes:
        count: Number of times that weights were collected.

    Raises:
        ValueError: The rank is 1, negative or not an integer, or the model has no trainable parameters.
    """

    def __init__(self, model: nn.Module, *, rank: int = 20) -> None:
        check("rank", rank, "0 or a whole number of at least 2", lambda v: is_whole(v, 0) and v != 1)
        self._model = innermost(model)
        self._parameters = {name: p for name, p in self._model.named_parameters() if p.requires_grad}
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
        """Add the current weights to the moments, and keep their deviation from the running mean.

        Raises:
            ValueError: Weights are not finite.
        """
        finite = truths(parameter.isfinite().all() for parameter in self._parameters.values())
        if not all(finite):
            name = list(self._parameters)[finite.index(False)]
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
        """Return the posterior ``N(mean, scale (diag(variance) + D D' / (K - 1)))`` (Maddox et al. 2019, section 3.3).

        ``variance`` is the mean squared deviation of all weights collected, and ``D`` has the last ``K`` deviations,
        each from the mean of the weights collected until then; ``K`` is at most ``rank``. The first deviation, which is
        zero, counts as long as it is among them.

        Args:
            scale: Factor of the covariance; the paper uses 1/2. The paper's SWAG-Diagonal is ``rank=0`` with a scale of
                1.

        Returns:
            A posterior with copies of the moments, in float32 or wider, and of the model's buffers, and with ``scale``,
            ``rank`` and ``count`` among its hyper-parameters.

        Raises:
            ValueError: The scale is not positive.
            RuntimeError: Weights were collected fewer than 2 times.
        """
        check_positive("scale", scale)
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
        hyperparameters = {
            "method": "swag",
            "rank": self.rank,
            "count": self.count,
            "scale": scale,
            **of_training(self._model),
        }
        return LowRankGaussian(mean, diagonal, factors, hyperparameters=hyperparameters).with_buffers(
            buffers_of(self._model)
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state for :meth:`load_state_dict` as a dict of numbers and of tensors, which are not copies."""
        return {
            "rank": self.rank,
            "count": self.count,
            "mean": dict(self._mean),
            "squares": dict(self._squares),
            "deviations": list(self._deviations),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of :meth:`state_dict`; tensors are copied to the parameters' devices.

        Raises:
            ValueError: The state is of another rank or of other parameters.
        """
        if state["rank"] != self.rank:
            raise ValueError(f"rank must be that of the state, {state['rank']!r}, got {self.rank!r}")
        parts = [state["mean"], state["squares"], *state["deviations"]]
        for part in parts if state["count"] else []:
            shapes = {name: tuple(value.shape) for name, value in part.items()}
            expected = {name: tuple(p.shape) for name, p in self._parameters.items()}
            if shapes != expected:
                raise ValueError(f"the state must be of the model's parameters {expected}, got {shapes}")
        mean, squares, *deviations = [
            {name: value.to(self._parameters[name].device, copy=True) for name, value in part.items()} for part in parts
        ]
        self.count = state["count"]
        self._mean, self._squares = mean, squares
        self._deviations = deque(deviations, maxlen=self.rank)
