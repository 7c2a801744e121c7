"""Batch norm statistics that are estimated anew at a posterior's mean, or for every sample.

In training, a batch norm layer divides by the standard deviation of the batch at the sampled weights. It thus removes
the effect of weight noise in earlier layers on the means and scales of its channels. Running statistics are averages
over many samples and do not remove this effect, so with them a sampled network computes another function than in
training. The difference grows with the width of the posterior.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesadam.modules.batch_norm import OF_MEAN, OF_TRAINING, STATISTICS, statistics_are_fixed
from bayesadam.modules.calls import call
from bayesadam.modules.exclusive import Parts, exclusively, in_eval_mode
from bayesadam.modules.wrappers import buffers_of
from bayesadam.posterior import Mixture, NetworkDistribution, Posterior
from bayesadam.posterior.report import PER_TENSOR
from bayesadam.predictive.batches import Rows, as_batches, groups, no_batches

ROWS = 1000
"""Number of rows of the inputs that are used; with more rows the statistics hardly change."""
_CHUNK = 250
"""Largest number of rows in a batch into which a tensor is divided."""


class WithOwnStatistics(NetworkDistribution):
    """A distribution over networks in which the running statistics of batch norm are estimated anew for every network.

    Args:
        distribution: The distribution over networks.
        inputs: Inputs like those of training, as for :func:`bayesadam.predict`. Of a tensor, tuple or dict about
            ``ROWS`` evenly spaced rows are used; of a loader, the first batches that have as many rows.
    """

    def __init__(self, distribution: NetworkDistribution, inputs: Any) -> None:
        self.distribution = distribution
        self.inputs = inputs
        self.strata = distribution.strata

    def repeats(self, count: int) -> list[int]:
        """The numbers of the first equal samples, as in the distribution itself."""
        return self.distribution.repeats(count)

    @contextmanager
    def draws(self, model: nn.Module, seed: int = 0) -> Iterator[Callable[[int | None], None]]:
        """Return a context as in the base class, with statistics of its own for every sample.

        Raises:
            ValueError: As in the base class; or the model has no batch norm layers with running statistics, or the
                loader is empty.
        """
        layers = Parts(model).normalized
        if not layers:
            raise ValueError("batch_norm must be None for a model without batch norm statistics, got inputs")
        device = next(model.parameters(), torch.empty(0)).device
        batches = list(_batches(self.inputs, device))
        with exclusively(model):
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


P = TypeVar("P", bound=NetworkDistribution)


def with_batch_norm(model: nn.Module, posterior: P, inputs: Any) -> P:
    """Return a posterior with the batch norm statistics of its mean, which :func:`bayesadam.predict` then uses.

    Running statistics are averages over the weights that a network had in training. For the posterior of a training
    with sampled weights, or of SWAG, these are not the statistics of its mean, with which predictions are more accurate
    and more certain. They are buffers of the posterior and saved with it; call the function again after changing the
    posterior's means, as by pruning. For a mixture they are computed for every component.

    Args:
        model: The network, which is as before afterwards.
        posterior: The posterior over its weights.
        inputs: Inputs like those of training, in any form that :func:`bayesadam.predict` takes. Of a tensor, tuple or
            dict about 1,000 evenly spaced rows are used; of a loader, the first batches that have as many rows.

    Returns:
        The same posterior with all buffers of the model, among which the statistics are new.

    Raises:
        ValueError: The model has no batch norm layers with running statistics or does not match the posterior, the
            posterior is none, or the loader is empty.
    """
    if isinstance(posterior, Mixture):
        parts = [with_batch_norm(model, part, inputs) for part in posterior.components]
        return cast("P", Mixture(parts, hyperparameters=posterior.hyperparameters))
    if not isinstance(posterior, Posterior):
        raise ValueError(f"posterior must be a posterior over weights, got {type(posterior).__name__}")
    with WithOwnStatistics(posterior, inputs).applied(model):
        normalized = posterior.with_buffers(buffers_of(model))
    normalized.hyperparameters = {**posterior.hyperparameters, STATISTICS: OF_MEAN}
    return normalized


def warn_of_statistics(model: nn.Module, posterior: NetworkDistribution) -> None:
    """Warn if the batch norm statistics that are about to be used may be averages over samples of training."""
    parts = posterior.components if isinstance(posterior, Mixture) else (posterior,)
    hyperparameters = [part.hyperparameters for part in parts if isinstance(part, Posterior)]
    if OF_TRAINING not in {of.get(STATISTICS, OF_TRAINING if PER_TENSOR in of else OF_MEAN) for of in hyperparameters}:
        return
    if not statistics_are_fixed(model):
        warnings.warn(
            "the network has batch norm layers whose statistics are averages over the weights in training, with which "
            "predictions are less accurate and less certain: call bayesadam.predictive.with_batch_norm once "
            "with inputs like those of training, before the posterior is saved, or give them to predict as batch_norm, "
            "for every sample (None keeps the statistics, as is right after update_bn)",
            UserWarning,
            stacklevel=4,
        )


@torch.no_grad()
def estimate(model: nn.Module, layers: Iterable[_BatchNorm], batches: Iterable[Rows]) -> None:
    """Set running statistics to their averages over the rows of all calls, other layers being in evaluation mode."""
    momenta = [(layer, layer.momentum) for layer in layers]
    rows = dict.fromkeys((layer for layer, _ in momenta), 0)

    def count(layer: _BatchNorm, inputs: tuple[torch.Tensor, ...]) -> None:
        rows[layer] += len(inputs[0])
        layer.momentum = len(inputs[0]) / max(1, rows[layer])  # the average so far is weighted by its rows

    hooks = []
    with in_eval_mode(model):
        try:
            for layer, _ in momenta:
                hooks.append(layer.register_forward_pre_hook(count))
                layer.reset_running_stats()
                layer.training = True
            for batch in batches:
                call(model, batch.batch, lambda _: torch.empty(0))
        finally:
            for hook in hooks:
                hook.remove()
            for layer, momentum in momenta:
                layer.momentum = momentum


def _batches(inputs: Any, device: torch.device) -> Iterator[Rows]:
    """About ``ROWS`` rows in batches, on the device."""
    batches, single = as_batches(inputs)
    rows = first = 0
    for (whole,) in groups(batches, device, single, 0):
        if single:
            yield from _parts(whole)
            return
        first = first or whole.count
        if whole.count < 0.5 * first:
            continue  # its statistics are those of few rows, as of the last batch of a loader
        yield whole
        rows += whole.count
        if rows >= ROWS:
            return
    if not rows:
        raise no_batches()


def _parts(whole: Rows) -> Iterator[Rows]:
    """Evenly spaced rows, in batches of about the same size."""
    used = min(whole.count, ROWS)
    numbers = torch.arange(used) * whole.count // used
    for part in numbers.tensor_split(math.ceil(used / _CHUNK)):
        yield whole.select(part)
