"""Pruning curves: scores of a network as more and more of its weights are set to zero."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from bayesadam import metrics
from bayesadam.likelihoods import Likelihood
from bayesadam.posterior.gaussian_posterior import GaussianPosterior, check_fraction
from bayesadam.predictive import ClassificationPredictive, MixturePredictive, predict
from bayesadam.predictive.batches import joined
from bayesadam.predictive.pairs import Data, batches
from bayesadam.predictive.result import Predictive
from bayesadam.progress import progress_bar

__all__ = ["PruningCurve", "pruning_curve"]

FRACTIONS = (*(i / 10 for i in range(10)), 0.95, 0.96, 0.97, 0.98, 0.99, 0.992, 0.995, 0.997, 0.999)
"""The levels of the notebook of Kessler et al. 2018, whose Fig. 2 has these curves."""


@dataclass(frozen=True)
class PruningCurve:
    """Scores at each level of pruning.

    Attributes:
        fractions: Fraction of all weights that are zero, at each level.
        remaining: Number of weights that are left, at each level.
        scores: One number per level, by name: ``"accuracy"`` or ``"rmse"``, and ``"nll"`` (per data point, in nats).
    """

    fractions: list[float]
    remaining: list[int]
    scores: dict[str, list[float]]


def pruning_curve(
    model: nn.Module,
    posterior: GaussianPosterior,
    data: Data | None = None,
    *,
    likelihood: Likelihood | None = None,
    evaluate: Callable[[GaussianPosterior], Mapping[str, float]] | None = None,
    fractions: Sequence[float] = FRACTIONS,
    by: str = "signal_to_noise",
    method: str = "mean",
    mc_samples: int = 64,
    seed: int = 0,
    output: Callable[[Any], Tensor] | None = None,
    batch_size: int | None = None,
    progress: bool | None = None,
) -> PruningCurve:
    """Score a network without the weakest of its weights, at several levels of pruning.

    Every level is the result of the posterior's ``prune``, which ranks the weights over all tensors together (Blundell
    et al. 2015, section 5.1; Kessler et al. 2018, section 4).

    Args:
        model: Network whose trainable parameters are those of the posterior; afterwards it is as before.
        posterior: Posterior over the model's weights. For a trained network without uncertainty use
            ``DiagonalGaussian.point_mass(model)``, and prune by magnitude.
        data: A pair ``(inputs, targets)``, or a loader of such pairs, which is iterated over anew for every level. For
            a classification likelihood the targets are class numbers, and the scores are ``"accuracy"``, over all of
            them, and ``"nll"``. For regression the scores are ``"rmse"`` of the predictive mean, in the units of the
            targets, and ``"nll"``; for a likelihood without moments ``"nll"`` alone.
        likelihood: Likelihood of the targets given the output; see :func:`bayesadam.predict`.
        evaluate: Function that returns other scores instead of these. It is called with every pruned posterior.
        fractions: Levels, in any order; at each ``round(fraction * num_weights)`` weights are zero.
        by: Criterion of weakness: a small ``"signal_to_noise"`` ratio, or a small ``"magnitude"`` of the mean.
        method: Method of prediction, as for :func:`bayesadam.predict`.
        mc_samples: Number of samples, as for :func:`bayesadam.predict`.
        seed: Seed of the samples, as for :func:`bayesadam.predict`.
        output: Function that takes the output tensor out of what the model returns, as for :func:`bayesadam.predict`.
        batch_size: Rows per forward pass, as for :func:`bayesadam.predict`.
        progress: Whether to show a progress bar over the levels; by default it is shown in a terminal.

    Returns:
        The scores at every level, in the order of ``fractions``.

    Raises:
        TypeError: The posterior is not a Gaussian over the weights, such as the :class:`bayesadam.Mixture` of an
            ensemble; prune its members one by one.
        ValueError: Neither or both of ``evaluate`` and the two arguments ``data`` and ``likelihood`` are given; the
            data are not pairs; there is no fraction, or one outside [0, 1]; ``by`` is unknown; the model does not match
            the posterior; the posterior is a :class:`bayesadam.KroneckerGaussian`, which cannot be pruned (prune its
            ``marginal()``); or :func:`bayesadam.predict` raises it.
    """
    if not isinstance(posterior, GaussianPosterior):
        raise TypeError(
            "posterior must be a DiagonalGaussian, LowRankGaussian or DenseGaussian (prune the marginal() of others, "
            f"and the members of a Mixture one by one), got a {type(posterior).__name__}"
        )
    given = [name for name, value in {"data": data, "likelihood": likelihood}.items() if value is not None]
    if evaluate is None:
        if data is None or likelihood is None:
            raise ValueError(f"data and likelihood must both be given without evaluate, got {given}")
        predicted = partial(
            predict,
            model,
            likelihood=likelihood,
            mc_samples=mc_samples,
            seed=seed,
            method=method,
            output=output,
            batch_size=batch_size,
            progress=False,
        )
        evaluate = partial(_scores, predicted, data)
    elif given:
        raise ValueError(f"data and likelihood must not be given with evaluate, got {given}")
    fractions = list(fractions)
    if not fractions:
        raise ValueError("fractions must have at least one level, got none")
    for fraction in fractions:
        check_fraction("every fraction", fraction)
    curve = PruningCurve(fractions, [], {})
    with progress_bar("pruning", len(fractions), progress) as advance:
        for fraction in fractions:
            for name, score in evaluate(posterior.prune(fraction, by=by)).items():
                curve.scores.setdefault(name, []).append(float(score))
            curve.remaining.append(posterior.num_weights - round(fraction * posterior.num_weights))
            advance()
    return curve


def _scores(predicted: Callable[..., Predictive], data: Data, pruned: GaussianPosterior) -> dict[str, float]:
    targets = []

    def pairs() -> Iterator[tuple[Any, Tensor]]:
        for batch, target in batches(data, None, batch_size=sys.maxsize):
            targets.append(target)
            yield batch, target

    prediction = predicted(pruned, pairs())
    target = joined(targets, "targets").to(prediction.device)
    nll = metrics.nll(prediction, target)
    if isinstance(prediction, ClassificationPredictive):
        probs = prediction.class_probs.flatten(0, -2)
        return {"accuracy": metrics.accuracy(probs, target.flatten()), "nll": nll}
    if isinstance(prediction, MixturePredictive) and not prediction.likelihood.provides("moments"):
        return {"nll": nll}
    return {"rmse": metrics.rmse(prediction.mean, target), "nll": nll}
