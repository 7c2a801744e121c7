"""Batch norm statistics of every sample's own.

In training, a batch norm layer divides by the spread that a batch has at the sampled weights, and so removes what noise
in the weights before it does to its channels' means and spreads. Running statistics are averages over many samples and
do not remove it: a sampled network is then another function than in training, the more so the wider the posterior.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesadam.posterior import NetworkDistribution
from bayesadam.predictive.batches import Rows, as_batches, call, groups, in_eval_mode, no_batches

ROWS = 1000
"""Of the inputs, as many are used; with more the statistics hardly change."""
_CHUNK = 250
"""A tensor's rows are cut into batches of at most so many."""


class WithOwnStatistics(NetworkDistribution):
    """A distribution over networks whose batch norm layers get their running statistics anew in every one of them.

    Args:
        distribution: Of the networks otherwise.
        inputs: As for :func:`bayesadam.predict`: like those of training. Of a tensor, tuple or dict ``ROWS`` rows are
            used that are spread evenly, of a loader the first batches that have as many.
    """

    def __init__(self, distribution: NetworkDistribution, inputs: Any) -> None:
        self.distribution = distribution
        self.inputs = inputs

    @contextmanager
    def draws(self, model: nn.Module, seed: int = 0) -> Iterator[Callable[[int | None], None]]:
        """See the base class.

        Raises:
            ValueError: Also: a model without batch norm layers that have running statistics, or an empty loader.
        """
        layers = normalized(model)
        if not layers:
            raise ValueError("batch_norm must be None for a model without batch norm statistics, got inputs")
        device = next(model.parameters(), torch.empty(0)).device
        batches = list(_batches(self.inputs, device))
        buffers = [(buffer, buffer.clone()) for layer in layers for buffer in layer.buffers()]
        try:
            with self.distribution.draws(model, seed) as put_weights:

                def put(number: int | None) -> None:
                    put_weights(number)
                    estimate(model, layers, batches)

                yield put
        finally:
            for buffer, before in buffers:
                buffer.copy_(before)


def normalized(model: nn.Module) -> list[_BatchNorm]:
    """The batch norm layers that have running statistics."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]


@torch.no_grad()
def estimate(model: nn.Module, layers: Iterable[_BatchNorm], batches: Iterable[Any]) -> None:
    """Set running statistics to their averages over the batches; all else is in eval mode meanwhile."""
    momenta = [(layer, layer.momentum) for layer in layers]
    with in_eval_mode(model):
        try:
            for layer, _ in momenta:
                layer.reset_running_stats()
                layer.momentum, layer.training = None, True  # a cumulative average
            for batch in batches:
                call(model, batch, lambda _: torch.empty(0))
        finally:
            for layer, momentum in momenta:
                layer.momentum = momentum


def _batches(inputs: Any, device: torch.device) -> Iterator[Any]:
    """About ``ROWS`` rows in batches, on the device."""
    found, single = as_batches(inputs)
    rows = 0
    for (batch,) in groups(found, device, single, 0):
        whole = Rows(batch)
        if single:
            yield from _parts(whole)
            return
        yield batch
        rows += whole.count
        if rows >= ROWS:
            return
    if not rows:
        raise no_batches()


def _parts(whole: Rows) -> Iterator[Any]:
    """Rows that are spread evenly, in batches of about the same size."""
    used = min(whole.count, ROWS)
    numbers = torch.arange(used) * whole.count // used
    for part in numbers.tensor_split(math.ceil(used / _CHUNK)):
        yield whole.select(part).batch
