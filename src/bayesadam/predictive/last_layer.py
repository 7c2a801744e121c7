"""Samples of a last layer: the layers before it run once for all of them."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
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
"""Memory for the weights at several samples."""

_LATEST = weakref.WeakKeyDictionary[GaussianPosterior, tuple[Any, list[Tensor], dict[str, Tensor]]]()
"""The latest samples of a posterior, which :func:`latest_samples` draws, after what they depend on and its tensors."""


def run_to_layer(model: nn.Module, layer: nn.Linear, rows: Rows, output: Output | None) -> tuple[Tensor | None, Tensor]:
    """Run the network and return the inputs of the layer, and the network's outputs.

    The inputs are None if the network's outputs are not those of one call of the layer.
    """
    calls: list[tuple[Tensor, Tensor]] = []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> None:
        calls.append((first_argument(args, kwargs), result))

    with layer.register_forward_hook(note, prepend=True, with_kwargs=True):
        outputs = call(model, rows.batch, output)
    rows.check(outputs)
    gives = len(calls) == 1 and calls[0][1] is outputs and not version_of(outputs)
    return calls[0][0] if gives else None, outputs


@torch.no_grad()
def last_layer_outputs(
    model: nn.Module, layer: nn.Linear, posterior: NetworkDistribution, inputs: Any, options: Options
) -> tuple[Tensor, Tensor] | None:
    """Outputs ``(N, ...)`` at the mean and ``(S, N, ...)`` at the samples.

    They are those of :func:`bayesadam.predictive.monte_carlo.outputs_at_samples`, up to rounding. None if the result of
    :func:`random_layer` does not give the outputs, or if they depend on its weights in another way as well.
    """
    batches, single = as_batches(inputs)

    def features_of(rows: Rows) -> tuple[Tensor]:
        features, outputs = run_to_layer(model, layer, rows, options.output)
        return (outputs.new_full((rows.count, 0), torch.nan) if features is None else features,)

    forward = Chunked(features_of, options.batch_size)
    gaussian = cast("GaussianPosterior", posterior)
    with draws_in_eval_mode(model, posterior, options.seed) as put:
        put(None)  # the posterior may be made of the model's own tensors
        parts = [(forward(rows)[0], rows) for (rows,) in groups(batches, layer.weight.device, single, 0)]
        if not parts or any(part.shape[-1] != layer.in_features for part, _ in parts):
            return None
        features = joined([part for part, _ in parts], "features")
        tensors, seed = gaussian.match(model), options.seed
        samples = outputs_at_weights(features, layer, gaussian, tensors, options.mc_samples, seed, keep=True)
        center = functional.linear(features, layer.weight, layer.bias)
        first, rows = parts[0]
        put(0)
        (again,) = features_of(rows.part(0, 1))
        is_equal = torch.equal(again, first[:1])  # as for a single row, which is found sooner than the distance
        if not (is_equal or torch.dist(again, first[:1]) <= precision(again) ** 0.5 * again.norm()):
            return None
    return center, samples


def outputs_at_weights(
    features: Tensor,
    layer: nn.Linear,
    posterior: GaussianPosterior,
    tensors: Mapping[str, Tensor],
    count: int,
    seed: int = 0,
    *,
    keep: bool = False,
) -> Tensor:
    """Outputs of a layer at samples of its weights, ``(S, N, ...)``, by one product of its inputs with many samples.

    Args:
        features: Inputs of the layer, ``(N, ..., F)``.
        layer: The layer.
        posterior: Posterior over weights, among them those of the layer.
        tensors: The network's tensors, by the posterior's names.
        count: Number of samples.
        seed: Seed of the samples.
        keep: Whether the samples of the weights are kept for the next call, see :func:`latest_samples`.
    """
    random = posterior.random if isinstance(posterior, PartialGaussian) else posterior
    size = 1
    for mean in random.mean.values():
        size += mean.nbytes
    step, parts = max(1, WEIGHTS_BYTES // size), []
    for start in range(0, count, step):
        number = min(step, count - start)
        sampled = {}
        for parameter in layer.parameters():  # one that the posterior does not have is the same in all samples
            sampled[id(parameter)] = parameter.expand(number, *parameter.shape)
        if keep and count * size <= WEIGHTS_BYTES:
            drawn = latest_samples(random, count, seed)
        else:
            drawn = random.sample(number, seed=seed, first=start)
        for name, draws in drawn.items():
            sampled[id(tensors[name])] = draws.to(tensors[name])
        weights = sampled[id(layer.weight)].flatten(0, 1)
        biases = None if layer.bias is None else sampled[id(layer.bias)].flatten()
        product = functional.linear(features, weights, biases)
        parts.append(product.reshape(*product.shape[:-1], number, layer.out_features).movedim(-2, 0))
    return torch.cat(parts)


def latest_samples(random: GaussianPosterior, count: int, seed: int) -> dict[str, Tensor]:
    """The first samples of a posterior, which must not be changed: they are kept, apart from the posterior, until other
    ones are asked for or a tensor of it changes. To draw them takes longer than to predict a few rows.
    """
    tensors = list(random.tensors().values())
    counted = not any(map(Tensor.is_inference, tensors))  # the changes of others are not
    key = (count, seed, *map(id, tensors), *map(version_of, tensors)) if counted else None
    latest, _, samples = _LATEST.get(random, (None, [], {}))  # together, since another thread may replace them
    if key is None or key != latest:
        samples = random.sample(count, seed=seed)
        _LATEST[random] = key, tensors, samples  # the tensors are kept, so that their identities stay theirs
    return samples
