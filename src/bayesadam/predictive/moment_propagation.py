"""Means and variances of the outputs propagated through the network (Bayer et al. 2015), without sampling."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn

from bayesadam.checks import truths
from bayesadam.functional.autocast import without_autocast
from bayesadam.functional.curvature import wide, widened
from bayesadam.likelihoods import Likelihood
from bayesadam.modules.calls import arguments
from bayesadam.modules.exclusive import check_weights_are_used, in_eval_mode
from bayesadam.modules.mean_network import own_names
from bayesadam.modules.wrappers import unwrapped
from bayesadam.moments import Graph, Moments
from bayesadam.posterior import BernoulliPosterior, DiagonalGaussian, NetworkDistribution, PartialGaussian, Posterior
from bayesadam.predictive.batches import (
    Rows,
    map_tensors,
    over_batches,
)
from bayesadam.predictive.gaussian_outputs import GaussianPredictive, from_gaussian
from bayesadam.predictive.plan import Options
from bayesadam.predictive.result import Predictive


def independent_weights(posterior: NetworkDistribution) -> dict[str, Moments]:
    """Mean and variance of every weight tensor of a posterior whose weights are independent.

    Raises:
        ValueError: The weights are not independent.
    """
    if isinstance(posterior, PartialGaussian):
        fixed = {name: Moments(value) for name, value in posterior.fixed.items()}
        moments = {**fixed, **independent_weights(posterior.random)}
        return {name: moments[name] for name in posterior.mean}
    if isinstance(posterior, DiagonalGaussian | BernoulliPosterior):
        variances = posterior.variance
        return {name: Moments(mean, variances[name]) for name, mean in posterior.mean.items()}
    raise ValueError(
        "posterior must have independent weights for method='moments' (use 'monte_carlo'; or for a Gaussian "
        f"DiagonalGaussian(q.mean, q.variance), without its correlations), got {type(posterior).__name__}"
    )


@torch.no_grad()
def propagated_outputs(model: nn.Module, posterior: NetworkDistribution, inputs: Any, options: Options) -> Moments:
    """Moments of the outputs ``(N, ...)``, with the covariance of the outputs of a data point if the last layer is
    linear with several outputs, unless the link uses variances alone.

    Args:
        model: Network whose layers and functions have rules; see :func:`bayesadam.fawn`.
        posterior: Posterior with independent weights.
        inputs: Inputs, as for :func:`bayesadam.predict`.
        options: The other arguments of :func:`bayesadam.predict`.

    Raises:
        ValueError: The weights are not independent, or the model does not match or cannot be propagated through.
    """
    weights = independent_weights(posterior)
    covered = cast(Posterior, posterior).match(model)  # what has independent weights is one
    inner = unwrapped(model)
    names = own_names(inner, covered)
    covered = {names[name]: tensor for name, tensor in covered.items()}
    weights = {names[name]: value for name, value in weights.items()}
    variances = {name: value.variance for name, value in weights.items() if value.variance is not None}
    has = truths(variance.any() for variance in variances.values())
    random = {name for name, random in zip(variances, has, strict=True) if random}
    buffers = cast(Posterior, posterior).buffers  # read where they are; parameters are not
    device = next(model.parameters(), torch.empty(0)).device
    with in_eval_mode(model), posterior.draws(model) if buffers else nullcontext(lambda _: None) as put:
        put(None)
        check_weights_are_used(inner, weights)
        graph = Graph(inner)  # which may depend on the mode
        placed = {name: _placed(value, name in random, covered[name], device) for name, value in weights.items()}

        def run(rows: Rows) -> tuple[Tensor, ...]:
            args, kwargs = arguments(map_tensors(rows.batch, widened))
            with without_autocast([value.mean for value in placed.values()]):
                result = graph.run(inner, placed, args, kwargs, covariance=options.link != "probit")
            rows.check(result.mean)
            # For outputs with a second axis only the diagonal blocks of the covariance would be known.
            several = result.covariance is not None and result.mean.ndim == 2 and result.mean.shape[-1] > 1
            parts = (result.mean, result.spread())
            return (*parts, result.covariance) if several else parts  # type: ignore[return-value]

        return Moments(*over_batches(run, inputs, device, batch_size=options.batch_size, progress=options.progress))


def from_moments(outputs: Moments, likelihood: Likelihood, options: Options) -> Predictive:
    """Make the predictive distribution of Gaussian outputs, as
    :func:`bayesadam.predictive.gaussian_outputs.from_gaussian` does.

    If the network outputs the logarithm of the noise variance, the variance is its expectation.
    """
    mean, spread, covariance = outputs.mean, outputs.spread(), outputs.covariance
    if likelihood.defines("mean_and_log_variance"):
        mean, spread, log_expected = likelihood.under_gaussian(mean, spread)
        width = mean.shape[-1]
        epistemic = spread if covariance is None else covariance[:, :width, :width]
        return GaussianPredictive(mean, epistemic, log_expected.exp(), log_expected)
    epistemic = spread if covariance is None else covariance
    return from_gaussian(mean, epistemic, likelihood, options)


def _placed(value: Moments, random: bool, target: Tensor, device: torch.device) -> Moments:
    """The moments in the dtype that the model computes in, as for a sample; a posterior's variances may have another
    one.
    """
    moments = value if random else Moments(value.mean)
    return moments.moved(lambda tensor: tensor.to(device, wide(target.dtype)))
