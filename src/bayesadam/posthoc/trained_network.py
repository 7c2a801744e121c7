"""A trained network with its likelihood: its outputs, and the curvature of the likelihood there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.likelihoods import Likelihood, check_likelihood
from bayesadam.likelihoods.parameters import check_densities
from bayesadam.posterior.dense import MAX_WEIGHTS
from bayesadam.predictive.batches import Rows, inputs_and_target, placed
from bayesadam.predictive.pairs import Data, batches_of_rows, is_single, length
from bayesadam.predictive.plan import warn_of_probabilities
from bayesadam.progress import progress_bar

CURVATURES = ("ggn", "empirical_fisher")

FACTOR_BYTES = 2**28
"""Memory for the factors of the Hessians of several rows' outputs."""


class TrainedNetwork:
    """A model, its likelihood, and the kind of curvature.

    Attributes:
        model: The model.
        likelihood: The likelihood of the targets given its outputs.
        output: Function that takes the output tensor out of what the model returns.
        curvature: One of ``CURVATURES``.
        trainable: Parameters that a posterior covers, by name.

    Raises:
        ValueError: The curvature is unknown, the likelihood is none, or no parameter is trainable.
    """

    def __init__(
        self, model: nn.Module, likelihood: Likelihood, output: Callable[[Any], Tensor] | None, curvature: str
    ) -> None:
        if curvature not in CURVATURES:
            raise ValueError(f"curvature must be one of {CURVATURES}, got {curvature!r}")
        check_likelihood(likelihood)
        self.model = model
        self.likelihood = likelihood
        self.output = output
        self.curvature = curvature
        self.trainable: dict[str, nn.Parameter] = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                self.trainable[name] = parameter
        if not self.trainable:
            raise ValueError("model must have a trainable parameter, got none")


