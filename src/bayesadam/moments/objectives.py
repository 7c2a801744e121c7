"""The objectives of FAWN: what a network's output moments say about targets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from bayesadam.bayes_by_backprop.parameters import unwrapped
from bayesadam.likelihoods import Likelihood, check_likelihood
from bayesadam.moments.module import MomentModule
from bayesadam.moments.values import Moments

OBJECTIVES = ("ropd", "vi")


def fawn_loss(
    net: nn.Module,
    inputs: Tensor | tuple[Any, ...] | Mapping[str, Any],
    target: Tensor,
    *,
    likelihood: Likelihood,
    num_data: float,
    objective: str = "ropd",
    kl_weight: float = 1.0,
    temperature: float = 1.0,
) -> Tensor:
    """The training loss of a network made by :func:`bayesadam.fawn`, per datum: 0-d.

    The mean over data points of ``-fit``, plus ``kl_weight * temperature * KL / num_data``. ``torch.compile`` takes
    this function, or the network, as a whole: its many small steps then are few.

    Args:
        net: From :func:`bayesadam.fawn`, bare or in ``DistributedDataParallel``.
        inputs: A tensor; a tuple (``net(*inputs)``); or a dict (``net(**inputs)``).
        target: What the likelihood compares with the output.
        likelihood: One of :mod:`bayesadam.likelihoods`, or your own. The noise of a ``Gaussian`` may be learned: give
            its parameters to the optimiser as well.
        num_data: Number of data points in the training set.
        objective: ``"ropd"``: regularised optimisation of the predictive distribution (Bayer et al. 2015, section 3.4):
            ``fit = log p(y | x)`` with the weights integrated out. The weights' variance is used to describe the
            scatter of the targets, so that densities are good and means less so. ``"vi"``: variational inference
            (section 3.3): ``fit = E log p(y | x, weights)``. Both are in closed form for Gaussian noise; for classes
            see :func:`log_predictive` and :func:`expected_log_likelihood`.
        kl_weight: Of this minibatch's divergence; see :func:`bayesadam.nelbo`.
        temperature: Multiplies the divergence. Not negative.

    Raises:
        ValueError: A number or option out of its range, a network that ``fawn`` has not made, or a target that does
            not fit.
    """
    if objective not in OBJECTIVES:
        raise ValueError(f"objective must be one of {OBJECTIVES}, got {objective!r}")
    if not 0 < num_data < math.inf:
        raise ValueError(f"num_data must be a positive, finite number, got {num_data!r}")
    for name, value in (("kl_weight", kl_weight), ("temperature", temperature)):
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be finite and not negative, got {value!r}")
    inner = unwrapped(net, MomentModule, "fawn")
    if isinstance(inputs, Mapping):
        found = net(**inputs)
    else:
        found = net(*inputs) if isinstance(inputs, tuple) else net(inputs)
    fit = (log_predictive if objective == "ropd" else expected_log_likelihood)(likelihood, found, target)
    scale = kl_weight * temperature / num_data
    return -fit.mean() + (scale * inner.kl_divergence()).to(fit) if scale else -fit.mean()


def expected_log_likelihood(likelihood: Likelihood, output: Moments, target: Tensor) -> Tensor:
    """``E log p(y | output)`` over Gaussian outputs, of every data point, in nats and summed over its outputs.

    Gaussian noise of variance ``s2``: ``log N(y | mean, s2) - variance / (2 s2)`` (Bayer et al. 2015, section 3.3); if
    the network gives the log variance of the noise, too, that is integrated out as well. Two classes: by a mixture of
    probits, see :func:`bayesadam.functional.moments.expected_log_sigmoid`. More classes: a lower bound, see
    :func:`bayesadam.functional.moments.expected_log_softmax`. Other likelihoods: their ``expected_log_density``, by
    default quadrature over each output.

    Raises:
        ValueError: A target that does not fit the output, or a likelihood that has no such expectation.
    """
    check_likelihood(likelihood)
    likelihood.check(output.mean, target)
    return likelihood.expected_log_density(output.mean, output.spread(), target)


def log_predictive(likelihood: Likelihood, output: Moments, target: Tensor) -> Tensor:
    """``log E p(y | output)`` over Gaussian outputs, of every data point, in nats and of its outputs together.

    Gaussian noise of variance ``s2``: ``log N(y | mean, variance + s2)`` (Bayer et al. 2015, section 3.4), with the
    outputs' full covariance if it is known (section 3.1); the noise is the expected one if the network gives it. Two
    classes: by a mixture of probits, see :func:`bayesadam.functional.moments.expected_sigmoid`. More classes: see
    :func:`bayesadam.functional.moments.log_expected_softmax`. Other likelihoods: their ``log_expected_density``, by
    default quadrature over each output.

    Raises:
        ValueError: A target that does not fit the output, or a likelihood that has no such expectation.
    """
    check_likelihood(likelihood)
    likelihood.check(output.mean, target)
    return likelihood.log_expected_density(output.mean, output.spread(), target, output.covariance)
