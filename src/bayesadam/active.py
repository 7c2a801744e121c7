"""Active learning: choosing which inputs to label next, with interfaces for packages that run such loops.

A prediction of :func:`bayesadam.predict` contains all that these packages need; the functions here convert its shape.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesadam.checks import check, is_whole
from bayesadam.predictive import ClassificationPredictive, GaussianPredictive, RegressionPredictive
from bayesadam.predictive.gaussian import correlated, standard_normals
from bayesadam.predictive.linearized_mixture import GaussianMixturePredictive
from bayesadam.predictive.result import Predictive


def informativeness(pred: Predictive) -> Tensor:
    """Expected information of the label of each data point about the network, ``(N,)``; higher is more informative.

    For classes it is the mutual information in nats (BALD: Houlsby et al. 2011), for regression the epistemic variance.
    If a data point has several labels or outputs, it is their sum.

    Raises:
        TypeError: The prediction has neither.
    """
    found = getattr(pred, "mutual_information", None)
    found = getattr(pred, "epistemic", None) if found is None else found
    if not isinstance(found, Tensor):
        raise TypeError(f"pred must have mutual_information or epistemic, got {type(pred).__name__}")
    return found.flatten(1).sum(1) if found.ndim > 1 else found


def log_probs_N_K_C(pred: ClassificationPredictive) -> Tensor:
    """Convert a prediction to log probabilities ``(N, K, C)`` of ``K`` posterior samples, as ``batchbald_redux`` takes
    them.

    ``get_batchbald_batch(log_probs_N_K_C(pred), batch_size, num_samples)`` chooses a batch whose labels are jointly
    informative (Kirsch et al. 2019). This needs predictions with ``method="monte_carlo"``: samples of Gaussian logits
    (the linearised method, and moments) are independent between data points.

    Raises:
        TypeError: The prediction is not a mixture of class probabilities over samples, as with ``link="probit"``.
        ValueError: A data point has several labels.
    """
    samples = _samples(pred)
    if samples.ndim != 3:
        raise ValueError(f"pred must have one label for each data point, got log_probs of shape {tuple(samples.shape)}")
    return samples.transpose(0, 1).contiguous()


def baal_predictions(
    pred: ClassificationPredictive | RegressionPredictive, *, mc_samples: int = 64, seed: int = 0
) -> NDArray[Any]:
    """Convert a prediction to an array ``(N, C, ..., K)`` of ``K`` posterior samples, as Baal's heuristics take it.

    For classes it has probabilities, with further labels of a data point between classes and samples. For regression it
    has means, and ``C`` counts the outputs. From Gaussian predictions (the linearised method, and moments) samples of
    the function are drawn, independently between data points; of a mixture of them, every component has an equal share.

    Args:
        pred: The prediction.
        mc_samples: Number of samples that are drawn from Gaussian predictions for regression, rounded up to a multiple
            of the number of components; other predictions have samples of their own.
        seed: Seed of these draws. Draw ``i`` at data point ``n`` depends on ``(seed, i, n)`` only.

    Raises:
        TypeError: The prediction is not a mixture over samples, as with ``link="probit"``.
        ValueError: The number of samples is not a positive integer.
    """
    check("mc_samples", mc_samples, "a whole number of at least 1", is_whole)
    if isinstance(pred, RegressionPredictive):
        means = _functions(pred, mc_samples, seed)
        means = means if means.ndim > 2 else means.unsqueeze(-1)
        found = means.permute(1, *range(2, means.ndim), 0)
    else:
        probs = _samples(pred).exp()
        found = probs.permute(1, probs.ndim - 1, *range(2, probs.ndim - 1), 0)
    array: NDArray[Any] = found.cpu().numpy()
    return np.ascontiguousarray(array)


def query_strategy(learner: Any, X: Any, n_instances: int = 1) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Choose the most informative rows of a pool; this is a ``query_strategy`` for modAL.

    ``ActiveLearner(BayesianMLPClassifier(), query_strategy=query_strategy, X_training=..., y_training=...)``.

    Args:
        learner: modAL's learner around an estimator of :mod:`bayesadam.sklearn`, or that estimator, or any object whose
            ``predictive(X)`` returns a prediction of this library.
        X: The pool.
        n_instances: Number of rows to choose.

    Returns:
        Indices of the rows, the most informative first, and their :func:`informativeness`.

    Raises:
        TypeError: The estimator has no ``predictive`` method.
        ValueError: The pool has fewer rows, or ``n_instances`` is not a positive integer.
    """
    estimator = getattr(learner, "estimator", learner)
    if not hasattr(estimator, "predictive"):
        raise TypeError(f"learner must have an estimator with predictive(X), got {type(estimator).__name__}")
    scores = informativeness(estimator.predictive(X)).double()
    if not (is_whole(n_instances) and n_instances <= len(scores)):
        raise ValueError(f"n_instances must be a whole number in [1, {len(scores)}], got {n_instances!r}")
    best = torch.argsort(scores, descending=True, stable=True)[:n_instances]
    return best.cpu().numpy(), scores[best].cpu().numpy()


def _functions(pred: RegressionPredictive, mc_samples: int, seed: int) -> Tensor:
    """Values of the function at samples, ``(K, N, ...)``; those of Gaussian predictions are drawn."""
    if not isinstance(pred, (GaussianPredictive, GaussianMixturePredictive)):
        return pred.means
    parts = pred.parts if isinstance(pred, GaussianMixturePredictive) else [pred]
    rounds = -(-mc_samples // len(parts))
    normals = standard_normals(rounds * len(parts), pred.mean, seed)
    drawn = []
    for number, part in enumerate(parts):
        spread = part.epistemic if part.epistemic_covariance is None else part.epistemic_covariance
        own = correlated(normals[number :: len(parts)].contiguous(), spread.to(normals.device))
        drawn.append(part.mean.to(normals.device) + own)
    return torch.stack(drawn, 1).flatten(0, 1)


def _samples(pred: Any) -> Tensor:
    """Log probabilities of the samples, ``(K, N, ..., C)``."""
    samples = getattr(pred, "log_probs", None)
    link = getattr(pred, "link", None)
    if not isinstance(samples, Tensor) or link == "probit":
        found = f"{type(pred).__name__}" + (f" with link={link!r}" if link else "")
        raise TypeError(f"pred must have log probabilities of posterior samples, got {found}")
    return samples
