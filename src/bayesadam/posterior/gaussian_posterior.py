"""The base class of the Gaussian posteriors, whatever their covariance."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from bayesadam.checks import check, is_positive
from bayesadam.functional import gaussian
from bayesadam.posterior.base import Posterior
from bayesadam.posterior.report import PosteriorReport, report_of

Self = TypeVar("Self", bound="GaussianPosterior")
PRUNING = ("signal_to_noise", "magnitude")
"""Criteria by which weights can be ranked for pruning."""


class GaussianPosterior(Posterior):
    """Base class of Gaussians over named weights; a weight of variance 0 is a point mass."""

    @abc.abstractmethod
    def marginal(self) -> GaussianPosterior:
        """Return the Gaussian with the same means and marginal variances, and independent weights."""

    @abc.abstractmethod
    def _scale(self, names: Iterable[str]) -> Tensor:
        """Cholesky factor ``(D, D)`` of the covariance of the named tensors' weights, in this order, in float64.

        If the weights are independent, it is the diagonal of that factor, ``(D,)``: the standard deviations.
        """

    def log_prob(self, theta: Mapping[str, Tensor]) -> Tensor:
        """Joint log density of all random weights, in float64; minus infinity if a point mass is not at its value.

        Args:
            theta: Weights by name, each of the weight's shape with any leading axes (the same for all names).

        Returns:
            A tensor with the shape of the leading axes.

        Raises:
            ValueError: The names or shapes are not those of the posterior.
        """
        self._check_theta(theta)
        return self._log_prob(theta)

    @abc.abstractmethod
    def _log_prob(self, theta: Mapping[str, Tensor]) -> Tensor:
        """Joint log density of weights that were checked, in float64, with the shape of the leading axes."""

    def kl_divergence(self, prior: float | GaussianPosterior) -> Tensor:
        """``KL(q || prior)`` in nats, summed (not averaged) over the random weights; 0-d float64.

        Args:
            prior: A prior precision (the prior is then ``N(0, 1 / prior)`` for every weight), or another Gaussian
                posterior with the same names and shapes. If the prior's weights are correlated and some of them are
                point masses in this posterior, the marginal prior of the other weights is used.

        Raises:
            ValueError: The precision is not positive, or the prior is over other weights.
        """
        self._check_prior(prior)
        mean = self._flat(self.mean)
        if isinstance(prior, GaussianPosterior):
            prior_mean, prior_scale = self._flat(prior.mean), prior._scale(self.mean)
        else:
            prior_mean, prior_scale = torch.zeros_like(mean), torch.full_like(mean, float(prior) ** -0.5)
        device = mean.device
        return gaussian.dense_kl_divergence(
            mean, self._scale(self.mean), prior_mean.to(device), prior_scale.to(device)
        ).cpu()

    def signal_to_noise(self) -> dict[str, Tensor]:
        """``|mean| / standard deviation`` of every weight; 0 for a pruned weight, infinite for any other point mass."""
        return {
            name: torch.where(mean == 0, 0.0, mean.abs() / self.variance[name].sqrt())
            for name, mean in self.mean.items()
        }

    def report(self) -> PosteriorReport:
        """Report widths, signal-to-noise ratios and the origin of the precision for every tensor.

        The report uses marginal variances and ignores correlations. The share of the precision that comes from the
        start is known for posteriors from an optimiser, which keep it in ``hyperparameters["tensors"]``. The number of
        weights that the data determine is known where the hyper-parameters include the prior precision.
        """
        return report_of(self.mean, self.variance, self.hyperparameters)

    def prune(self: Self, fraction: float, *, by: str = "signal_to_noise") -> Self:
        """Return a copy in which the given fraction of all weights, the weakest, is exactly zero.

        The threshold is global, over all tensors together, and uses the marginal standard deviations. Mean and variance
        of a pruned weight become 0. The posterior is not conditioned on this: the other weights keep their means and
        their covariance, even where they are correlated with a pruned weight. Weights that were pruned before count
        towards the fraction. Weights that are fixed at a value other than 0 have an infinite signal-to-noise ratio and
        are pruned last by this criterion. Of equally weak weights the first ones are pruned, tensor by tensor and row
        by row.

        Args:
            fraction: Fraction of the weights in [0, 1]; ``round(fraction * num_weights)`` weights are pruned.
            by: Criterion of weakness: a small ``"signal_to_noise"`` ratio, or a small ``"magnitude"`` of the mean.

        Raises:
            ValueError: ``fraction`` is outside [0, 1], ``by`` is neither, or there are no signal-to-noise ratios
                because no weight has a variance.
        """
        check_fraction("fraction", fraction)
        if by not in PRUNING:
            raise ValueError(f"by must be one of {PRUNING}, got {by!r}")
        criterion = self.signal_to_noise() if by == "signal_to_noise" else {n: m.abs() for n, m in self.mean.items()}
        scores = torch.cat([score.flatten() for score in criterion.values()])
        if len(scores) and scores.isinf().all():
            raise ValueError(f"by must be 'magnitude' for a posterior in which no weight has a variance, got {by!r}")
        order = scores.argsort(stable=True)
        remaining = torch.ones_like(order, dtype=torch.bool)
        remaining[order[: round(fraction * len(order))]] = False
        pruned = self._keeping(self._split(remaining), {**self.hyperparameters, "pruned_fraction": fraction})
        return pruned.with_buffers(self.buffers)

    def _keeping(self: Self, remaining: Mapping[str, Tensor], hyperparameters: Mapping[str, Any]) -> Self:
        """A copy with other hyper-parameters in which weights outside the masks ``kept`` (by name, in their shapes) are
        zero.
        """
        zeroed = {key: torch.where(remaining[key.partition("/")[2]], v, 0.0) for key, v in self._tensors().items()}
        return self._from_tensors(zeroed, hyperparameters)

    def _split(self, flat: Tensor) -> dict[str, Tensor]:
        """Split a flat tensor of all weights into tensors by name, in their shapes."""
        tensors, start = {}, 0
        for name, mean in self.mean.items():
            stop = start + mean.numel()
            tensors[name] = flat[start:stop].view(mean.shape)
            start = stop
        return tensors

    def _flat(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """All weights of these tensors in this posterior's order, ``(..., D)`` with their leading axes, in float64."""
        parts = []
        for name, mean in self.mean.items():
            value = tensors[name].double()
            parts.append(value.reshape(*value.shape[: value.ndim - mean.ndim], mean.numel()))
        return torch.cat(parts, dim=-1)

    def _check_prior(self, prior: float | GaussianPosterior) -> None:
        if isinstance(prior, GaussianPosterior):
            self._check_weights(prior)
        else:
            check("prior", prior, "a positive, finite precision or a Gaussian posterior", is_positive)


def check_means(mean: Mapping[str, Tensor]) -> None:
    """Check that means are floating-point tensors and finite."""
    for name, value in mean.items():
        if not value.is_floating_point():
            raise ValueError(f"mean of {name!r} must be a floating-point tensor, got dtype {value.dtype}")
        if not value.isfinite().all():
            raise ValueError(f"mean of {name!r} must be finite, got inf or nan")


def sum_of_tensors(terms: Iterable[Tensor]) -> Tensor:
    """Sum of the log densities of several tensors of weights, which may be on several devices, in float64."""
    total = torch.zeros((), dtype=torch.float64)
    for term in terms:
        total = total.to(term.device) + term
    return total


def sum_all(terms: Any) -> Tensor:
    """Sum over the elements of many tensors, 0-d float64 on the CPU."""
    sums = [term.sum() for term in terms]
    return torch.stack([each.to(sums[0].device) for each in sums]).sum().cpu()


def check_fraction(name: str, value: float) -> None:
    """Check that a fraction of the weights is in [0, 1]."""
    check(name, value, "in [0, 1]", lambda v: 0 <= v <= 1)
