"""The predictive distribution of a mixture of posteriors, with the network linearised at the mean of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor

from bayesadam.predictive.base import check_target, variance_of_strata
from bayesadam.predictive.gaussian_outputs import GaussianLogitsPredictive, GaussianPredictive
from bayesadam.predictive.mixture import MixturePredictive
from bayesadam.predictive.result import ClassificationPredictive, Predictive, RegressionPredictive


class GaussianMixturePredictive(RegressionPredictive):
    """An equally weighted mixture of Gaussians for every data point, each with its own epistemic variance.

    Its log density uses the covariance of the outputs of a row, if the components know it, and the dependence between
    rows is not known.

    Args:
        parts: Predictive distributions of the components, all of one shape.

    Attributes:
        parts: Predictive distributions of the components.
        epistemic: Epistemic variance: the mean of the components' epistemic variances plus the variance of their means.
        aleatoric: Aleatoric variance: the variance of the noise averaged over the components, which more data would not
            reduce.
    """

    independent = True

    def __init__(self, parts: Sequence[GaussianPredictive]) -> None:
        device = parts[0].device

        def stacked(values: Iterable[Tensor]) -> Tensor:
            return torch.stack([value.to(device) for value in values])

        self.parts = list(parts)
        within = stacked(part.epistemic for part in parts)
        noise = stacked(part.aleatoric for part in parts)
        log_variances = stacked(part.log_variances[0] for part in parts)
        means = stacked(part.mean for part in parts)
        super().__init__(means, within + noise, log_variances, strata=len(means))
        self.epistemic = within.mean(0) + variance_of_strata(means, len(means))
        self.aleatoric = noise.mean(0)

    def rescale(self, mean: Tensor | float, std: Tensor | float) -> GaussianMixturePredictive:
        """Return the distribution of ``mean + std * y``, which converts standardised targets to their original
        units.
        """
        return GaussianMixturePredictive([part.rescale(mean, std) for part in self.parts])

    def _log_densities(self, target: Tensor) -> Tensor:
        """Log densities of every component and data point, ``(K, N)``, jointly over the outputs of a data point."""
        check_target(target, self.mean.shape)
        return torch.stack([part.log_prob(target.to(part.device)).to(self.device) for part in self.parts])


def mixed(parts: Sequence[Predictive]) -> Predictive:
    """Make the equally weighted mixture of linearised predictions of several posteriors of one kind."""
    first = parts[0]
    if isinstance(first, GaussianPredictive):
        return GaussianMixturePredictive(cast("Sequence[GaussianPredictive]", parts))
    if isinstance(first, GaussianLogitsPredictive):
        logits = cast("Sequence[GaussianLogitsPredictive]", parts)
        mixture = ClassificationPredictive(torch.cat([part.log_probs for part in logits]), binary=first.binary)
        mixture.independent = True
        return mixture
    assert isinstance(first, MixturePredictive)
    draws = torch.stack([part.outputs for part in cast("Sequence[MixturePredictive]", parts)], dim=1)
    return MixturePredictive(draws.flatten(0, 1), first.likelihood, independent=True, strata=len(parts))
