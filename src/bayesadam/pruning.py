"""Pruning curves: what a network is still good for when more and more of its weights are zero."""

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
"""The levels of Kessler et al. 2018, section 4.2."""


@dataclass(frozen=True)
class PruningCurve:
    """Scores at each level of pruning.

    Attributes:
        fractions: Of all weights, those that are zero.
        remaining: Number of weights that are left.
        scores: One number per level, by name: ``"accuracy"`` or ``"rmse"``, and ``"nll"`` (per data point, in nats).
    """

    fractions: list[float]
    remaining: list[int]
    scores: dict[str, list[float]]


def pruning_curve(
    model: nn.Module,
    posterior: GaussianPosterior,
    inputs: Tensor | tuple[Any, ...] | Mapping[str, Any] | Iterable[Any] | None = None,
    targets: Tensor | None = None,
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
    """Scores of a network without the weakest of its weights, at one level of pruning after another.

    A pruned weight is exactly zero in the mean and in all samples, as after the posterior's ``prune``, and the others
    are what they were: of the same seed, a sample differs between levels in the pruned weights only. The weights are
    ranked once, over all tensors together (Blundell et al. 2015, section 5.1; Kessler et al. 2018, section 4.2).

    Args:
        model: Its trainable parameters must be those of the posterior; afterwards it is what it was.
        posterior: Over the model's weights. A trained network without uncertainty is
            ``DiagonalGaussian.point_mass(model)``, to be pruned by magnitude.
        inputs: As for :func:`bayesadam.predict`; a loader is iterated over anew for every level.
        targets: Of all inputs, in their order. Class numbers for a classification likelihood: then the scores are
            ``"accuracy"``, of all of them whatever their axes, and ``"nll"``; for regression ``"rmse"``, of the
            predictive mean, in the units of the targets, and ``"nll"``; the latter alone for a likelihood without
            moments.
        likelihood: See :func:`bayesadam.predict`.
        evaluate: Gives other scores, instead of these three: it is called with every pruned network, a distribution
            that ``predict`` takes.
        fractions: Levels, in any order: ``round(fraction * num_weights)`` weights go.
        by: What makes a weight weak: a small ``"signal_to_noise"``, or a small ``"magnitude"`` of its mean.
        method: See :func:`bayesadam.predict`, and so are the arguments that follow.
        mc_samples: See there.
        seed: See there.
        output: See there.
        batch_size: See there.
        progress: Show a progress bar over the levels; default in a terminal.

    Raises:
        ValueError: Neither or both of ``evaluate`` and ``inputs``, ``targets`` and ``likelihood``; a fraction outside
            [0, 1] or none; another ``by``; a model that does not match the posterior; and as :func:`bayesadam.predict`.
    """
    data = {"inputs": inputs, "targets": targets, "likelihood": likelihood}
    given = [name for name, value in data.items() if value is not None]
    if evaluate is None:
        if inputs is None or targets is None or likelihood is None:
            raise ValueError(f"inputs, targets and likelihood must all be given without evaluate, got {given}")
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
        evaluate = partial(_scores, predicted, targets)
    elif given:
        raise ValueError(f"inputs, targets and likelihood must not be given with evaluate, got {given}")
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
    predicted: Callable[[NetworkDistribution], Predictive], targets: Tensor, pruned: NetworkDistribution
) -> dict[str, float]:
    prediction = predicted(pruned)
    targets = targets.to(prediction.device)
    nll = metrics.nll(prediction, targets)
    if isinstance(prediction, ClassificationPredictive):
        probs = prediction.class_probs.flatten(0, -2)
        return {"accuracy": metrics.accuracy(probs, targets.flatten()), "nll": nll}
    if isinstance(prediction, MixturePredictive) and not prediction.likelihood.provides("moments"):
        return {"nll": nll}
    return {"rmse": metrics.rmse(prediction.mean, targets), "nll": nll}


class _Pruned(NetworkDistribution):
    """A posterior, with its weights of these numbers at zero."""

    def __init__(self, posterior: GaussianPosterior, numbers: Tensor) -> None:
        self.posterior = posterior
        self.gone = posterior.mask(numbers)

    def match(self, model: nn.Module) -> dict[str, Tensor]:
        """See :class:`bayesadam.posterior.Posterior`."""
        return self.posterior.match(model)

    def zeroed(self, name: str, tensor: Tensor) -> Tensor:
        """What belongs to the weights of a tensor, one row or element each, with zeros for those that are gone."""
        gone = self.gone[name].to(tensor.device)
        return tensor.masked_fill(gone if tensor.shape == gone.shape else gone.view(-1, 1), 0.0)

    @contextmanager
    def draws(self, model: nn.Module, seed: int = 0) -> Iterator[Callable[[int | None], None]]:
        """See the base class."""
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
