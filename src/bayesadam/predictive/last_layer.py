"""Samples of a last layer: the layers before it run once for all of them."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bayesadam.moments.observer import version_of
from bayesadam.posterior import NetworkDistribution
from bayesadam.posterior.gaussian import GaussianPosterior
from bayesadam.predictive.batches import (
    Chunked,
    Output,
    Rows,
    as_batches,
    call,
    draws_in_eval_mode,
    groups,
    no_batches,
)
from bayesadam.progress import progress_bar


@torch.no_grad()
def last_layer_outputs(
    model: nn.Module,
    layer: nn.Linear,
    posterior: NetworkDistribution,
    inputs: Any,
    *,
    count: int,
    seed: int,
    output: Output | None,
    batch_size: int | None,
    progress: bool | None,
) -> tuple[Tensor, Tensor] | None:
    """Outputs ``(N, ...)`` at the mean and ``(S, N, ...)`` at the first ``S = count`` samples.

    They are those of :func:`bayesadam.predictive.monte_carlo.outputs_at_samples`, up to rounding. None if the result of
    :func:`random_layer` does not give the outputs.
    """
    batches, single = as_batches(inputs)
    calls: list[tuple[Tensor, Tensor]] = []

    def run(rows: Rows) -> tuple[Tensor, ...]:
        calls.clear()
        found = call(model, rows.batch, output)
        if len(calls) != 1 or calls[0][1] is not found or version_of(found):
            raise _AnotherLayerError
        return calls[0]

    forward = Chunked(run, batch_size)
    features: list[Tensor] = []
    with (
        draws_in_eval_mode(model, posterior, seed) as put,
        progress_bar("predicting", operator.length_hint(batches) or None, progress, shown=not single) as advance,
    ):
        put(None)
        handle = layer.register_forward_hook(lambda _, args, found: calls.append((args[0], found)), prepend=True)
        try:
            for (batch,) in groups(batches, layer.weight.device, single, 0):
                features.append(forward(batch)[0])
                advance()
            if not features:
                raise no_batches()
            put(0)
            again, _ = run(Rows(batch).part(0, 1))
            if not torch.dist(again, features[-1][:1]) <= torch.finfo(again.dtype).eps ** 0.5 * again.norm():
                return None  # the layers before use the random weights, too
        except _AnotherLayerError:
            return None
        finally:
            handle.remove()

        def at(number: int | None) -> Tensor:
            put(number)
            return functional.linear(torch.cat(features), layer.weight, layer.bias)

        mean = at(None)
        samples = mean.new_empty((count, *mean.shape))
        for number in range(count):
            samples[number] = at(number)
    return mean, samples


class _AnotherLayerError(Exception):
    """Raised if the outputs are not those of one call of the layer."""


def random_layer(model: nn.Module, posterior: NetworkDistribution) -> nn.Linear | None:
    """The linear layer that has all random weights, and shares none of them."""
    if not isinstance(posterior, GaussianPosterior):
        return None
    tensors = posterior.match(model)
    random = {id(tensors[name]) for name, variance in posterior.variance.items() if variance.any()}
    uses = [id(p) for _, p in model.named_parameters(remove_duplicate=False)]
    for module in model.modules():
        if isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward:
            own = set(map(id, module._parameters.values()))
            if random and random <= own and module._parameters.get("weight") is not None:
                return module if all(uses.count(each) == 1 for each in random) else None
    return None