class Hessians:
    """The curvature of ``-log p(y | output)`` at the outputs of a batch, as block-diagonal factors.

    The outputs of an example are divided, in order, into ``P`` blocks of ``K`` outputs each, and the Hessian over block
    ``p`` of example ``n`` is ``S S'`` with ``S = factor[n, p]``. For ``"ggn"`` it is the likelihood's
    :meth:`fisher_factor`; for ``"empirical_fisher"`` the blocks are data points, and ``S`` is the likelihood's
    :meth:`score`. It is 0 for targets that are ignored.

    Args:
        network: The network.
        output: Outputs, ``(N, ...)``.
        target: Targets, as the likelihood takes them.

    Attributes:
        counted: Mask of the targets that are not ignored; None if all count.
        first: The factor of the first example, ``(1, P, K, R)``.
        are_blocks: Whether the outputs along the last axis are one block.

    Raises:
        ValueError: The target does not fit the output.
    """

    @torch.no_grad()
    def __init__(self, network: TrainedNetwork, output: Tensor, target: Tensor) -> None:
        self.likelihood = network.likelihood
        self.curvature = network.curvature
        self.output = output.detach()
        self.target = target
        self.counted = self.likelihood.counted(target)
        self._filled = target if self.counted is None else target.where(self.counted, 0)
        self.likelihood.check(output, self._filled)
        self.first = self.factor(1)
        self.are_blocks = self.first.shape[2] == output.shape[-1]

    @torch.no_grad()
    def log_likelihood(self) -> Tensor:
        """Sum of the log densities of all data points that are not ignored, and their number; ``(2,)`` in float64."""
        density = self.likelihood.log_density(self.output, self._filled)
        density = check_densities(density, self.output, self.target).double()
        counted = torch.ones_like(density) if self.counted is None else self.counted.double()
        return torch.stack([density.where(counted > 0, 0.0).sum(), counted.sum()])

    @torch.no_grad()
    def factor(self, count: int | None = None) -> Tensor:
        """The factors of all examples, or of the first ones, ``(N, P, K, R)``."""
        output, target = self.output[:count], self._filled[:count]
        if self.curvature == "empirical_fisher":
            points = self.likelihood.log_density(output[:1], target[:1]).numel()
            factor = self.likelihood.score(output, target).reshape(len(output), points, -1, 1)
        else:
            factor = self.likelihood.fisher_factor(output, target)
        if self.counted is None:
            return factor
        return factor.masked_fill(~self.counted[:count].reshape(len(output), -1, 1, 1), 0.0)

    def columns(self) -> tuple[Iterator[Tensor], int]:
        """The columns of the whole factor of an example's Hessian: ``P R`` tensors of the output's shape, and their
        number. If the factor is large they are made one by one; see :meth:`parts`.
        """
        if len(self.output) * self.first.nbytes > FACTOR_BYTES and self._is_of_classes():
            return self._class_columns(), self.output.shape[1]
        factor = self.factor()
        return _columns(factor, self.output), factor.shape[1] * factor.shape[3]

    def parts(self, rows: Rows, *, by_columns: bool = False) -> list[tuple[Rows, Tensor]]:
        """Divide the batch into parts whose factors fit into memory, with their targets; none if it need not be
        divided.

        Args:
            rows: The batch.
            by_columns: Whether only the factor's :meth:`columns` are needed, which may be made one by one.
        """
        step = max(1, FACTOR_BYTES // self.first.nbytes)
        if step >= len(self.output) or (by_columns and self._is_of_classes()):
            return []
        starts = range(0, len(self.output), step)
        return [(rows.part(start, start + step), self.target[start : start + step]) for start in starts]

    @torch.no_grad()
    def total(self) -> Tensor:
        """The sum of the Hessians of all blocks of all examples: ``(K, K)`` in float64."""
        sums_itself = self.counted is None or self.likelihood.defines("fisher_sum")
        if self.curvature == "empirical_fisher" or not sums_itself:
            columns = self.factor().movedim(2, 0).flatten(1).double()
            return columns @ columns.mT
        return self.likelihood.fisher_sum(self.output, self.target)

    def _is_of_classes(self) -> bool:
        """Whether the factor of a row consists of the scores of all classes, times the roots of their probabilities."""
        has_scores = all(map(self.likelihood.defines, ("fisher_factor", "log_probs")))
        return has_scores and self.first.shape[1:] == (1, self.output.shape[-1], self.output.shape[-1])

    @torch.no_grad()
    def _class_columns(self) -> Iterator[Tensor]:
        roots = (0.5 * self.likelihood.log_probs(self.output)).exp()
        for number in range(self.output.shape[1]):
            score = self.likelihood.score(self.output, torch.full_like(self.target, number))
            column = score * roots[:, number, None]
            yield column if self.counted is None else column * self.counted.unsqueeze(-1)


def go_through(
    network: TrainedNetwork,
    total: Any,
    data: Data,
    batch_size: int | None,
    progress: bool | None,
) -> tuple[float, int]:
    """Add all data to a sum of the curvature; return the log-likelihood and the number of data points, which are read
    at the end, since a device would be waited for after every batch.

    Args:
        network: The network.
        total: Object whose ``add(rows, target)`` adds a batch and returns its :class:`Hessians`.
        data: See :class:`bayesadam.posthoc.LaplaceApproximation`.
        batch_size: Rows of a pair in one pass.
        progress: Whether to show a progress bar; by default it is shown for loaders in a terminal.

    Raises:
        ValueError: The log-likelihood is not finite, or no data point counts.
    """
    sums: list[Tensor] = []
    device = next(iter(network.trainable.values())).device
    bar: AbstractContextManager[Any] = nullcontext()
    if progress or not is_single(data):
        bar = progress_bar("fitting the curvature", length(data, batch_size), progress)
    with bar as advance:
        for rows, target in _rows_that_count(network.likelihood, data, batch_size):
            rows, target = rows.on(device), placed(target, device)
            hessians = total.add(rows, target)
            if not sums:
                warn_of_probabilities(network.model, network.likelihood, hessians.output)
            sums.append(hessians.log_likelihood())
            if advance is not None:
                advance()
    log_likelihood, count = torch.stack(sums).sum(0).tolist() if sums else (0.0, 0)
    if not math.isfinite(log_likelihood):
        raise ValueError(f"the log-likelihood must be finite, got {log_likelihood!r}")
    if not count:
        raise ValueError("data must have at least one example, got none")
    return log_likelihood, int(count)


def _rows_that_count(likelihood: Likelihood, data: Data, batch_size: int | None) -> Iterator[tuple[Rows, Tensor]]:
    """Batches where the data are, without rows whose targets are all ignored.

    If the targets are on a GPU, it is waited for: for every batch, since the number of rows depends on them, but only
    once for a pair without ignored targets.
    """
    all_count = False
    for number, (rows, target) in enumerate(batches_of_rows(data, None, batch_size)):
        if number == 0 and is_single(data):
            counted = likelihood.counted(inputs_and_target(data)[1])
            all_count = counted is None or bool(counted.all())
        counted = None if all_count else likelihood.counted(target)
        if counted is not None:
            counted = counted.unsqueeze(1).flatten(1).any(1)
            if not counted.all():
                rows, target = rows.select(counted.nonzero().flatten()), target[counted]
        if rows.count:
            yield rows, target


def _columns(factor: Tensor, output: Tensor) -> Iterator[Tensor]:
    for block in range(factor.shape[1]):
        for column in range(factor.shape[3]):
            whole = torch.zeros_like(factor[..., 0])
            whole[:, block] = factor[:, block, :, column]
            yield whole.view_as(output)


def too_large(structure: str, size: int, other: str) -> ValueError:
    """Make the error for a dense matrix over more weights than ``MAX_WEIGHTS``."""
    return ValueError(
        f"structure must be {other} where a matrix would have more than {MAX_WEIGHTS:,} rows, got {structure!r} "
        f"for {size:,} weights, which is {size**2 * 8 / 1e9:,.1f} GB"
    )
