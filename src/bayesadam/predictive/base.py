"""What all predictive distributions have in common: densities of targets as averages over components."""

from __future__ import annotations

import abc
from collections.abc import Sequence

import torch
from torch import Tensor

from bayesadam.checks import check, check_tensor
from bayesadam.functional.outputs import log_mean_exp


class PredictiveDistribution(abc.ABC):
    """Base class of predictive distributions: equally weighted mixtures of distributions of the targets.

    As for the likelihoods, the last axis has the outputs or labels of one data point, and every axis before it counts
    data points: ``N`` in a shape may also stand for ``N, T``.

    Attributes:
        independent: Whether every data point has a separate distribution, so that their joint one is not known.
    """

    independent: bool = False

    @property
    @abc.abstractmethod
    def device(self) -> torch.device:
        """Device of the prediction, on which targets must be."""

    @abc.abstractmethod
    def _log_densities(self, target: Tensor) -> Tensor:
        """Log densities of every component and data point, ``(S, N)``."""

    def log_prob(self, target: Tensor) -> Tensor:
        """Pointwise log density ``log mean_s p(y_n | x_n, theta_s)`` of every data point, ``(N,)``, in nats.

        Args:
            target: Targets of the shape of the predictive mean; for classes their numbers ``(N,)``, and for a Bernoulli
                likelihood labels in [0, 1], ``(N,)`` or ``(N, D)``, which need not be 0 or 1.

        Raises:
            ValueError: The target is no tensor or has another shape, a value is out of range, or class numbers are not
                integers. On a GPU a label out of range fails there, as with
                :func:`torch.nn.functional.cross_entropy`.
        """
        return log_mean_exp(self._log_densities(target))

    def joint_log_likelihood(self, target: Tensor) -> Tensor:
        """Joint log density ``log mean_s prod_n p(y_n | x_n, theta_s)`` of all data points in nats, 0-d, not divided by
        N.

        Raises:
            ValueError: The joint distribution of the data points is not known.
        """
        if self.independent:
            raise ValueError(
                "method must be 'monte_carlo' for the joint log-likelihood, got a separate distribution for every data "
                "point"
            )
        return log_mean_exp(self._log_densities(target).double().flatten(1).sum(-1))

    def _levels(self, probabilities: float | Sequence[float] | Tensor) -> Tensor:
        """Probabilities of quantiles, in float64 and on the device.

        Raises:
            ValueError: A probability is outside (0, 1).
        """
        check("probabilities", probabilities, "in (0, 1)", _are_inside)
        return torch.as_tensor(probabilities, dtype=torch.float64, device=self.device)


def _are_inside(probabilities: float | Sequence[float] | Tensor) -> bool:
    levels = torch.as_tensor(probabilities, dtype=torch.float64)
    return bool(((levels > 0) & (levels < 1)).all())


def check_target(target: Tensor, shape: torch.Size) -> None:
    """Raise ``ValueError`` unless a target is a tensor of this shape, which another one would broadcast against."""
    check_tensor("target", target)
    if target.shape != shape:
        raise ValueError(f"target must be of shape {tuple(shape)}, got {tuple(target.shape)}")


def variance_of_strata(values: Tensor, strata: int) -> Tensor:
    """Unbiased estimate of the variance of a mixture of equally weighted strata, along the first axis.

    The weights of the strata are exact, so only the samples within each are corrected for their number: the variance of
    the members of an ensemble, of which there is one sample each, is that of the ensemble.

    Args:
        values: Values at the samples, ``(S, ...)``; number ``s`` is from stratum ``s % strata``.
        strata: Number of strata.
    """
    variance = values.var(0, correction=0)
    each = len(values) // strata
    if each > 1:
        variance = variance + values.reshape(each, strata, *values.shape[1:]).var(0).mean(0) / len(values)
    return variance
