"""A trained network with its likelihood: its outputs, and the curvature of the likelihood there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.likelihoods import Likelihood, check_likelihood
from bayesadam.likelihoods.parameters import check_densities
from bayesadam.posterior.calls import call
from bayesadam.predictive.batches import Rows, in_eval_mode

CURVATURES = ("ggn", "empirical_fisher")

FACTOR_BYTES = 2**28
"""Memory for the factors of the Hessians of several rows' outputs."""


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
        target, ignored = self._without_ignored(target)
        self.likelihood.check(output, target)
        output = output.detach()
        if self.curvature == "empirical_fisher":
            points = self.likelihood.log_density(output[:1], target[:1]).numel()
            factor = self.likelihood.score(output, target).reshape(len(output), points, -1, 1)
        else:
            factor = self.likelihood.fisher_factor(output, target)
        return factor if ignored is None else factor.masked_fill(ignored.reshape(len(output), -1, 1, 1), 0.0)

    @torch.no_grad()
    def log_likelihood(self, output: Tensor, target: Tensor) -> Tensor:
        """Sum of the log densities of all data points that are not ignored, and their number; ``(2,)`` in float64."""
        target, ignored = self._without_ignored(target)
        density = check_densities(self.likelihood.log_density(output, target), output, target).double()
        counted = torch.ones_like(density) if ignored is None else (~ignored).double()
        return torch.stack([density.where(counted > 0, 0.0).sum(), counted.sum()])

    def _without_ignored(self, target: Tensor) -> tuple[Tensor, Tensor | None]:
        """The target with class 0 in the place of ignored ones, and a mask of these if there are any."""
        counted = self.likelihood.counted(target)
        return (target, None) if counted is None else (target.where(counted, 0), ~counted)

    def columns(self, output: Tensor, target: Tensor) -> tuple[Iterator[Tensor], int]:
        """The columns of the whole factor of an example's Hessian, see :meth:`factor`: ``P R`` tensors of the output's
        shape, and their number. If the factor is large they are made one by one; see :meth:`parts`.
        """
        if len(output) * self._first(output, target).nbytes > FACTOR_BYTES and self._is_of_classes(output, target):
            return self._class_columns(output, target), output.shape[1]
        factor = self.factor(output, target)
        return _columns(factor, output), factor.shape[1] * factor.shape[3]

    def parts(
        self, rows: Rows, output: Tensor, target: Tensor, *, by_columns: bool = False
    ) -> list[tuple[Rows, Tensor]]:
        """Divide a batch into parts whose factors fit into memory, with their targets; none if it need not be divided.

        Args:
            rows: The batch.
            output: Its outputs.
            target: Its targets.
            by_columns: Whether only the factor's :meth:`columns` are needed, which may be made one by one.
        """
        step = max(1, FACTOR_BYTES // self._first(output, target).nbytes)
        if step >= len(output) or (by_columns and self._is_of_classes(output, target)):
            return []
        starts = range(0, len(output), step)
        return [(rows.part(start, start + step), target[start : start + step]) for start in starts]

    def is_block(self, output: Tensor, target: Tensor) -> bool:
        """Whether the outputs along the last axis are one block of the Hessian."""
        return self._first(output, target).shape[2] == output.shape[-1]

    def _first(self, output: Tensor, target: Tensor) -> Tensor:
        """The factor of the first row, after a check of all rows."""
        self.likelihood.check(output, self._without_ignored(target)[0])
        return self.factor(output[:1], target[:1])

    def _is_of_classes(self, output: Tensor, target: Tensor) -> bool:
        """Whether the factor of a row consists of the scores of all classes, times the roots of their probabilities."""
        known = all(map(self.likelihood.defines, ("fisher_factor", "log_probs")))
        return known and self._first(output, target).shape[1:] == (1, output.shape[-1], output.shape[-1])

    @torch.no_grad()
    def _class_columns(self, output: Tensor, target: Tensor) -> Iterator[Tensor]:
        output = output.detach()
        roots = (0.5 * self.likelihood.log_probs(output)).exp()
        counted = self.likelihood.counted(target)
        for number in range(output.shape[1]):
            column = self.likelihood.score(output, torch.full_like(target, number)) * roots[:, number, None]
            yield column if counted is None else column * counted.unsqueeze(-1)

    @torch.no_grad()
    def total(self, output: Tensor, target: Tensor) -> Tensor:
        """The sum of the Hessians of all blocks of all examples, see :meth:`factor`: ``(K, K)`` in float64."""
        filled, ignored = self._without_ignored(target)
        sums_itself = ignored is None or self.likelihood.defines("fisher_sum")
        if self.curvature == "empirical_fisher" or not sums_itself:
            columns = self.factor(output, target).movedim(2, 0).flatten(1).double()
            return columns @ columns.mT
        self.likelihood.check(output, filled)
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


def _columns(factor: Tensor, output: Tensor) -> Iterator[Tensor]:
    for block in range(factor.shape[1]):
        for column in range(factor.shape[3]):
            whole = torch.zeros_like(factor[..., 0])
            whole[:, block] = factor[:, block, :, column]
            yield whole.view_as(output)
