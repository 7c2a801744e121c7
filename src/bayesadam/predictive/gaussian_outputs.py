"""Predictive distributions of networks with Gaussian outputs, data point by data point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bayesadam import noise
from bayesadam.curvature.totals import chunks
from bayesadam.functional import moments as maps
from bayesadam.functional.autocast import without_autocast
from bayesadam.likelihoods import Likelihood
from bayesadam.likelihoods.parameters import check_equal_shapes
from bayesadam.predictive.base import check_target
from bayesadam.predictive.mixture import MixturePredictive
from bayesadam.predictive.plan import Options
from bayesadam.predictive.result import ClassificationPredictive, Predictive, RegressionPredictive

BLOCK = 1024
"""Number of values that are drawn together: enough to amortise a draw, and not many more than a few data points
need.
"""


class GaussianPredictive(RegressionPredictive):
    """Gaussian predictive distribution of every data point; the dependence between rows is not known.

    Args:
        mean: Predictive means, ``(N,)`` or ``(N, D)``, in the units of the targets; with more axes ``(N, ..., D)``,
            where the last axis has the outputs of a data point.
        epistemic: Epistemic uncertainty: the covariance of the ``K`` outputs of a row in their order, ``(N, K, K)``
            (with ``K = 1`` for a mean ``(N,)``, and ``K = D`` for ``(N, D)``), or variances of the mean's shape, with
            which outputs are independent.
        aleatoric: Variance of the noise, independent over the outputs; of the mean's shape or broadcasting to it.
        log_aleatoric: Logarithm of that variance, if known; it is still accurate where the variance is too large or too
            small for its dtype.

    Attributes:
        epistemic: Epistemic variance: the variance of the network's prediction over the posterior, which more data
            would reduce.
        epistemic_covariance: Covariance of the outputs of a row, if it was given.
        aleatoric: Aleatoric variance: the variance of the noise, which more data would not reduce.
    """

    independent = True

    def __init__(self, mean: Tensor, epistemic: Tensor, aleatoric: Tensor, log_aleatoric: Tensor | None = None) -> None:
        self.epistemic_covariance = None if epistemic.shape == mean.shape else epistemic
        self.epistemic = epistemic if self.epistemic_covariance is None else _diagonal(epistemic, mean)
        self.aleatoric = aleatoric.expand(mean.shape)
        self._log_aleatoric = log_aleatoric
        log_variances = None
        if log_aleatoric is not None:
            log_variances = self.epistemic.clamp_min(0.0).log().logaddexp(log_aleatoric).unsqueeze(0)
        super().__init__(mean.unsqueeze(0), (self.epistemic + self.aleatoric).unsqueeze(0), log_variances)

    @cached_property
    def covariance(self) -> Tensor:
        """Total covariance of a row's outputs, ``(N, K, K)``; its diagonal is ``variance``."""
        if self.epistemic_covariance is None:
            return torch.diag_embed(_rows(self.variance))
        return self.epistemic_covariance + torch.diag_embed(_rows(self.aleatoric))

    def log_prob(self, target: Tensor) -> Tensor:
        """Log density of every data point, jointly over its outputs, ``(N,)``, in nats."""
        check_target(target, self.mean.shape)
        if self.epistemic_covariance is None or target.ndim == 1:
            return self._log_densities(target)[0]
        outputs = target.shape[-1]
        points = math.prod(target.shape[1:-1])
        blocks = self.epistemic_covariance.double().view(-1, points, outputs, points, outputs)
        covariance = blocks.diagonal(dim1=1, dim2=3).movedim(-1, 1).reshape(*target.shape, outputs)
        # Outputs are scaled to variance 1, since the variance of the noise may be out of range of any dtype.
        log_variances = self.log_variances[0].double()
        units = (-0.5 * log_variances).exp()
        log_noise = self.aleatoric.log() if self._log_aleatoric is None else self._log_aleatoric.expand(target.shape)
        scaled = covariance * units.unsqueeze(-1) * units.unsqueeze(-2) + (log_noise - log_variances).exp().diag_embed()
        density = maps.gaussian_log_prob((target - self.mean) * units, scaled) - 0.5 * log_variances.sum(-1)
        return density.to(self.mean.dtype)

    def quantile(self, probabilities: float | Sequence[float] | Tensor) -> Tensor:
        """Quantiles, ``(Q, N)`` or ``(Q, N, D)``; without the first axis for a single probability.

        Raises:
            ValueError: A probability is outside (0, 1).
        """
        levels = self._levels(probabilities)
        z: Tensor = torch.special.ndtri(levels)
        z = z.view(*levels.shape, *[1] * self.mean.ndim)
        return (self.mean.double() + z * (0.5 * self.log_variances[0].double()).exp()).to(self.mean.dtype)

    def rescale(self, mean: Tensor | float, std: Tensor | float) -> GaussianPredictive:
        """Return the distribution of ``mean + std * y``, which converts standardised targets to their original
        units.
        """
        scale = torch.as_tensor(std, dtype=self.mean.dtype, device=self.mean.device).expand(self.mean.shape)
        shift = torch.as_tensor(mean, dtype=self.mean.dtype, device=self.mean.device)
        if self.epistemic_covariance is None:
            epistemic = scale.square() * self.epistemic
        else:
            factors = _rows(scale)
            epistemic = factors.unsqueeze(2) * self.epistemic_covariance * factors.unsqueeze(1)
        log_aleatoric = None if self._log_aleatoric is None else self._log_aleatoric + 2.0 * scale.abs().log()
        return GaussianPredictive(shift + scale * self.mean, epistemic, scale.square() * self.aleatoric, log_aleatoric)


