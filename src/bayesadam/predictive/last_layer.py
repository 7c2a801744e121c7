"""Samples of a last layer: the layers before it run once for all of them."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from bayesadam.curvature.totals import chunks
from bayesadam.functional.calls import first_argument
from bayesadam.functional.curvature import precision
from bayesadam.moments.observer import version_of
from bayesadam.posterior import NetworkDistribution, PartialGaussian
from bayesadam.posterior.calls import call
from bayesadam.posterior.gaussian import GaussianPosterior
from bayesadam.predictive.batches import Chunked, Rows, as_batches, draws_in_eval_mode, groups, joined
from bayesadam.predictive.plan import How

WEIGHTS_BYTES = 2**26
"""Memory for the layer's weights at several samples."""


@torch.no_grad()
def last_layer_outputs(
    model: nn.Module, layer: nn.Linear, posterior: NetworkDistribution, inputs: Any, how: How
) -> tuple[Tensor, Tensor] | None:
    """Outputs ``(N, ...)`` at the mean and ``(S, N, ...)`` at the samples.

    They are those of :func:`bayesadam.predictive.monte_carlo.outputs_at_samples`, up to rounding. None if the result of
    :func:`random_layer` does not give the outputs, or if they depend on its weights in another way as well.
    """
    batches, single = as_batches(inputs)
    calls: list[tuple[Tensor, Tensor]] = []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], found: Tensor) -> None:
        calls.append((first_argument(args, kwargs), found))

    def run(rows: Rows) -> tuple[Tensor, ...]:
        calls.clear()
        found = call(model, rows.batch, how.output)
        rows.check(found)
        if len(calls) == 1 and calls[0][1] is found and not version_of(found):
            return calls[0]
        return found.new_full((rows.count, 0), torch.nan), found

    forward = Chunked(run, how.batch_size)
    with draws_in_eval_mode(model, posterior, how.seed) as put:
        put(None)
        handle = layer.register_forward_hook(note, prepend=True, with_kwargs=True)
        try:
            parts = [(forward(rows)[0], rows) for (rows,) in groups(batches, layer.weight.device, single, 0)]
            if not parts or any(part.shape[-1] != layer.in_features for part, _ in parts):
                return None
            first, rows = parts[0]
            put(0)
            again, _ = run(rows.part(0, 1))
            if not torch.dist(again, first[:1]) <= precision(again) ** 0.5 * again.norm():
                return None
        finally:
            handle.remove()
        put(None)  # the posterior may be made of the model's own tensors
        features = joined([part for part, _ in parts], "features")
        samples = _outputs(features, layer, cast(GaussianPosterior, posterior), model, how)
        return functional.linear(features, layer.weight, layer.bias), samples


def _outputs(features: Tensor, layer: nn.Linear, posterior: GaussianPosterior, model: nn.Module, how: How) -> Tensor:
    """Outputs of the layer at all samples, ``(S, N, ...)``, by one product of the features with many samples."""
    random = posterior.random if isinstance(posterior, PartialGaussian) else posterior
    tensors, write = posterior.match(model), random.writer(how.seed)
    targets = {name: torch.empty_like(tensors[name]) for name in random.mean}
    sampled = {id(tensors[name]): target for name, target in targets.items()}
    parts = []
    for numbers in chunks(how.mc_samples, layer.weight.nbytes, WEIGHTS_BYTES):
        weights, biases = [], []
        for number in range(numbers.start, numbers.stop):
            write(targets, number)
            weights.append(sampled.get(id(layer.weight), layer.weight).clone())
            if layer.bias is not None:
                biases.append(sampled.get(id(layer.bias), layer.bias).clone())
        found = functional.linear(features, torch.cat(weights), torch.cat(biases) if biases else None)
        parts.append(found.reshape(*found.shape[:-1], len(weights), layer.out_features).movedim(-2, 0))
    return torch.cat(parts)
