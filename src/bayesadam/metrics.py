"""Scores of predictions and of their uncertainty. They take tensors and return Python floats, averaged over data
points.

The score is NaN if a prediction is NaN or if there are no data.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bayesadam.predictive.gaussian_outputs import GaussianPredictive
from bayesadam.predictive.mixture import MixturePredictive

if TYPE_CHECKING:
    from bayesadam.predictive.result import Predictive, RegressionPredictive
    from bayesadam.predictive.transformed import TransformedPredictive

__all__ = [
    "accuracy",
    "brier_score",
    "calibration_curve",
    "coverage",
    "crps",
    "expected_calibration_error",
    "joint_log_likelihood",
    "log_likelihood",
    "nll",
    "ood_auroc",
    "predictive_crps",
    "quantile_crps",
    "rmse",
    "spaced_levels",
]

LEVELS = 200
"""Probabilities of the quantiles from which a CRPS is computed."""
DRAWS = 1024
"""Number of draws for the CRPS of a mixture, whose quantiles would take long."""
ROUNDING = 0.02
"""Tolerance with which probabilities must be in [0, 1] and have the sum 1; bfloat16 and two decimals need it."""


def rmse(mean: Tensor, target: Tensor) -> float:
    """Root mean squared error in the units of the target, over all elements of two tensors ``(N,)`` or ``(N, D)``."""
    _same_shape("mean", mean, target)
    return (mean.double() - target.double()).square().mean().sqrt().item()


def log_likelihood(prediction: Predictive | TransformedPredictive, target: Tensor) -> float:
    """Pointwise test log-likelihood ``1/N sum_n log mean_s p(y_n | x_n, theta_s)`` in nats; higher is better."""
    return prediction.log_prob(target).double().mean().item()


def joint_log_likelihood(prediction: Predictive, target: Tensor) -> float:
    """Joint test log-likelihood ``1/N log mean_s prod_n p(y_n | x_n, theta_s)`` in nats, as the code of Khan et
    al. 2018 computes it.
    """
    return (prediction.joint_log_likelihood(target).double() / prediction.log_prob(target).numel()).item()


def nll(prediction: Predictive | TransformedPredictive, target: Tensor) -> float:
    """Negative pointwise test log-likelihood per data point, in nats; lower is better.

    A data point with several numeric targets counts their sum.
    """
    return -log_likelihood(prediction, target)


def accuracy(probs: Tensor, target: Tensor) -> float:
    """Fraction of data points whose most probable class is right.

    Args:
        probs: Probabilities ``(N, C)``, or those of class 1, ``(N,)``.
        target: Class numbers ``(N,)``.

    Raises:
        ValueError: Shapes do not match, probabilities are outside of [0, 1] or do not have the sum 1, as for logits, or
            there is no such class. The other scores of probabilities raise the same errors.
    """
    _, correct = _confidence(probs, target)
    return correct.mean().item()


def brier_score(probs: Tensor, target: Tensor) -> float:
    """Mean over data points of ``sum_c (p_c - [y = c])^2``, in [0, 2]; probabilities ``(N,)`` are those of class 1.

    Both classes are counted for probabilities ``(N,)``.
    """
    full = _all_classes(probs, target).double()
    one_hot = torch.nn.functional.one_hot(target.long(), full.shape[-1])
    return (full - one_hot).square().sum(-1).mean().item()


def calibration_curve(
    probs: Tensor, target: Tensor, *, bins: int = 15, weight: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Confidence and accuracy in ``bins`` bins of equal width over the confidence.

    Args:
        probs: Probabilities ``(N, C)``, or those of class 1, ``(N,)``.
        target: Class numbers ``(N,)``.
        bins: Number of bins.
        weight: Weights of the data points, ``(N,)``; with ``None`` they are equal.

    Returns:
        Mean confidence, accuracy, and fraction of the data points, each ``(bins,)``. The first two are NaN where a bin
        is empty, and in the first bin if a probability is NaN.
    """
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins!r}")
    confidence, correct = _confidence(probs, target)
    index = (confidence.double() * bins).ceil().nan_to_num(1.0).long().clamp(1, bins) - 1
    share = torch.ones(len(index), dtype=torch.float64) if weight is None else weight.double().cpu()
    count, *sums = (
        torch.zeros(bins, dtype=torch.float64).index_add_(0, index.cpu(), values)
        for values in (share, *(share * values.double().cpu() for values in (confidence, correct)))
    )
    return sums[0] / count, sums[1] / count, count / count.sum()


