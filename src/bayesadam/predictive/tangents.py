"""Samples of the network that is linearised at the posterior's mean, by Jacobian-vector products.

The output at sample ``w`` is ``f(x, mean) + J(x) (w - mean)`` (Immer et al. 2021, arXiv 2008.08400, eq. 7).
Forward-mode differentiation computes it in about two passes of the network, for any number of outputs, without a
Jacobian in memory.
"""

from __future__ import annotations

import operator
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
from bayesadam.predictive.batches import (
    Chunked,
    Rows,
    as_batches,
    draws_in_eval_mode,
    groups,
    joined,
    no_batches,
)
from bayesadam.predictive.monte_carlo import GROUP_BYTES
from bayesadam.predictive.plan import Options
from bayesadam.progress import progress_bar


@torch.inference_mode(False)
@torch.no_grad()
def outputs_at_tangents(
    model: nn.Module, posterior: NetworkDistribution, inputs: Any, options: Options
) -> tuple[Tensor, Tensor]:
    """Outputs ``(N, ...)`` at the mean, and ``(S, N, ...)`` at samples of the linearised network.

    Args:
        model: See :func:`bayesadam.predict`.
        posterior: See :func:`bayesadam.predict`; sample ``i`` is its own sample ``i``.
        inputs: See :func:`bayesadam.predict`.
        options: The other arguments of :func:`bayesadam.predict`.

    Raises:
        ValueError: The model computes with other weights than its own in evaluation mode.
        RuntimeError: An operation of the model has no forward-mode derivative.
    """
    batches, single = as_batches(inputs)
    device = next(model.parameters(), torch.empty(0)).device
    inner, count = unwrapped(model), options.count_for(posterior)
    weights = {name: tensor.detach() for name, tensor in inner.named_parameters()}
    names = own_names(inner, cast(Posterior, posterior).match(model)).values()
    total = operator.length_hint(batches) * count or None
    centers, samples = [], []
    with (
        draws_in_eval_mode(model, posterior, options.seed) as put,
        progress_bar("predicting", total, options.progress, shown=not single) as advance,
    ):
        put(None)
        check_weights_are_used(inner, names)
        # Layers take the paths of training, which have derivatives, if their weights require gradients.
        mean = {name: weights[name].clone().requires_grad_() for name in names}
        for group in groups(batches, device, single, GROUP_BYTES):
            outputs = []
            for number in range(count):
                put(number)
                tangents = {name: weights[name] - mean[name] for name in names}
                put(None)
                forward = Chunked(_Dual(inner, mean, tangents, options), options.batch_size)
                pairs = []
                for rows in group:
                    pairs.append(forward(rows))
                    advance()
                center, change = (joined(parts, "outputs") for parts in zip(*pairs, strict=True))
                outputs.append(center + change)
            centers.append(center)
            samples.append(torch.stack(outputs))
    if not samples:
        raise no_batches()
    return joined(centers, "outputs"), joined(samples, "outputs", axis=1)


class _Dual:
    """Function from the rows of a batch to the outputs at the mean and their change along a direction."""

    def __init__(
        self, model: nn.Module, mean: dict[str, Tensor], tangents: dict[str, Tensor], options: Options
    ) -> None:
        self.model, self.mean, self.tangents, self.options = model, mean, tangents, options

    def __call__(self, rows: Rows) -> tuple[Tensor, Tensor]:
        # Other kernels of attention have no forward-mode derivative.
        with torch.enable_grad(), forward_ad.dual_level(), sdpa_kernel(SDPBackend.MATH):
            duals = {}
            for name, change in self.tangents.items():
                duals[name] = forward_ad.make_dual(self.mean[name], change)  # type: ignore[no-untyped-call]
            try:
                output = call(self.model, rows.batch, self.options.output, duals)
            except NotImplementedError as error:
                raise RuntimeError(
                    "model must have forward-mode derivatives for samples of the linearised network "
                    f"(use method='monte_carlo'), got: {error}"
                ) from error
            center, change = forward_ad.unpack_dual(output)  # type: ignore[no-untyped-call]
        rows.check(center)
        return center.detach().clone(), torch.zeros_like(center) if change is None else change.detach().clone()
