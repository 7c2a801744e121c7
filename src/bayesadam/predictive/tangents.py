"""Samples of the network that is linearised at the posterior's mean, by Jacobian-vector products.

The output at sample ``w`` is ``f(x, mean) + J(x) (w - mean)`` (Immer et al. 2021, arXiv 2008.08400, eq. 7).
Forward-mode differentiation computes it in about two passes of the network, for any number of outputs, without a
Jacobian in memory.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from bayesadam.modules.calls import call
from bayesadam.modules.exclusive import check_weights_are_used
from bayesadam.modules.mean_network import own_names
from bayesadam.modules.wrappers import unwrapped
from bayesadam.posterior import NetworkDistribution, Posterior
from bayesadam.predictive.batches import Rows
from bayesadam.predictive.monte_carlo import Put, Run, outputs_at_samples
from bayesadam.predictive.plan import Options


@torch.inference_mode(False)
@torch.no_grad()
def outputs_at_tangents(
    model: nn.Module, posterior: NetworkDistribution, inputs: Any, options: Options
) -> tuple[Tensor, Tensor]:
    """Outputs ``(N, ...)`` at the mean, and ``(S, N, ...)`` at samples of the linearised network.

    Args:
        model: See :func:`bayesadam.predict`.
        posterior: See :func:`bayesadam.predict`; sample ``i`` is its own sample ``i``.
        inputs: See :func:`bayesadam.predict`; they are iterated over twice.
        options: The other arguments of :func:`bayesadam.predict`.

    Raises:
        ValueError: The model computes with other weights than its own in evaluation mode.
        RuntimeError: An operation of the model has no forward-mode derivative.
    """
    changes = outputs_at_samples(
        model, posterior, inputs, range(options.count_for(posterior)), options, partial(_changes, posterior)
    )
    (center,) = outputs_at_samples(model, posterior, inputs, None, replace(options, progress=False))
    return center, center + changes


def _changes(posterior: NetworkDistribution, model: nn.Module, put: Put, options: Options) -> tuple[Put, Run]:
    """The changes of the outputs at the mean in the directions of samples."""
    inner = unwrapped(model)
    weights = {name: tensor.detach() for name, tensor in inner.named_parameters()}
    names = own_names(inner, cast(Posterior, posterior).match(model)).values()
    put(None)
    check_weights_are_used(inner, names)
    # Layers take the paths of training, which have derivatives, if their weights require gradients.
    mean = {name: weights[name].clone().requires_grad_() for name in names}
    tangents: dict[str, Tensor] = {}

    def put_tangents(number: int | None) -> None:
        put(number)
        for name in names:
            tangents[name] = weights[name] - mean[name]
        put(None)

    def run(rows: Rows) -> Tensor:
        # Other kernels of attention have no forward-mode derivative.
        with torch.enable_grad(), forward_ad.dual_level(), sdpa_kernel(SDPBackend.MATH):
            duals = {}
            for name, change in tangents.items():
                duals[name] = forward_ad.make_dual(mean[name], change)  # type: ignore[no-untyped-call]
            try:
                output = call(inner, rows.batch, options.output, duals)
            except NotImplementedError as error:
                raise RuntimeError(
                    "model must have forward-mode derivatives for samples of the linearised network "
                    f"(use method='monte_carlo'), got: {error}"
                ) from error
            center, change = forward_ad.unpack_dual(output)  # type: ignore[no-untyped-call]
        return torch.zeros_like(center) if change is None else change.detach().clone()

    return put_tangents, run