def expected_calibration_error(probs: Tensor, target: Tensor, *, bins: int = 15, weight: Tensor | None = None) -> float:
    """Expected calibration error, ``sum_b share_b |accuracy_b - confidence_b|`` over equal bins (Guo et al. 2017,
    eq. 3). The arguments are those of :func:`calibration_curve`.
    """
    confidence, correct, share = calibration_curve(probs, target, bins=bins, weight=weight)
    gaps = share * (correct - confidence).abs()
    return torch.where(share == 0, 0.0, gaps).sum().item()


def crps(mean: Tensor, variance: Tensor, target: Tensor) -> float:
    """Continuous ranked probability score of a Gaussian in closed form (Gneiting and Raftery 2007, eq. 21)."""
    _same_shape("mean", mean, target)
    _same_shape("variance", variance, target)
    return _gaussian_crps(mean, variance, target).mean().item()


def predictive_crps(
    prediction: RegressionPredictive | MixturePredictive | TransformedPredictive, target: Tensor
) -> Tensor:
    """Continuous ranked probability score of every element, in the units of the target, for any predictive of numbers.

    For Gaussians it has a closed form. For mixtures of other distributions it is estimated from 1,024 draws that are
    evenly divided over the components, which makes it too small by less than a thousandth of the spread between them.
    Otherwise it is twice the mean quantile score at 200 evenly spaced probabilities (Laio and Tamea 2007, eq. 6), which
    is within 0.2% for a Gaussian.

    Args:
        prediction: Predictive distribution with a mean ``(N,)`` or ``(N, D)``.
        target: Targets of the same shape.

    Returns:
        Scores of the same shape.
    """
    _same_shape("target", target, prediction.mean, "prediction")
    if isinstance(prediction, GaussianPredictive):
        return _gaussian_crps(prediction.mean, prediction.variance, target)
    if isinstance(prediction, MixturePredictive):
        return _crps_of_draws(prediction.sample(DRAWS).double(), target)
    return quantile_crps(prediction.quantile(spaced_levels(LEVELS, device=target.device)), target)


def quantile_crps(quantiles: Tensor, target: Tensor) -> Tensor:
    """Continuous ranked probability score of every element, from quantiles: twice their mean quantile score.

    Args:
        quantiles: Quantiles ``(L, *shape)`` at the probabilities ``(i + 1/2) / L`` of :func:`spaced_levels`.
        target: Targets of that shape.

    Returns:
        Scores of the same shape, in float64 (Laio and Tamea 2007, eq. 6).
    """
    _same_shape("target", target, quantiles[0], "quantiles")
    total = torch.zeros_like(target, dtype=torch.float64)
    for level, value in zip(spaced_levels(len(quantiles), device=target.device), quantiles, strict=True):
        gap = target.double() - value.double()
        total += torch.where(gap >= 0, level * gap, (level - 1.0) * gap)
    return 2.0 * total / len(quantiles)


def spaced_levels(count: int, *, device: torch.device | str = "cpu") -> Tensor:
    """Evenly spaced probabilities ``(i + 1/2) / count`` in float64."""
    return (torch.arange(count, dtype=torch.float64, device=device) + 0.5) / count


def coverage(lower: Tensor, upper: Tensor, target: Tensor) -> float:
    """Fraction of targets in ``[lower, upper]``; a target that is NaN is in no interval."""
    _same_shape("lower", lower, target)
    _same_shape("upper", upper, target)
    inside = ((lower <= target) & (target <= upper)).double()
    return torch.where(lower.isnan() | upper.isnan(), torch.nan, inside).mean().item()


