"""Test scores in original units, of the propagated Gaussian and of a mixture over samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

import bayesadam as ba
from experiments.fawn.training import Fitted
from experiments.uci_table1.protocol import Part


def predictive(fitted: Fitted, part: Part, *, covariance: bool = False) -> ba.predictive.GaussianPredictive:
    """By moment propagation, of the held-out inputs; ``covariance``: with that of the outputs of a data point."""
    found = ba.predict(fitted.model, fitted.posterior, part.x, likelihood=fitted.likelihood, method="moments")
    assert isinstance(found, ba.predictive.GaussianPredictive)
    if not covariance:
        found = ba.predictive.GaussianPredictive(found.mean, found.epistemic, found.aleatoric)
    return found.rescale(part.scaler.mean, part.scaler.std)


def sampled(fitted: Fitted, part: Part, samples: int, seed: int) -> ba.predictive.RegressionPredictive:
    """A mixture over sampled weights of the first layer, those of the last one integrated out in closed form.

    Given the hidden units, outputs are exactly Gaussian and independent if the weights are Gaussian; so this has no
    approximation but the number of samples. To sample all weights would be to no avail: where the learned noise is a
    thousandth of what the weights do, no sample is near a target.
    """
    q = fitted.posterior
    assert isinstance(q, ba.DiagonalGaussian | ba.posterior.BernoulliPosterior)
    drawn, noise = q.sample(samples, seed=seed), 1.0 / fitted.likelihood.noise_precision
    means, variances = [], []
    for weight, bias in zip(drawn["0.weight"], drawn["0.bias"], strict=True):
        hidden = (part.x @ weight.T + bias).relu()
        means.append(hidden @ q.mean["2.weight"].T + q.mean["2.bias"])
        variances.append(hidden.square() @ q.variance["2.weight"].T + q.variance["2.bias"] + noise)
    found = ba.predictive.RegressionPredictive(torch.stack(means), torch.stack(variances))
    return found.rescale(part.scaler.mean, part.scaler.std)


@torch.no_grad()
def scores(fitted: Fitted, part: Part, config: Mapping[str, Any]) -> dict[str, Any]:
    """NLL per data point, of its outputs together, and RMSE; ``sampled_``: the same by :func:`sampled`.

    ``noise_sd`` is the learned noise of every output, ``sd`` the root of the mean predictive variance, the noise
    included, and ``epistemic`` the share of the weights in the latter.
    """
    found = predictive(fitted, part, covariance=config.get("covariance", False))
    mixture = sampled(fitted, part, config["mc_samples"], config["seed"])
    noise = fitted.likelihood.noise_precision.double().rsqrt()[0] * part.scaler.std
    return {
        "nll": ba.metrics.nll(found, part.y),
        "rmse": ba.metrics.rmse(found.mean, part.y),
        "sampled_nll": ba.metrics.nll(mixture, part.y),
        "sampled_rmse": ba.metrics.rmse(mixture.mean, part.y),
        "noise_sd": noise,
        "sd": found.variance.double().mean().sqrt(),
        "epistemic": found.epistemic.double().mean() / found.variance.double().mean(),
    }
