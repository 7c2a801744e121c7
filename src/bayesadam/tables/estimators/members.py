"""The posteriors of trained members, and the predictions from posteriors."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.anchored import anchored, integrated, perturbed, prior_of
from bayesadam.likelihoods import Likelihood
from bayesadam.population import Pair, Population
from bayesadam.posterior import DiagonalGaussian, GaussianPosterior
from bayesadam.posthoc import LaplaceApproximation, badam_from_moments, unbiased
from bayesadam.predictive import Options, Predictive, network_outputs
from bayesadam.tables.estimators.methods import Method

DENSE = 128
"""Maximum number of weights for a Laplace approximation with a full covariance."""

LARGE = 1_000
"""Maximum number of weights for a Laplace approximation of low rank or with Kronecker factors. For larger networks, the
approximation covers the last layer only.
"""

RANK = 32
"""Rank of the covariance besides its diagonal. From 16 to 40, the NLL is the same within its error on four UCI sets."""

LAPLACE_ROWS, REPEATS = 20_000, 10
"""Maximum number of rows for the curvature, which is scaled to the effective number of all rows; and how often a row of
average weight is among them if weights differ.
"""

ROWS = 8_192
"""Number of rows that are predicted at a time."""


def randomized(
    network: nn.Module, data: Sequence[Pair], likelihoods: Sequence[Likelihood], prior_precision: float, seed: int
) -> tuple[list[Pair], list[Tensor] | None, list[DiagonalGaussian]]:
    """Return data, weights of the rows, and priors for members that differ as in :func:`bayesadam.anchored_ensemble`.

    Args:
        network: A network of the ensemble.
        data: Training rows of every member.
        likelihoods: Likelihood of every member. If its noise is learned, members differ in the weights of the rows.
        prior_precision: Precision of the prior.
        seed: Seed of the random numbers.
    """
    pairs = zip(data, likelihoods, strict=True)
    copies = [perturbed(rows, likelihood, number, seed) for number, (rows, likelihood) in enumerate(pairs)]
    weights = [weight for _, weight in copies if weight is not None]
    return (
        [rows for rows, _ in copies],
        weights or None,
        anchored(prior_of(network, prior_precision), len(data), seed),
    )


def posteriors(
    method: Method,
    nets: Population,
    networks: Sequence[nn.Module],
    data: Sequence[Pair],
    weights: Sequence[Tensor] | None,
    sizes: Sequence[float],
    *,
    prior_precision: float,
    steps: int,
) -> tuple[list[GaussianPosterior], list[Likelihood]]:
    """Return the posterior and the likelihood of every member, and set the weights of the networks to the trained ones.

    Args:
        method: The method that trained the members.
        nets: The members.
        networks: The networks that were given to the training.
        data: Training rows of every member.
        weights: Weights of these rows; ``None`` for equal weights.
        sizes: Effective numbers of these rows.
        prior_precision: Precision of the prior.
        steps: Number of steps that the optimiser took.
    """
    members_posteriors: list[GaussianPosterior] = []
    likelihoods = [copy.deepcopy(likelihood).requires_grad_(False) for likelihood in nets.likelihoods]
    for number, (network, (x, y)) in enumerate(zip(networks, data, strict=True)):
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                parameter.copy_(nets.mean[name][number])
        if method.posterior == "anchored":
            prior = prior_of(network, prior_precision)
            members_posteriors.append(integrated(network, nets.posteriors[number], (x, y), likelihoods[number], prior))
        elif method.posterior == "laplace":
            weight = None if weights is None else weights[number]
            given = network, x, y, weight, sizes[number], likelihoods[number], prior_precision
            members_posteriors.append(_laplace(*given))
        elif method.posterior == "badam":
            members_posteriors.append(_badam(nets, number, sizes[number], prior_precision, steps))
        else:
            members_posteriors.append(nets.posteriors[number])
    return members_posteriors, likelihoods


def predictions(
    method: Method, network: nn.Module, posterior: Any, likelihood: Likelihood, x: Tensor, *, mc_samples: int, seed: int
) -> Predictive:
    """Return the predictive distribution of one member.

    It is that of :func:`bayesadam.predict`, but draws of Gaussian outputs are the same at all rows, so that the
    prediction for a row does not depend on the rows before it.
    """
    options: dict[str, Any] = {"method": method.predict, "batch_size": ROWS, "progress": False, "common": True}
    how = Options(likelihood, mc_samples, seed, **options)
    return network_outputs(network, posterior, x, how)(likelihood)


def _badam(nets: Population, number: int, num_data: float, precision: float, steps: int) -> GaussianPosterior:
    """Return Badam's posterior of a member that Adam trained, from the second moments in the population's state."""
    trained, moments = nets.posteriors[number], nets.state["exp_avg_sq"]
    _, beta = trained.hyperparameters["betas"]
    return badam_from_moments(
        ((name, mean, unbiased(moments[name][number], beta, steps)) for name, mean in trained.mean.items()),
        num_data=num_data,
        prior_precision=precision,
        optimizer="Adam",
    )


def _laplace(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    weight: Tensor | None,
    num_data: float,
    likelihood: Likelihood,
    precision: float,
) -> GaussianPosterior:
    """Return the Laplace approximation around a trained member, in at most a few hundred kilobytes.

    Its curvature is that of rows at equal distances in the running sum of the weights.

    For Gaussian targets, networks of medium size get a diagonal and the widest directions. The variance then grows away
    from the data as with a full covariance, and more than with Kronecker factors. Within the data it is too large. The
    calibrated factor of a Gaussian's epistemic variance corrects this; a classifier's temperature could not.
    """
    weights = sum(p.numel() for p in network.parameters())
    count = min(len(x) if weight is None else REPEATS * len(x), LAPLACE_ROWS)
    total = (x.new_ones(len(x)) if weight is None else weight).double().cumsum(0)
    places = (torch.arange(count, dtype=torch.float64, device=x.device) + 0.5) * (total[-1] / count)
    rows = torch.searchsorted(total, places)
    low_rank = DENSE < weights <= LARGE and likelihood.defines("mean_and_log_variance")
    approximation = LaplaceApproximation(
        network,
        (x[rows], y[rows]),
        likelihood=likelihood,
        structure="full" if weights <= DENSE or low_rank else "kron" if weights <= LARGE else "last_layer",
        num_data=num_data,
        progress=False,
    )
    return approximation.posterior(precision, rank=RANK if low_rank else None)
