"""The objectives of FAWN: densities of targets, given the moments of a network's outputs."""

from __future__ import annotations

from torch import Tensor

from bayesadam.likelihoods import Likelihood, check_likelihood
from bayesadam.moments.values import Moments


def expected_log_likelihood(likelihood: Likelihood, output: Moments, target: Tensor) -> Tensor:
    """Return ``E log p(y | output)`` over Gaussian outputs for every data point, in nats, summed over its outputs.

    Gaussian noise of variance ``s2``: ``log N(y | mean, s2) - variance / (2 s2)`` (Bayer et al. 2015, section 3.3); if
    the network also predicts the log variance of the noise, this is integrated out as well. Two classes: by a mixture
    of probits, see :func:`bayesadam.functional.moments.expected_log_sigmoid`. More classes: a lower bound, see
    :func:`bayesadam.functional.moments.expected_log_softmax`. Other likelihoods: their ``expected_log_density``, by
    default quadrature over each output.

    Raises:
        ValueError: A target does not match the output, or the likelihood has no such expectation.
    """
    check_likelihood(likelihood)
    likelihood.check(output.mean, target)
    return likelihood.expected_log_density(output.mean, output.spread(), target)


def log_predictive(likelihood: Likelihood, output: Moments, target: Tensor) -> Tensor:
    """Return ``log E p(y | output)`` over Gaussian outputs for every data point, in nats, jointly for its outputs.

    Gaussian noise of variance ``s2``: ``log N(y | mean, variance + s2)`` (Bayer et al. 2015, section 3.4), with the
    outputs' full covariance if it is known (section 3.1); if the network predicts the noise, its expectation is used.
    Two classes: by a mixture of probits, see :func:`bayesadam.functional.moments.expected_sigmoid`. More classes: see
    :func:`bayesadam.functional.moments.log_expected_softmax`. Other likelihoods: their ``log_expected_density``, by
    default quadrature over each output.

    Raises:
        ValueError: A target does not match the output, or the likelihood has no such expectation.
    """
    check_likelihood(likelihood)
    likelihood.check(output.mean, target)
    return likelihood.log_expected_density(output.mean, output.spread(), target, output.covariance)


OBJECTIVES = {"ropd": log_predictive, "vi": expected_log_likelihood}
"""Objectives for every data point, by their names as ``objective=`` of a loss."""
