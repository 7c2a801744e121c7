"""Objectives of variational inference: the negative ELBO per data point as a loss, and the ELBO of any posterior."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.bayes_by_backprop import VariationalModule
from bayesadam.bayes_by_backprop.parameters import unwrapped
from bayesadam.checks import check, is_whole
from bayesadam.likelihoods import Likelihood
from bayesadam.posterior import DenseGaussian, DiagonalGaussian
from bayesadam.predictive.monte_carlo import outputs_at_samples
from bayesadam.priors import Prior, as_prior

SCHEDULES = ("uniform", "blundell")


def nelbo(
    net: nn.Module,
    inputs: Tensor | tuple[Any, ...] | Mapping[str, Any],
    target: Tensor,
    *,
    likelihood: Likelihood,
    num_data: float,
    mc_samples: int = 1,
    antithetic: bool = False,
    kl_weight: float = 1.0,
    temperature: float = 1.0,
    output: Callable[[Any], Tensor] | None = None,
) -> Tensor:
    """Negative ELBO per data point, estimated from a minibatch: the training loss of a variational network, 0-d.

    It is the mean over samples of ``mean nll + kl_weight * temperature * KL / num_data``, with both terms at the same
    sample of the weights (Blundell et al. 2015, eq. 2). The weights are sampled in evaluation mode, too, where dropout
    is off.

    With minibatch weights ``pi = kl_weights(B, ...)`` and ``kl_weight = B * pi[i]``, ``M`` times this loss is ``F_i``
    of the paper (eq. 8) for ``B`` minibatches of ``M = num_data / B`` data points; over an epoch these add up to the
    objective of the whole data set. If the last minibatch is smaller, use ``kl_weight = pi[i] * num_data /
    len(target)``.

    Args:
        net: Network from :func:`bayesadam.variational`, bare or in ``DistributedDataParallel``.
        inputs: A tensor; a tuple (``net(*inputs)``); or a dict (``net(**inputs)``).
        target: Targets, in the form that the likelihood takes.
        likelihood: Likelihood of the targets given the output; its ``nll`` is the mean over the data points of the
            minibatch.
        num_data: Number of data points in the training set.
        mc_samples: Number of samples of the weights.
        antithetic: Whether to draw samples in pairs ``+eps, -eps``; ``mc_samples`` must then be even.
        kl_weight: Factor of this minibatch's KL divergence, from a schedule or :func:`kl_warmup`; not negative.
        temperature: Factor of the KL divergence, not negative; 1 is variational inference.
        output: Function that takes the output tensor out of what the network returns.

    Returns:
        The loss, a 0-d tensor.

    Raises:
        ValueError: A number is out of its range, or the network is not variational.
        TypeError: The network does not return a tensor and ``output`` is not given.
    """
    _check_count("mc_samples", mc_samples)
    if antithetic and mc_samples % 2:
        raise ValueError(f"mc_samples must be even when antithetic=True, got {mc_samples!r}")
    if not 0 < num_data < math.inf:
        raise ValueError(f"num_data must be a positive, finite number, got {num_data!r}")
    for name, value in (("kl_weight", kl_weight), ("temperature", temperature)):
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be finite and not negative, got {value!r}")
    inner = unwrapped(net, VariationalModule, "variational")
    scale = kl_weight * temperature / num_data
    total = torch.zeros(())
    for sample in range(mc_samples):
        with inner.common_draw(mirrored=antithetic and sample % 2 == 1):
            nll = likelihood.nll(_output(net, inputs, output), target)
            if scale and not inner.closed_form:
                nll = nll + (scale * inner.kl_divergence()).to(nll)
            elif scale and sample == 0:
                nll = nll + (mc_samples * scale * inner.kl_divergence()).to(nll)
        total = nll if sample == 0 else total + nll
    return total / mc_samples


@torch.no_grad()
def elbo(
    model: nn.Module,
    posterior: DiagonalGaussian | DenseGaussian,
    inputs: Tensor | tuple[Any, ...] | Mapping[str, Any] | Iterable[Any],
    target: Tensor,
    *,
    likelihood: Likelihood,
    prior: float | Prior | DiagonalGaussian | DenseGaussian,
    num_data: float | None = None,
    mc_samples: int = 64,
    seed: int = 0,
    output: Callable[[Any], Tensor] | None = None,
    batch_size: int | None = None,
) -> Tensor:
    """Evidence lower bound of any posterior in nats, summed over the data; higher is better; 0-d float64.

    It is ``num_data * mean over samples and data points of log p(y | x, weights) - KL(posterior || prior)``. The model
    runs in evaluation mode; weights that are point masses add nothing to the divergence. A divergence without a closed
    form is averaged over the same samples.

    Args:
        model: Network whose trainable parameters are those of the posterior.
        posterior: Posterior over the model's weights.
        inputs: Inputs, as for :func:`bayesadam.predict`.
        target: Targets of all inputs.
        likelihood: Likelihood of the targets given the output.
        prior: A prior precision, one of :mod:`bayesadam.priors`, or a posterior.
        num_data: Size of the data set that the inputs are a part of; by default the number of data points given.
        mc_samples: Number of posterior samples.
        seed: Seed of the samples. Sample ``i`` depends on ``(seed, i)`` only.
        output: Function that takes the output tensor out of what the model returns, as for :func:`bayesadam.predict`.
        batch_size: Rows per forward pass; by default a whole batch.

    Returns:
        The bound, a 0-d tensor in float64.

    Raises:
        ValueError: A number is out of its range, or the model or the prior does not match the posterior.
        TypeError: The model does not return a tensor and ``output`` is not given.
    """
    _check_count("mc_samples", mc_samples)
    if num_data is not None and not 0 < num_data < math.inf:
        raise ValueError(f"num_data must be a positive, finite number, got {num_data!r}")
    divergence = _divergence(posterior, prior, mc_samples, seed)
    outputs = outputs_at_samples(
        model,
        posterior,
        inputs,
        range(mc_samples),
        seed=seed,
        output=output,
        batch_size=batch_size,
        progress=None,
    )
    log_prob = likelihood.log_prob(outputs, target.to(outputs.device)).double().flatten(1)
    total = log_prob.mean() * (log_prob.shape[1] if num_data is None else num_data)
    return total.cpu() - divergence.cpu()


def kl_weights(num_batches: int, schedule: str = "uniform") -> Tensor:
    """Shares of the KL divergence for the minibatches of an epoch: ``(num_batches,)`` float64, summing to 1.

    Args:
        num_batches: Number of minibatches ``B``, at least 1.
        schedule: ``"uniform"`` is ``1 / B``. ``"blundell"`` is ``2^(B - i) / (2^B - 1)`` for ``i = 1 ... B`` (Blundell
            et al. 2015, section 3.4), which gives nearly all of it to the first few minibatches.

    Raises:
        ValueError: There is no minibatch, or the schedule is unknown.
    """
    _check_count("num_batches", num_batches)
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
    _check_count("steps", steps)
    if step < 0:
        raise ValueError(f"step must not be negative, got {step!r}")
    return min(1.0, (step + 1) / steps)


def _divergence(
    posterior: DiagonalGaussian | DenseGaussian,
    prior: float | Prior | DiagonalGaussian | DenseGaussian,
    mc_samples: int,
    seed: int,
) -> Tensor:
    """``KL(posterior || prior)``, averaged over samples if there is no closed form."""
    if isinstance(prior, int | float | DiagonalGaussian | DenseGaussian):
        return posterior.kl_divergence(prior)
    prior = as_prior(prior)
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


def _output(net: nn.Module, inputs: Any, output: Callable[[Any], Tensor] | None) -> Tensor:
    if isinstance(inputs, Mapping):
        result = net(**inputs)
    elif isinstance(inputs, tuple):
        result = net(*inputs)
    else:
        result = net(inputs)
    if output is not None:
        result = output(result)
    if not isinstance(result, Tensor):
        raise TypeError(
            "output must be given for a network that returns no tensor (output=lambda out: out.logits, say), "
            f"got {type(result).__name__}"
        )
    return result


def _check_count(name: str, value: Any) -> None:
    check(name, value, "a whole number of at least 1", is_whole)
