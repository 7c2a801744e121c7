"""The predictive distribution of a mixture of posteriors, with the network linearised at the mean of each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from bayesadam.predictive.gaussian import GaussianLogitsPredictive, GaussianPredictive, RowByRow
from bayesadam.predictive.mixture import MixturePredictive
from bayesadam.predictive.result import ClassificationPredictive, Predictive, RegressionPredictive


class GaussianMixturePredictive(RowByRow, RegressionPredictive):
    """An equally weighted mixture of Gaussians for every data point, each with its own epistemic variance.

    The dependence between rows is not known.

    Args:
        means: Means of the components, ``(K, N)`` or ``(K, N, D)``, in the units of the targets.
        within: Epistemic variances of the components, of the same shape.
        noise: Variances of the noise, of the same shape.
    """

    def __init__(self, means: Tensor, within: Tensor, noise: Tensor) -> None:
        super().__init__(means, within + noise)
        self.within = within
        self.noise = noise

    @cached_property
    def epistemic(self) -> Tensor:
        """Epistemic variance: the mean of the components' epistemic variances plus the variance of their means.

        The variance of the means is the unbiased estimate; it is 0 if there is only one component.
        """
        return self.within.mean(0) + super().epistemic

    @cached_property
    def aleatoric(self) -> Tensor:
        """Aleatoric variance: the variance of the noise averaged over the components, which more data would not
        reduce.
        """
        return self.noise.mean(0)

    def rescale(self, mean: Tensor | float, std: Tensor | float) -> GaussianMixturePredictive:
        """Return the distribution of ``mean + std * y``, which converts standardised targets to their original
        units.
        """
        scale = torch.as_tensor(std, dtype=self.means.dtype, device=self.means.device)
        shift = torch.as_tensor(mean, dtype=self.means.dtype, device=self.means.device)
        return GaussianMixturePredictive(
            shift + scale * self.means, scale.square() * self.within, scale.square() * self.noise
        )


class LogitsMixturePredictive(RowByRow, ClassificationPredictive):
    """An equally weighted mixture over posteriors with Gaussian logits; the dependence between rows is not known."""


def mixed(parts: Sequence[Predictive]) -> Predictive:
    """Make the equally weighted mixture of linearised predictions of several posteriors of one kind."""
    first = parts[0]
    if isinstance(first, GaussianPredictive):
        gaussians = cast("Sequence[GaussianPredictive]", parts)
        return GaussianMixturePredictive(
            *(
                torch.stack([getattr(part, name).to(first.device) for part in gaussians])
                for name in ("mean", "epistemic", "aleatoric")
            )
        )
    if isinstance(first, GaussianLogitsPredictive):
        logits = cast("Sequence[GaussianLogitsPredictive]", parts)
        return LogitsMixturePredictive(torch.cat([part.log_probs for part in logits]), binary=first.binary)
    assert isinstance(first, MixturePredictive)
    draws = torch.cat([part.outputs for part in cast("Sequence[MixturePredictive]", parts)])
    return MixturePredictive(draws, first.likelihood, independent=True)
