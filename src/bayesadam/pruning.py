"""Pruning curves: scores of a network as more and more of its weights are set to zero."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam import metrics
from bayesadam.likelihoods import Likelihood
from bayesadam.moments import Moments
from bayesadam.posterior import NetworkDistribution
from bayesadam.posterior.gaussian import GaussianPosterior, check_fraction
from bayesadam.predictive import ClassificationPredictive, MixturePredictive, predict
from bayesadam.predictive.covariance import WeightCovariance, weight_covariance
from bayesadam.predictive.moment_propagation import independent_weights
from bayesadam.predictive.result import Predictive
from bayesadam.progress import progress_bar

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
    inputs: Tensor | tuple[Any, ...] | Mapping[str, Any] | Iterable[Any] | None = None,
    target: Tensor | None = None,
    *,
    likelihood: Likelihood | None = None,
    evaluate: Callable[[NetworkDistribution], Mapping[str, float]] | None = None,
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

    A pruned weight is exactly zero in the mean and in all samples, as after the posterior's ``prune``, and the other
    weights do not change: with the same seed, samples at two levels differ in the pruned weights only. The weights are
    ranked once, over all tensors together (Blundell et al. 2015, section 5.1; Kessler et al. 2018, section 4).

    Args:
        model: Network whose trainable parameters are those of the posterior; afterwards it is as before.
        posterior: Posterior over the model's weights. For a trained network without uncertainty use
            ``DiagonalGaussian.point_mass(model)``, and prune by magnitude.
        inputs: Inputs, as for :func:`bayesadam.predict`; a loader is iterated over anew for every level.
        target: Targets of all inputs, in their order. For a classification likelihood they are class numbers, and the
            scores are ``"accuracy"``, over all of them, and ``"nll"``. For regression the scores are ``"rmse"`` of the
            predictive mean, in the units of the targets, and ``"nll"``; for a likelihood without moments ``"nll"``
            alone.
        likelihood: Likelihood of the targets given the output; see :func:`bayesadam.predict`.
        evaluate: Function that returns other scores instead of these. It is called with every pruned network, as a
            distribution that ``predict`` takes.
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
        ValueError: Neither or both of ``evaluate`` and the three arguments ``inputs``, ``target`` and ``likelihood``
            are given; there is no fraction, or one outside [0, 1]; ``by`` is unknown; the model does not match the
            posterior; or :func:`bayesadam.predict` raises it.
    """
    if not isinstance(posterior, GaussianPosterior):
        raise TypeError(
            "posterior must be a DiagonalGaussian, LowRankGaussian, KroneckerGaussian or DenseGaussian (prune the "
            f"members of a Mixture one by one), got a {type(posterior).__name__}"
        )
    data = {"inputs": inputs, "target": target, "likelihood": likelihood}
    given = [name for name, value in data.items() if value is not None]
    if evaluate is None:
        if inputs is None or target is None or likelihood is None:
            raise ValueError(f"inputs, target and likelihood must all be given without evaluate, got {given}")
        predicted = partial(
            predict,
            model,
            inputs=inputs,
            likelihood=likelihood,
            mc_samples=mc_samples,
            seed=seed,
            method=method,
            output=output,
            batch_size=batch_size,
            progress=False,
        )
        evaluate = partial(_scores, predicted, target)
    elif given:
        raise ValueError(f"inputs, target and likelihood must not be given with evaluate, got {given}")
    fractions = list(fractions)
    if not fractions:
        raise ValueError("fractions must have at least one level, got none")
    for fraction in fractions:
        check_fraction("every fraction", fraction)
    order = posterior.pruning_order(by)

    curve = PruningCurve(fractions, [], {})
    with progress_bar("pruning", len(fractions), progress) as advance:
        for fraction in fractions:
            count = round(fraction * order.numel())
            pruned = _Pruned(posterior, order[:count])
            for name, score in evaluate(pruned).items():
                curve.scores.setdefault(name, []).append(float(score))
            curve.remaining.append(order.numel() - count)
            advance()
    return curve


def _scores(
    predicted: Callable[[NetworkDistribution], Predictive], target: Tensor, pruned: NetworkDistribution
) -> dict[str, float]:
    prediction = predicted(pruned)
    target = target.to(prediction.device)
    nll = metrics.nll(prediction, target)
    if isinstance(prediction, ClassificationPredictive):
        probs = prediction.class_probs.flatten(0, -2)
        return {"accuracy": metrics.accuracy(probs, target.flatten()), "nll": nll}
    if isinstance(prediction, MixturePredictive) and not prediction.likelihood.provides("moments"):
        return {"nll": nll}
    return {"rmse": metrics.rmse(prediction.mean, target), "nll": nll}


class _Pruned(NetworkDistribution):
    """A posterior with the weights of these numbers set to zero."""

    def __init__(self, posterior: GaussianPosterior, numbers: Tensor) -> None:
        self.posterior = posterior
        self.gone = posterior.mask(numbers)

    def match(self, model: nn.Module) -> dict[str, Tensor]:
        """Match the model, as :class:`bayesadam.posterior.Posterior` does."""
        return self.posterior.match(model)

    @property
    def strata(self) -> int:
        """Number of strata, as in the posterior itself."""
        return self.posterior.strata

    def repeats(self, count: int) -> list[int]:
        """The numbers of the first equal samples, as in the posterior itself."""
        return self.posterior.repeats(count)

    def zeroed(self, name: str, tensor: Tensor) -> Tensor:
        """Values that belong to the weights of a tensor, one row or element each, with zeros for pruned weights."""
        gone = self.gone[name].to(tensor.device)
        return tensor.masked_fill(gone if tensor.shape == gone.shape else gone.view(-1, 1), 0.0)

    @contextmanager
    def draws(self, model: nn.Module, seed: int = 0) -> Iterator[Callable[[int | None], None]]:
        """Return a context as in the base class, with the pruned weights at zero."""
        targets = self.posterior.match(model)
        gone = {name: self.gone[name].to(target.device) for name, target in targets.items()}
        with self.posterior.draws(model, seed) as put_whole:

            @torch.no_grad()
            def put(number: int | None) -> None:
                put_whole(number)
                for name, target in targets.items():
                    target.masked_fill_(gone[name], 0.0)
                torch.clear_autocast_cache()

            yield put


@weight_covariance.register
def _(posterior: _Pruned) -> WeightCovariance:
    whole = weight_covariance(posterior.posterior)
    if whole.left or whole.right:
        raise ValueError(
            "posterior must have independent weights or a covariance with a factor for method='linearized' after "
            f"pruning (use its marginal(), or 'monte_carlo'), got {type(posterior.posterior).__name__}"
        )
    variance, factor = (
        {name: posterior.zeroed(name, value) for name, value in part.items()} for part in (whole.variance, whole.factor)
    )
    return WeightCovariance(variance, factor)


@independent_weights.register
def _(posterior: _Pruned) -> dict[str, Moments]:
    whole = independent_weights(posterior.posterior)
    return {name: value.moved(partial(posterior.zeroed, name)) for name, value in whole.items()}
