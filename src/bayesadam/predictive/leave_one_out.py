"""How much a posterior depends on single examples, by their gradients and its covariance."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from bayesadam.checks import check_model
from bayesadam.functional.curvature import wide
from bayesadam.likelihoods import Likelihood, check_likelihood
from bayesadam.modules.exclusive import check_weights_are_used, exclusively
from bayesadam.modules.fsdp import unsharded
from bayesadam.modules.mean_network import MeanNetwork, own_names
from bayesadam.modules.wrappers import unwrapped
from bayesadam.native.device import working_set
from bayesadam.posterior import NetworkDistribution, Posterior
from bayesadam.predictive.batches import Rows, draws_in_eval_mode
from bayesadam.predictive.covariance import OutputCovariance, WeightCovariance, weight_covariance
from bayesadam.predictive.jacobian import Pulled
from bayesadam.predictive.linearized import CHUNK_BYTES
from bayesadam.predictive.pairs import Data, batches_of_rows


@torch.inference_mode(False)
@torch.no_grad()
def sensitivity(
    model: nn.Module,
    posterior: NetworkDistribution,
    data: Data,
    *,
    likelihood: Likelihood,
    output: Callable[[Any], Tensor] | None = None,
    batch_size: int | None = None,
) -> Tensor:
    """Predict how much the negative log-likelihood of each training example grows if it is left out of the training.

    Without example ``i`` the mean of the posterior moves by ``Sigma g_i``, to first order, where ``g_i`` is the
    gradient of the example's negative log-likelihood at the mean, and the outputs for it by ``V_i e_i``, where ``V_i =
    J_i Sigma J_i'`` is their variance by linearisation and ``e_i`` the error, the gradient with respect to the outputs
    (Nickl et al. 2023, arXiv 2310.19273). The result is the change of the negative log-likelihood,
    ``g_i' Sigma g_i = e_i' V_i e_i``: large for examples that are uncertain and badly fitted at once. It is too small
    where an example determines its own output, since the covariance is that of a training with the example.

    Args:
        model: Network whose trainable parameters are those of the posterior; afterwards it is as before. It is run in
            evaluation mode, every row for itself.
        posterior: Gaussian posterior of the training; its temperature should be 1, since the result is in proportion
            to its variances.
        data: Data of the training, as for :func:`bayesadam.laplace`.
        likelihood: Likelihood of the targets given the output, as in the training.
        output: Function that takes the output tensor out of what the model returns, as for :func:`bayesadam.predict`.
        batch_size: Rows of a pair in one pass, as for :func:`bayesadam.predict`. Gradients of as many rows as fit into
            64 MiB on a CPU are in memory at once.

    Returns:
        Changes in nats, not negative, ``(N,)``: summed over the outputs and positions of a row.

    Raises:
        ValueError: The posterior is not Gaussian or does not match the model, a target does not fit its output, or the
            data are not pairs.
        RuntimeError: The output does not depend on the random weights by differentiable operations.
    """
    check_model(model)
    check_likelihood(likelihood)
    weights = weight_covariance(posterior).of_random()
    inner = unwrapped(model)
    device = next(model.parameters(), torch.empty(0)).device
    with exclusively(model) as parts, unsharded(parts.sharded), draws_in_eval_mode(model, posterior) as put:
        put(None)
        weights = weights.placed(own_names(inner, cast(Posterior, posterior).match(model)), device)
        check_weights_are_used(inner, weights.names)
        network = MeanNetwork(inner, weights.names, output, lambda outputs: outputs)
        changes = partial(_changes, network, Pulled(network), weights, likelihood)
        found = [changes(rows, target) for rows, target in batches_of_rows(data, device, batch_size)]
    if not found:
        raise ValueError("data must have at least one batch, got an empty loader")
    return torch.cat(found)


def _changes(
    network: MeanNetwork, pulled: Pulled, weights: WeightCovariance, likelihood: Likelihood, rows: Rows, target: Tensor
) -> Tensor:
    """``g' Sigma g`` of the rows of one batch."""
    outputs = network.outputs(rows.batch)
    rows.check(outputs, counted=True)
    likelihood.check(outputs, target)
    scores = likelihood.score(outputs, target).unsqueeze(1)
    bytes_each = sum(map(network.bytes_of, weights.names)) + network.look(rows.part(0, 1).batch)[1]
    size = max(1, working_set(outputs.device, CHUNK_BYTES) // max(1, bytes_each))
    like, found = outputs.new_empty((), dtype=wide(outputs.dtype)), []
    for start in range(0, rows.count, size):
        chunk = rows.part(start, start + size)
        variance = OutputCovariance(weights, chunk.count, 1, like)
        for name, gradients in pulled(chunk, weights.names, scores[start : start + size]).items():
            variance.add(name, gradients)
        found.append(variance.value().view(-1))
    return torch.cat(found)