class GaussianLogitsPredictive(ClassificationPredictive):
    """Predictive distribution of classes with Gaussian logits; the dependence between rows is not known.

    Args:
        logits: Means of the logits, ``(N, ...)`` as the likelihood takes them.
        covariance: Covariance of the ``K`` logits of a row in their order, ``(N, K, K)``; or their variances in the
            logits' shape, with which they are independent.
        likelihood: Likelihood of the classes given the logits.
        link: How Gaussian logits become probabilities. ``"monte_carlo"`` averages over ``mc_samples`` draws of the
            logits. ``"probit"`` is ``softmax(m / sqrt(1 + pi/8 v))``, or the sigmoid of it, and uses the variances
            ``v`` only (MacKay 1992, "The evidence framework applied to classification networks"; element by element for
            several classes). It gives one component, so there is no mutual information.
        mc_samples: Number of draws.
        seed: Seed of the draws. Draw ``i`` at data point ``n`` depends on ``(seed, i, n)`` only; draw ``i`` is not the
            same network at all data points.
        common: Whether draw ``i`` uses the same standard normals at all data points, so that the result for a data
            point does not depend on its number ``n``.

    Attributes:
        logits: Means of the logits.
        covariance: Covariance of the logits, as given.
        link: Name of the link.
    """

    independent = True

    def __init__(
        self,
        logits: Tensor,
        covariance: Tensor,
        likelihood: Likelihood,
        *,
        link: str = "monte_carlo",
        mc_samples: int = 64,
        seed: int = 0,
        common: bool = False,
    ) -> None:
        self.logits = logits
        self.covariance = covariance
        self.link = link
        if link == "probit":
            variance = covariance if covariance.shape == logits.shape else _diagonal(covariance, logits)
            log_probs = likelihood.probit_log_probs(logits, variance).unsqueeze(0)
        else:
            log_probs = likelihood.log_probs(gaussian_draws(logits, covariance, mc_samples, seed, common=common))
        super().__init__(log_probs, binary=log_probs.ndim > logits.ndim + 1)

    @cached_property
    def mutual_information(self) -> Tensor:
        """Mutual information ``H[mean p] - mean H[p]`` in nats, ``(N,)``, not negative: the epistemic part of the
        entropy (BALD).

        Raises:
            ValueError: The link is ``"probit"``, which gives no mutual information.
        """
        if self.link == "probit":
            raise ValueError("link must be 'monte_carlo' for the mutual information, got 'probit'")
        return super().mutual_information


def from_gaussian(
    outputs: Tensor,
    covariance: Tensor,
    likelihood: Likelihood,
    options: Options,
) -> Predictive:
    """Make the predictive distribution of Gaussian network outputs, in float32 or wider.

    Args:
        outputs: Means of the outputs, ``(N, ...)``.
        covariance: Covariance ``(N, K, K)``, or variances, of the part of the outputs that :func:`uncertain_part`
            returns.
        likelihood: Likelihood of the targets given the outputs.
        options: Link for classification, and for all likelihoods that are not Gaussian the number and the seed of draws
            of the outputs, and whether they use the same standard normals at all data points; see
            :class:`GaussianLogitsPredictive`.
    """
    outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
    covariance = covariance.to(outputs.dtype)
    if likelihood.defines("mean_and_log_variance"):
        mean, log_variance = likelihood.mean_and_log_variance(outputs)
        check_equal_shapes("mean_and_log_variance", mean, log_variance)
        return GaussianPredictive(mean, covariance, log_variance.exp(), log_variance)
    if not likelihood.defines("log_probs"):
        draws = gaussian_draws(outputs, covariance, options.mc_samples, options.seed, common=options.common)
        return MixturePredictive(draws, likelihood, independent=True)
    drawing: dict[str, Any] = {"mc_samples": options.mc_samples, "seed": options.seed, "common": options.common}
    return GaussianLogitsPredictive(outputs, covariance, likelihood, link=options.link or "monte_carlo", **drawing)


