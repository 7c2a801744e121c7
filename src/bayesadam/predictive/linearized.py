"""The network linearised at the posterior's mean: Gaussian outputs ``N(f(x, mean), J Sigma J')``.

J is the Jacobian of the outputs with respect to the weights (Kessler et al. 2018; Foong et al. 2019, arXiv 1906.11537,
eq. 4; Immer et al. 2021, arXiv 2008.08400, eqs. 7 and 8).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from bayesadam.functional.curvature import wide
from bayesadam.modules.exclusive import check_weights_are_used
from bayesadam.modules.mean_network import MeanNetwork, own_names
from bayesadam.modules.wrappers import unwrapped
from bayesadam.native.device import working_set
from bayesadam.posterior import NetworkDistribution, Posterior
from bayesadam.predictive.batches import Rows, draws_in_eval_mode, over_batches
from bayesadam.predictive.covariance import OutputCovariance, WeightCovariance, weight_covariance
from bayesadam.predictive.gaussian_outputs import uncertain_part
from bayesadam.predictive.jacobian import Jacobians
from bayesadam.predictive.layerwise import Layerwise, NotLayerwiseError
from bayesadam.predictive.plan import MOST_OUTPUTS, Options

CHUNK_BYTES = 2**26
"""Memory on a CPU for Jacobians and intermediate values; as many data points are treated at once as fit into it."""


class TooManyOutputsError(ValueError):
    """Raised if the covariance of a row's outputs would be a matrix above the size limit."""


@torch.inference_mode(False)
@torch.no_grad()
def linearized_outputs(
    model: nn.Module,
    posterior: NetworkDistribution,
    inputs: Any,
    options: Options,
) -> tuple[Tensor, Tensor]:
    """Outputs ``(N, ...)`` at the mean, and the covariance ``(N, K, K)`` of the ``K`` uncertain numbers of each (see
    :func:`bayesadam.predictive.gaussian_outputs.uncertain_part`).

    Raises:
        ValueError: The posterior is not Gaussian, or does not match the model.
        TooManyOutputsError: ``K`` is above 128.
        RuntimeError: The output does not depend on the random weights by differentiable operations.
    """
    device = next(model.parameters(), torch.empty(0)).device
    weights = weight_covariance(posterior).of_random()
    inner = unwrapped(model)
    names = own_names(inner, cast(Posterior, posterior).match(model))  # what has a covariance of weights is one
    weights = weights.placed(names, device)
    with draws_in_eval_mode(model, posterior) as put:
        put(None)
        check_weights_are_used(inner, weights.names)
        network = MeanNetwork(inner, weights.names, options.output, partial(uncertain_part, options.likelihood))
        function = _Linearized(network, weights)
        outputs, covariance = over_batches(
            function, inputs, device, batch_size=options.batch_size, progress=options.progress
        )
    return outputs, covariance


class _Linearized:
    """Function from the rows of a batch to the outputs and their covariance."""

    def __init__(self, network: MeanNetwork, weights: WeightCovariance) -> None:
        self.network = network
        self.weights = weights
        self.engine: Layerwise | Jacobians | None = None

    def __call__(self, rows: Rows) -> tuple[Tensor, Tensor]:
        outputs = self.network.outputs(rows.batch)
        wanted = self.network.part(outputs)
        total, width = rows.count, math.prod(wanted.shape[1:])
        rows.check(wanted, counted=True)
        if width > MOST_OUTPUTS:
            raise TooManyOutputsError(f"a row must have at most {MOST_OUTPUTS} outputs for a covariance, got {width}")
        like = wanted.new_empty((), dtype=wide(wanted.dtype))
        covariances = [like.new_zeros(0, width, width)]
        if not self.weights.names:
            return outputs, like.new_zeros(total, width, width)
        start, limit = 0, working_set(like.device, CHUNK_BYTES)
        while start < total:
            if self.engine is None:
                self.engine = self._engine(rows.part(start, start + 1), limit)
            stop = min(total, start + max(1, limit // self.engine.bytes_each(width)))
            covariance = OutputCovariance(self.weights, stop - start, width, like)
            chunk = rows.part(start, stop)
            try:
                self.engine.add_to(covariance, chunk)
            except NotLayerwiseError:  # control flow that depends on the data
                self.engine = Jacobians(self.network, rows.part(start, start + 1), limit)
                continue
            covariances.append(covariance.value())
            start = stop
        return outputs, torch.cat(covariances)

    def _engine(self, row: Rows, limit: int) -> Layerwise | Jacobians:
        try:
            return Layerwise(self.network, row, limit)
        except NotLayerwiseError:
            return Jacobians(self.network, row, limit)
