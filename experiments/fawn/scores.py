"""Test scores in original units, of the propagated Gaussian and of a mixture over samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

import bayesadam as ba
from experiments.fawn.training import Fitted
from experiments.uci_table1.protocol import Part


def predictive(fitted: Fitted, part: Part, *, covariance: bool = False) -> ba.predictive.GaussianPredictive:
    """Return predictions of the held-out inputs by moment propagation, with output covariances if requested."""
    found = ba.predict(fitted.model, fitted.posterior, part.x, likelihood=fitted.likelihood, method="moments")
    assert isinstance(found, ba.predictive.GaussianPredictive)
    if not covariance:
        found = ba.predictive.GaussianPredictive(found.mean, found.epistemic, found.aleatoric)
    return found.rescale(part.scaler.mean, part.scaler.std)


def sampled(fitted: Fitted, part: Part, samples: int, seed: int) -> ba.predictive.RegressionPredictive:
    """Return a mixture over sampled weights of the first layer; the last layer is integrated out in closed form.

    If the weights are Gaussian, the outputs given the hidden units are exactly Gaussian and independent, so that the
    only approximation is the finite number of samples. Samples of all weights would be useless: if the learned noise is
    a thousandth of the variation due to the weights, no sample is near a target.
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
    """Return the joint NLL of the outputs per data point, and the RMSE; the prefix ``sampled_`` means :func:`sampled`.

    ``noise_sd`` is the standard deviation of the learned noise of every output, ``sd`` the root of the mean predictive
    variance, including the noise, and ``epistemic`` the share of this variance that is due to the weights.
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
