"""A trained network with its likelihood: its outputs, and the curvature of the likelihood there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.likelihoods import Likelihood, check_likelihood
from bayesadam.predictive.batches import call, in_eval_mode

CURVATURES = ("ggn", "empirical_fisher")


@dataclass(frozen=True)
class Network:
    """A model, its likelihood, and the kind of curvature.

    Attributes:
        output: Function that takes the output tensor out of what the model returns.
        curvature: One of ``CURVATURES``.
    """

    model: nn.Module
    likelihood: Likelihood
    output: Callable[[Any], Tensor] | None
    curvature: str

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for arguments that are invalid."""
        if self.curvature not in CURVATURES:
            raise ValueError(f"curvature must be one of {CURVATURES}, got {self.curvature!r}")
        check_likelihood(self.likelihood)
        if not self.trainable:
            raise ValueError("model must have a trainable parameter, got none")

    @property
    def trainable(self) -> dict[str, nn.Parameter]:
        """Parameters that a posterior covers, by name."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def __call__(self, inputs: Any) -> Tensor:
        """Outputs ``(N, ...)`` for a tensor, a tuple (``model(*inputs)``) or a dict (``model(**inputs)``).

        Raises:
            TypeError: The model does not return a tensor, and ``output`` does not take one out.
        """
        return call(self.model, inputs, self.output)

    @torch.no_grad()
    def factor(self, output: Tensor, target: Tensor) -> Tensor:
        """Curvature of ``-log p(y | output)`` as a block-diagonal factor.

        The outputs of an example are divided, in order, into ``P`` blocks of ``K`` outputs each, and the Hessian over
        block ``p`` of example ``n`` is ``S S'`` with ``S = factor[n, p]``. For ``"ggn"`` it is the likelihood's
        :meth:`fisher_factor`; for ``"empirical_fisher"`` the blocks are data points, and ``S`` is the likelihood's
        :meth:`score`.

        Args:
            output: Outputs, ``(N, ...)``.
            target: Targets, as the likelihood takes them.

        Returns:
            The factor, ``(N, P, K, R)``.

        Raises:
            ValueError: The target does not fit the output.
        """
        self.likelihood.check(output, target)
        output = output.detach()
        if self.curvature == "empirical_fisher":
            points = self.likelihood.log_density(output[:1], target[:1]).numel()
            return self.likelihood.score(output, target).reshape(len(output), points, -1, 1)
        return self.likelihood.fisher_factor(output, target)

    @torch.no_grad()
    def total(self, output: Tensor, target: Tensor) -> Tensor:
        """The sum of the Hessians of all blocks of all examples, see :meth:`factor`: ``(K, K)`` in float64."""
        if self.curvature == "empirical_fisher":
            columns = self.factor(output, target).movedim(2, 0).flatten(1).double()
            return columns @ columns.mT
        self.likelihood.check(output, target)
        return self.likelihood.fisher_sum(output.detach(), target)

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """Context with the model in evaluation mode and without ``.grad``; afterwards modes and ``.grad`` are
        restored.
        """
        with in_eval_mode(self.model):
            gradients = [(p, p.grad) for p in self.model.parameters()]
            try:
                for parameter, _ in gradients:
                    parameter.grad = None
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
