"""Predictive distributions of Gaussian targets and of classes, as mixtures over posterior samples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from bayesadam.functional.outputs import log_mean_exp
from bayesadam.likelihoods import Likelihood, gaussian_log_density
from bayesadam.likelihoods.parameters import check_classes, check_equal_shapes, check_values, summed
from bayesadam.predictive.base import PredictiveDistribution, check_target, variance_of_strata
from bayesadam.predictive.mixture import MixturePredictive


class RegressionPredictive(PredictiveDistribution):
    """An equally weighted mixture of Gaussians, one per posterior sample, independent over the outputs of a data point.

    Args:
        means: Means of the components, ``(S, N)`` or ``(S, N, D)``, in the units of the targets.
        variances: Variances of the components (the noise), of the same shape or broadcasting to it.
        log_variances: Logarithms of the variances, if known; they are still accurate where a variance is too large or
            too small for its dtype. Default: computed from ``variances``.
        strata: Number of strata, such as the components of a mixture, with equally many samples each: sample ``s`` is
            from stratum ``s % strata``.
    """

    def __init__(
        self, means: Tensor, variances: Tensor, log_variances: Tensor | None = None, *, strata: int = 1
    ) -> None:
        self.means = means
        self.strata = strata
        self.variances = variances.expand(means.shape)
        self._log_variances = log_variances

    @property
    def device(self) -> torch.device:
        """Device of the prediction, on which targets must be."""
        return self.means.device

    @cached_property
    def log_variances(self) -> Tensor:
        """Logarithms of ``variances``, of the same shape."""
        return (self.variances.log() if self._log_variances is None else self._log_variances).expand(self.means.shape)

    def __repr__(self) -> str:
        return _described(self, self.means)

    @cached_property
    def mean(self) -> Tensor:
        """Predictive mean, ``(N,)`` or ``(N, D)``."""
        return self.means.mean(0)

    @cached_property
    def epistemic(self) -> Tensor:
        """Epistemic variance: the variance of the network's prediction over the posterior, which more data would
        reduce.

        It is the unbiased estimate from the samples, and 0 if there is only one sample. The members of an ensemble are
        no samples, but all of it: for them it is the mean squared distance from their mean.
        """
        return variance_of_strata(self.means, self.strata)

    @cached_property
    def aleatoric(self) -> Tensor:
        """Aleatoric variance: the variance of the noise averaged over the samples, which more data would not reduce."""
        return self.variances.mean(0)

    @cached_property
    def variance(self) -> Tensor:
        """Total variance, the sum of epistemic and aleatoric variance."""
        return self.epistemic + self.aleatoric

    def cdf(self, target: Tensor) -> Tensor:
        """``P(y <= target)`` of each of the targets, of their shape, in float64."""
        check_target(target, self.mean.shape)
        white = (target.double() - self.means.double()) * (-0.5 * self.log_variances.double()).exp()
        below: Tensor = torch.special.ndtr(white)
        return below.mean(0)

    def quantile(self, probabilities: float | Sequence[float] | Tensor) -> Tensor:
        """Quantiles of the mixture, ``(Q, N)`` or ``(Q, N, D)``; without the first axis for a single probability.

        They are found by bisection in float64, between the quantiles of the components.

        Raises:
            ValueError: A probability is outside (0, 1).
        """
        levels = self._levels(probabilities)
        means, scales = self.means.double(), (0.5 * self.log_variances.double()).exp()
        quantiles = torch.stack([_mixture_quantile(level, means, scales) for level in levels.flatten()])
        return quantiles.view(*levels.shape, *self.mean.shape).to(self.means.dtype)

    def rescale(self, mean: Tensor | float, std: Tensor | float) -> RegressionPredictive:
        """Return the distribution of ``mean + std * y``, which converts standardised targets to their original
        units.
        """
        scale = torch.as_tensor(std, dtype=self.means.dtype, device=self.means.device)
        shift = torch.as_tensor(mean, dtype=self.means.dtype, device=self.means.device)
        log_variances = self.log_variances + 2.0 * scale.abs().log()
        variances = scale.square() * self.variances
        return RegressionPredictive(shift + scale * self.means, variances, log_variances, strata=self.strata)

    def _log_densities(self, target: Tensor) -> Tensor:
        check_target(target, self.mean.shape)
        terms = gaussian_log_density(target - self.means, self.log_variances)
        return summed(terms, target)


class ClassificationPredictive(PredictiveDistribution):
    """An equally weighted mixture of class probabilities, one per posterior sample.

    Args:
        log_probs: Log probabilities of the components, with classes along the last axis: ``(S, N, C)``, or ``(S, N, D,
            C)`` if a data point has ``D`` labels.
        binary: Whether the classes are 0 and 1 of a Bernoulli likelihood; ``probs`` is then the probability of class 1
            alone.
    """

    def __init__(self, log_probs: Tensor, *, binary: bool = False) -> None:
        self.log_probs = log_probs
        self.binary = binary

    def __repr__(self) -> str:
        return _described(self, self.log_probs)

    @property
    def device(self) -> torch.device:
        """Device of the prediction, on which targets must be."""
        return self.log_probs.device

    @cached_property
    def class_probs(self) -> Tensor:
        """Predictive probability of every class, ``(N, C)``; classes 0 and 1 for a Bernoulli likelihood."""
        return log_mean_exp(self.log_probs).exp()

    @property
    def probs(self) -> Tensor:
        """Predictive probabilities, ``(N, C)``; for a Bernoulli likelihood the probability of class 1, ``(N,)``."""
        return self.class_probs[..., 1] if self.binary else self.class_probs

    @cached_property
    def entropy(self) -> Tensor:
        """Entropy of the predictive distribution in nats, ``(N,)``, which measures the total uncertainty."""
        return _entropy(log_mean_exp(self.log_probs))

    @cached_property
    def mutual_information(self) -> Tensor:
        """Mutual information ``H[mean p] - mean H[p]`` in nats, ``(N,)``, not negative: the epistemic part of the
        entropy (BALD).
        """
        return (self.entropy - _entropy(self.log_probs).mean(0)).clamp_min(0.0)

    def _log_densities(self, target: Tensor) -> Tensor:
        check_target(target, self.log_probs.shape[1:-1])
        if self.binary:
            labels = target.to(self.log_probs.dtype)
            check_values(labels, (labels >= 0) & (labels <= 1), "in [0, 1]")
            shares = torch.stack([1.0 - labels, labels], dim=-1)
            # The log probability of the other class may be minus infinity, and its target 0.
            terms = torch.where(shares > 0, shares * self.log_probs, 0.0).sum(-1)
            return summed(terms, target)
        check_classes(target, self.log_probs.shape[-1])
        index = target.long().expand(self.log_probs.shape[:-1]).unsqueeze(-1)
        return self.log_probs.gather(-1, index).squeeze(-1)


Predictive = RegressionPredictive | ClassificationPredictive | MixturePredictive


def from_outputs(outputs: Tensor, likelihood: Likelihood, *, strata: int = 1) -> Predictive:
    """Make the predictive distribution of outputs ``(S, N, ...)`` at ``S`` posterior samples, in float32 or wider.

    Sample ``s`` is from stratum ``s % strata``.
    """
    # The mutual information depends on small differences between samples, which 8 bits would lose.
    outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
    if likelihood.defines("mean_and_log_variance"):
        mean, log_variance = likelihood.mean_and_log_variance(outputs)
        check_equal_shapes("mean_and_log_variance", mean, log_variance)
        return RegressionPredictive(mean, log_variance.exp(), log_variance, strata=strata)
    if likelihood.defines("log_probs"):
        log_probs = likelihood.log_probs(outputs)
        return ClassificationPredictive(log_probs, binary=log_probs.ndim > outputs.ndim)
    return MixturePredictive(outputs, likelihood, strata=strata)


def _described(prediction: RegressionPredictive | ClassificationPredictive, components: Tensor) -> str:
    count, *shape = components.shape
    return f"{type(prediction).__name__}({tuple(shape)}, {count} component{'s' * (count != 1)})"


def _entropy(log_probs: Tensor) -> Tensor:
    finite = log_probs.clamp_min(torch.finfo(log_probs.dtype).min)
    return torch.sum(-log_probs.exp() * finite, dim=-1)


def _mixture_quantile(level: Tensor, means: Tensor, scales: Tensor) -> Tensor:
    components = means + scales * torch.special.ndtri(level)
    low, high = components.amin(0), components.amax(0)
    for _ in range(60):
        middle = 0.5 * (low + high)
        below = torch.special.ndtr((middle - means) / scales).mean(0) < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return torch.lerp(low, high, 0.5)
