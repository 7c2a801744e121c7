"""The ELBO of a posterior, and weights of the KL divergence in the loss of a minibatch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.checks import check_count, check_model, check_positive
from bayesadam.likelihoods import Likelihood
from bayesadam.posterior import DiagonalGaussian, Mixture
from bayesadam.posterior.gaussian_posterior import GaussianPosterior
from bayesadam.predictive.mixture import check_at_samples
from bayesadam.predictive.monte_carlo import outputs_at_samples
from bayesadam.predictive.plan import Options
from bayesadam.priors import Prior, as_prior

__all__ = ["elbo", "kl_warmup", "kl_weights"]

SCHEDULES = ("uniform", "blundell")


@torch.no_grad()
def elbo(
    model: nn.Module,
    posterior: GaussianPosterior | Mixture,
    inputs: Tensor | tuple[Any, ...] | Mapping[str, Any] | Iterable[Any],
    target: Tensor,
    *,
    likelihood: Likelihood,
    prior: float | Prior | GaussianPosterior,
    num_data: float | None = None,
    mc_samples: int = 64,
    seed: int = 0,
    output: Callable[[Any], Tensor] | None = None,
    batch_size: int | None = None,
) -> Tensor:
    """Evidence lower bound of a posterior in nats, summed over the data; higher is better; 0-d float64.

    It is ``num_data * mean over samples and data points of log p(y | x, weights) - KL(posterior || prior)``. The model
    runs in evaluation mode; weights that are point masses add nothing to the divergence. A divergence without a closed
    form, such as that of every mixture, is averaged over the same samples.

    Args:
        model: Network whose trainable parameters are those of the posterior.
        posterior: Posterior over the model's weights: a Gaussian, or a mixture of Gaussians without point masses (the
            divergence of a deep ensemble is infinite).
        inputs: Inputs, as for :func:`bayesadam.predict`.
        target: Targets of all inputs.
        likelihood: Likelihood of the targets given the output.
        prior: A prior precision, one of :mod:`bayesadam.priors`, or a posterior (for a mixture a diagonal one).
        num_data: Size of the data set that the inputs are a part of; by default the number of data points given.
        mc_samples: Number of posterior samples; for a mixture rounded up to equally many of each component.
        seed: Seed of the samples. Sample ``i`` depends on ``(seed, i)`` only.
        output: Function that takes the output tensor out of what the model returns, as for :func:`bayesadam.predict`.
        batch_size: Rows per forward pass, as for :func:`bayesadam.predict`.

    Returns:
        The bound, a 0-d tensor in float64.

    Raises:
        ValueError: A number is out of its range, the model or the posterior is none, the model or the prior does not
            match the posterior, or a mixture has point masses.
        TypeError: The model does not return a tensor and ``output`` is not given.
    """
    check_model(model)
    if not isinstance(posterior, GaussianPosterior | Mixture):
        raise ValueError(f"posterior must be a Gaussian over the weights or a mixture, got {type(posterior).__name__}")
    options = Options(likelihood, mc_samples=mc_samples, seed=seed, output=output, batch_size=batch_size).checked()
    if num_data is not None:
        check_positive("num_data", num_data)
    count = options.count_for(posterior)
    divergence = _divergence(posterior, prior, count, seed)
    outputs = outputs_at_samples(model, posterior, inputs, range(count), options)
    target = target.to(outputs.device)
    check_at_samples(likelihood, outputs, target)
    log_prob = likelihood.log_prob(outputs, target).double().flatten(1)
    total = log_prob.mean() * (log_prob.shape[1] if num_data is None else num_data)
    return total.cpu() - divergence.cpu()


def kl_weights(num_batches: int, *, schedule: str = "uniform") -> Tensor:
    """Shares of the KL divergence for the minibatches of an epoch: ``(num_batches,)`` float64, summing to 1.

    With ``pi = kl_weights(B, ...)`` and ``net.loss(..., kl_weight=B * pi[i])`` in minibatch ``i``, ``M`` times the loss
    is ``F_i`` of Blundell et al. 2015 (section 3.4) for ``B`` minibatches of ``M = num_data / B`` data points; over an
    epoch these add up to the objective of the whole data set. If the last minibatch is smaller, use ``kl_weight = pi[i]
    * num_data / len(target)``.

    Args:
        num_batches: Number of minibatches ``B``, at least 1.
        schedule: ``"uniform"`` is ``1 / B``. ``"blundell"`` is ``2^(B - i) / (2^B - 1)`` for ``i = 1 ... B`` (Blundell
            et al. 2015, section 3.4), which gives nearly all of it to the first few minibatches.

    Raises:
        ValueError: There is no minibatch, or the schedule is unknown.
    """
    check_count("num_batches", num_batches)
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {SCHEDULES}, got {schedule!r}")
    if schedule == "uniform":
        return torch.full((num_batches,), 1.0 / num_batches, dtype=torch.float64)
    powers = torch.exp2(-torch.arange(1, num_batches + 1, dtype=torch.float64))
    return powers / -math.expm1(-num_batches * math.log(2.0))


def kl_warmup(step: int, steps: int) -> float:
    """A ``kl_weight`` that grows linearly over the first steps: ``(step + 1) / steps`` in step 0, 1, ..., then 1.

    Raises:
        ValueError: ``steps`` is below 1, or the step is negative.
    """
    check_count("steps", steps)
    if step < 0:
        raise ValueError(f"step must not be negative, got {step!r}")
    return min(1.0, (step + 1) / steps)


def _divergence(
    posterior: GaussianPosterior | Mixture,
    prior: float | Prior | GaussianPosterior,
    mc_samples: int,
    seed: int,
) -> Tensor:
    """``KL(posterior || prior)``, averaged over samples if there is no closed form."""
    if isinstance(posterior, Mixture):
        _check_density(posterior)
    elif isinstance(prior, int | float | GaussianPosterior):
        return posterior.kl_divergence(prior)
    prior = as_prior(prior)  # type: ignore[arg-type]  # which refuses correlations
    masks = {name: variance > 0 for name, variance in posterior.variance.items()}
    random = {name: mask for name, mask in masks.items() if mask.any()}
    prior.check({name: posterior.mean[name] for name in random})
    if prior.closed_form and isinstance(posterior, DiagonalGaussian) and all(mask.all() for mask in random.values()):
        mean = {name: posterior.mean[name].double() for name in random}
        return prior.kl_divergence(mean, {name: posterior.variance[name].double().sqrt() for name in random})
    total = torch.zeros((), dtype=torch.float64)
    for number in range(mc_samples):
        theta = posterior.sample(1, seed=seed, first=number)
        total += posterior.log_prob(theta).sum().cpu()
        for name, mask in random.items():
            total -= prior.log_density(theta[name][0].double(), name)[mask].sum().cpu()
    return total / mc_samples


def _check_density(posterior: GaussianPosterior | Mixture) -> None:
    """Check that all weights of a mixture are random: point masses at different values have no common density."""
    if isinstance(posterior, Mixture):
        for component in posterior.components:
            _check_density(component)
        return
    for name, variance in posterior.variance.items():
        if not (variance > 0).all():
            raise ValueError(f"posterior must have no point masses if it is a mixture, got some in {name!r}")