def ood_auroc(inside: Tensor, outside: Tensor) -> float:
    """Area under the ROC curve of a score, such as the entropy, that should be higher out of distribution.

    It is computed by scikit-learn.

    Args:
        inside: Scores of data from the training distribution, ``(N,)``.
        outside: Scores of other data, ``(M,)``.

    Raises:
        ImportError: scikit-learn is not installed.
        ValueError: There is not one score for each data point.
    """
    for name, value in (("inside", inside), ("outside", outside)):
        if value.ndim != 1:
            raise ValueError(
                f"{name} must have one score for each data point, got shape {tuple(value.shape)} (take the mean or the "
                "maximum over positions, say)"
            )
    try:
        from sklearn.metrics import roc_auc_score
    except ImportError:
        raise ImportError('ood_auroc needs scikit-learn: pip install "bayesadam[sklearn]"') from None
    scores = torch.cat([inside, outside]).detach()
    if not len(inside) or not len(outside) or scores.isnan().any():
        return math.nan
    labels = torch.cat([torch.zeros(len(inside)), torch.ones(len(outside))])
    ranks = torch.unique(scores, return_inverse=True)[1]  # scikit-learn refuses infinite scores
    return float(roc_auc_score(labels.numpy(), ranks.cpu().numpy()))


def _gaussian_crps(mean: Tensor, variance: Tensor, target: Tensor) -> Tensor:
    scale, error = variance.double().sqrt(), target.double() - mean.double()
    z = error / scale.clamp_min(torch.finfo(torch.float64).tiny)  # a variance of 0 has the score |error|
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2.0 * math.pi)
    score: Tensor = error * (2.0 * torch.special.ndtr(z) - 1.0) + scale * (2.0 * density - 1.0 / math.sqrt(math.pi))
    return score


def _crps_of_draws(draws: Tensor, target: Tensor) -> Tensor:
    """``E|Y - y| - E|Y - Y'| / 2`` (Gneiting and Raftery 2007, eq. 21), draws ``(S, ...)``; pairs are of two draws."""
    count = len(draws)
    ranks = 2.0 * torch.arange(1, count + 1, dtype=torch.float64, device=draws.device) - count - 1.0
    half_gap = torch.tensordot(ranks, draws.sort(0).values, 1) / (count * (count - 1))
    score: Tensor = (draws - target.double()).abs().mean(0) - half_gap
    return score


def _same_shape(name: str, value: Tensor, other: Tensor, other_name: str = "target") -> None:
    if value.shape != other.shape:
        raise ValueError(f"{name} must be of the {other_name}'s shape {tuple(other.shape)}, got {tuple(value.shape)}")


def _all_classes(probs: Tensor, target: Tensor) -> Tensor:
    if target.ndim != 1 or probs.shape[:1] != target.shape or probs.ndim > 2 or probs.shape[1:] == (1,):
        raise ValueError(
            "probs must be (N, C) with at least 2 classes, or (N,) of class 1, for targets (N,), "
            f"got {tuple(probs.shape)} for {tuple(target.shape)}"
        )
    if target.is_floating_point() and (target != target.round()).any():
        raise ValueError(f"target must be class numbers, got {target[target != target.round()][0].item()!r}")
    outside = (probs < -ROUNDING) | (probs > 1.0 + ROUNDING)
    if outside.any():
        raise ValueError(f"probs must be in [0, 1], got {probs[outside][0].item()!r}")
    full = torch.stack([1.0 - probs, probs], dim=-1) if probs.ndim == 1 else probs
    total = full.sum(-1, dtype=torch.float64)
    wrong = (total - 1.0).abs() > ROUNDING
    if wrong.any():
        raise ValueError(f"probs must have the sum 1 over the classes, got {total[wrong][0].item()!r}")
    unknown = (target.long() < 0) | (target.long() >= full.shape[1])
    if unknown.any():
        raise ValueError(f"target must be class numbers below {full.shape[1]}, got {target[unknown][0].item()!r}")
    return full.detach()


def _confidence(probs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Largest probability of every data point, and whether its class is right: 1, 0 or NaN."""
    confidence, predicted = _all_classes(probs, target).max(-1)
    return confidence, torch.where(confidence.isnan(), torch.nan, (predicted == target).double())
