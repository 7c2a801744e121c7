"""Samples of a last layer: the layers before it run once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from bayesadam.functional.curvature import precision
from bayesadam.modules.calls import Output, call, first_argument, version_of
from bayesadam.posterior import NetworkDistribution, PartialGaussian
from bayesadam.posterior.gaussian_posterior import GaussianPosterior
from bayesadam.predictive.batches import Chunked, Rows, as_batches, draws_in_eval_mode, groups, joined
from bayesadam.predictive.plan import Options

WEIGHTS_BYTES = 2**26
"""Memory for the layer's weights at several samples."""


@contextmanager
def followed(
    model: nn.Module, layer: nn.Linear, output: Output | None
) -> Iterator[Callable[[Rows], tuple[Tensor | None, Tensor]]]:
    """Context with a function that runs the network and returns the inputs of the layer, and the network's outputs.

    The inputs are None if the network's outputs are not those of one call of the layer.
    """
    calls: list[tuple[Tensor, Tensor]] = []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> None:
        calls.append((first_argument(args, kwargs), result))

    def run(rows: Rows) -> tuple[Tensor | None, Tensor]:
        calls.clear()
        outputs = call(model, rows.batch, output)
        rows.check(outputs)
        gives = len(calls) == 1 and calls[0][1] is outputs and not version_of(outputs)
        return calls[0][0] if gives else None, outputs

    handle = layer.register_forward_hook(note, prepend=True, with_kwargs=True)
    try:
        yield run
    finally:
        handle.remove()


@torch.no_grad()
def last_layer_outputs(
    model: nn.Module, layer: nn.Linear, posterior: NetworkDistribution, inputs: Any, options: Options
) -> tuple[Tensor, Tensor] | None:
    """Outputs ``(N, ...)`` at the mean and ``(S, N, ...)`` at the samples.

    They are those of :func:`bayesadam.predictive.monte_carlo.outputs_at_samples`, up to rounding. None if the result of
    :func:`random_layer` does not give the outputs, or if they depend on its weights in another way as well.
    """
    batches, single = as_batches(inputs)
    with draws_in_eval_mode(model, posterior, options.seed) as put, followed(model, layer, options.output) as run:

        def features_of(rows: Rows) -> tuple[Tensor]:
            features, outputs = run(rows)
            return (outputs.new_full((rows.count, 0), torch.nan) if features is None else features,)

        forward = Chunked(features_of, options.batch_size)
        put(None)
        parts = [(forward(rows)[0], rows) for (rows,) in groups(batches, layer.weight.device, single, 0)]
        if not parts or any(part.shape[-1] != layer.in_features for part, _ in parts):
            return None
        first, rows = parts[0]
        put(0)
        (again,) = features_of(rows.part(0, 1))
        if not torch.dist(again, first[:1]) <= precision(again) ** 0.5 * again.norm():
            return None
        put(None)  # the posterior may be made of the model's own tensors
        features = joined([part for part, _ in parts], "features")
        gaussian = cast("GaussianPosterior", posterior)
        samples = outputs_at_weights(features, layer, gaussian, gaussian.match(model), options.mc_samples, options.seed)
        return functional.linear(features, layer.weight, layer.bias), samples


def outputs_at_weights(
    features: Tensor,
    layer: nn.Linear,
    posterior: GaussianPosterior,
    tensors: Mapping[str, Tensor],
    count: int,
    seed: int = 0,
) -> Tensor:
    """Outputs of a layer at samples of its weights, ``(S, N, ...)``, by one product of its inputs with many samples.

    Args:
        features: Inputs of the layer, ``(N, ..., F)``.
        layer: The layer.
        posterior: Posterior over weights, among them those of the layer.
        tensors: The network's tensors, by the posterior's names.
        count: Number of samples.
        seed: Seed of the samples.
    """
    random = posterior.random if isinstance(posterior, PartialGaussian) else posterior
    targets, sampled = {}, {}
    for name in random.mean:
        targets[name] = sampled[id(tensors[name])] = torch.empty_like(tensors[name])
    weight = sampled.get(id(layer.weight), layer.weight)
    bias = None if layer.bias is None else sampled.get(id(layer.bias), layer.bias)
    write, step, parts = random.writer(seed), max(1, WEIGHTS_BYTES // max(1, weight.nbytes)), []
    for start in range(0, count, step):
        weights, biases = [], []
        for number in range(start, min(start + step, count)):
            write(targets, number)
            weights.append(weight.clone())
            if bias is not None:
                biases.append(bias.clone())
        product = functional.linear(features, torch.cat(weights), torch.cat(biases) if biases else None)
        parts.append(product.reshape(*product.shape[:-1], len(weights), layer.out_features).movedim(-2, 0))
    return torch.cat(parts)