def uncertain_part(likelihood: Likelihood, outputs: Tensor) -> Tensor:
    """The part of the outputs ``(N, ...)`` that is Gaussian: for Gaussian targets the mean without the noise, else
    all.
    """
    if likelihood.defines("mean_and_log_variance"):
        return likelihood.mean_and_log_variance(outputs)[0]
    return outputs


def gaussian_draws(mean: Tensor, covariance: Tensor, count: int, seed: int, *, common: bool = False) -> Tensor:
    """Draw outputs ``(count, N, ...)``; draw ``i`` at row ``n`` depends on ``(seed, i, n)`` only.

    Args:
        mean: Means, ``(N, ...)``.
        covariance: Covariance of a row, ``(N, K, K)``, or variances of the mean's shape.
        count: Number of draws.
        seed: Seed of the draws.
        common: Whether draw ``i`` uses the same standard normals at all rows; it then depends on ``(seed, i)`` only.
    """
    if common:
        normals = standard_normals(count, mean.new_empty((1, *mean.shape[1:])), seed).expand(count, *mean.shape)
    else:
        normals = standard_normals(count, mean, seed)
    return mean + correlated(normals, covariance)


def correlated(normals: Tensor, covariance: Tensor) -> Tensor:
    """Give standard normals ``(S, N, ...)`` the covariance ``(N, K, K)`` of a row, or variances ``(N, ...)``."""
    if covariance.shape == normals.shape[1:]:
        return normals * covariance.sqrt()
    factor = square_root(covariance).to(normals.dtype)
    with without_autocast([factor]):
        return torch.einsum("snk,nlk->snl", normals.reshape(len(normals), *factor.shape[:2]), factor).view_as(normals)


def standard_normals(samples: int, like: Tensor, seed: int) -> Tensor:
    """Draw standard normals ``(samples, *like.shape)``; number ``i`` at row ``n`` depends on ``(seed, i, n)`` only."""
    width = max(1, like[:1].numel())
    # Blocks of rows are always whole, since a draw depends on its length.
    size = width * max(1, BLOCK // width)
    blocks = -(-like.numel() // size)
    draws = like.new_empty(samples, blocks * size)
    for part in chunks(blocks, size, noise.BLOCK):
        sizes = dict.fromkeys(range(part.start, part.stop), size)
        for numbers in chunks(samples, len(sizes) * size, noise.BLOCK):
            # Posterior samples of the weights use step 0.
            made = noise.normal_many(
                [seed],
                [1],
                range(numbers.start, numbers.stop),
                sizes,
                stream=noise.POSTERIOR,
                device=like.device,
            )
            draws[numbers, part.start * size : part.stop * size] = made[0]
    return draws[:, : like.numel()].reshape(samples, *like.shape)


SINGULAR = 1e-9
"""Share of an output's variance that the outputs before it leave open, below which a covariance counts as singular."""


def square_root(covariance: Tensor) -> Tensor:
    """``L`` with ``L L' = covariance`` for matrices ``(N, K, K)`` that may be singular, in float64.

    It is lower triangular, and symmetric for matrices that are singular up to rounding, whose Cholesky decomposition
    may succeed or not with the last bits. Rows of outputs whose variance is zero are exactly zero.
    """
    matrix = covariance.double()
    certain = matrix.diagonal(dim1=-2, dim2=-1) <= 0
    beside = certain.unsqueeze(1) | certain.unsqueeze(2)
    matrix = matrix.masked_fill(beside, 0.0) + torch.diag_embed(certain.double())
    root: Tensor
    root, failed = torch.linalg.cholesky_ex(matrix)
    finite = matrix.isfinite().flatten(1).all(1)
    root[~finite] = math.nan
    remaining = root.diagonal(dim1=-2, dim2=-1).square() / matrix.diagonal(dim1=-2, dim2=-1)
    failed = ((failed > 0) | (remaining < SINGULAR).any(1)) & finite
    if failed.any():
        values, vectors = torch.linalg.eigh(matrix[failed])
        root[failed] = (vectors * values.clamp_min(0.0).sqrt().unsqueeze(1)) @ vectors.mT
    return root.masked_fill(beside, 0.0)


def _rows(tensor: Tensor) -> Tensor:
    """The tensor as ``(N, D)``, whatever the axes of the outputs."""
    return tensor.unsqueeze(1) if tensor.ndim == 1 else tensor.flatten(1)


def _diagonal(covariance: Tensor, like: Tensor) -> Tensor:
    return covariance.diagonal(dim1=-2, dim2=-1).reshape(like.shape)
