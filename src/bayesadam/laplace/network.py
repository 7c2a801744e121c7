"""The network whose weights are looked at: its outputs, and the curvature of its likelihood there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.functional.outputs import logistic_scale, softmax_factor
from bayesadam.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Likelihood
from bayesadam.predictive.batches import call, in_eval_mode

CURVATURES = ("ggn", "empirical_fisher")


@dataclass(frozen=True)
class Network:
    """A model, what its outputs mean, and which curvature is wanted.

    Attributes:
        output: Takes the output tensor out of what the model returns.
        curvature: One of ``CURVATURES``.
    """

    model: nn.Module
    likelihood: Likelihood
    output: Callable[[Any], Tensor] | None
    curvature: str

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for what cannot be."""
        if self.curvature not in CURVATURES:
            raise ValueError(f"curvature must be one of {CURVATURES}, got {self.curvature!r}")
        known = Categorical | Bernoulli | Gaussian | HeteroscedasticGaussian
        if self.curvature == "ggn" and not isinstance(self.likelihood, known):
            raise ValueError(f"likelihood must be one of bayesadam's for curvature='ggn', got {self.likelihood!r}")
        if not isinstance(self.likelihood, Likelihood):
            raise ValueError(f"likelihood must be one of bayesadam's or a subclass, got {self.likelihood!r}")
        if not self.trainable:
            raise ValueError("model must have a trainable parameter, got none")

    @property
    def trainable(self) -> dict[str, nn.Parameter]:
        """The parameters that a posterior covers, by name."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def __call__(self, inputs: Any) -> Tensor:
        """The outputs ``(N, ...)`` for a tensor, a tuple (``model(*inputs)``) or a dict (``model(**inputs)``).

        Raises:
            TypeError: The model returns no tensor, and ``output`` does not take one out.
        """
        return call(self.model, inputs, self.output)

    def factor(self, output: Tensor, target: Tensor) -> Tensor:
        """The curvature of ``-log p(y | output)`` as a block-diagonal factor.

        An example's outputs fall, in order, into ``P`` blocks of ``K`` outputs each, and the Hessian over block ``p``
        of example ``n`` is ``S S'`` with ``S = factor[n, p]``. For ``"ggn"`` it is the expectation of the Hessian over
        targets that follow the likelihood, which depends on no target (for all but :class:`HeteroscedasticGaussian` it
        is the Hessian itself); for ``"empirical_fisher"`` the blocks are data points, and ``S`` is the gradient there.

        Args:
            output: ``(N, ...)``.
            target: Of the likelihood.

        Returns:
            ``(N, P, K, R)``.

        Raises:
            ValueError: The target does not fit the output.
        """
        self.likelihood.check(output, target)
        output = output.detach()
        if self.curvature == "empirical_fisher":
            leaf = output.requires_grad_()
            with torch.enable_grad():
                densities = self.likelihood.log_density(leaf, target)
                (gradient,) = torch.autograd.grad(densities.sum(), leaf)
            return gradient.reshape(len(output), densities[0].numel(), -1, 1)
        with torch.no_grad():
            if isinstance(self.likelihood, Categorical):
                return softmax_factor(output).reshape(len(output), -1, output.shape[-1], output.shape[-1])
            return self._scales(output).reshape(len(output), -1, 1, 1)

    def _scales(self, output: Tensor) -> Tensor:
        """The square roots of a Hessian that is diagonal, of the output's shape."""
        if isinstance(self.likelihood, Gaussian | HeteroscedasticGaussian):
            mean, log_variance = self.likelihood.mean_and_log_variance(output)
            scale = (-0.5 * log_variance).exp()
            # Of the log variance v: E (y - m)^2 exp(-v) / 2 = 1 / 2.
            return scale if mean is output else torch.cat([scale, torch.full_like(scale, math.sqrt(0.5))], -1)
        return logistic_scale(output)

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """Eval mode and no ``.grad`` inside; after, modes and ``.grad`` are what they were."""
        gradients = [(p, p.grad) for p in self.model.parameters()]
        try:
            for parameter, _ in gradients:
                parameter.grad = None
            with in_eval_mode(self.model):
                yield
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient


def columns(factor: Tensor, output: Tensor) -> Iterator[Tensor]:
    """The columns of the whole factor of an example's Hessian: ``P R`` tensors of the output's shape."""
    _, blocks, _, width = factor.shape
    for block in range(blocks):
        for column in range(width):
            whole = torch.zeros_like(factor[..., 0])
            whole[:, block] = factor[:, block, :, column]
            yield whole.view_as(output)
