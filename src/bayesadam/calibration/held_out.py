"""Scoring predictions of held-out rows, and signs that a network was trained on them."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.calibration.search import is_near, least_within
from bayesadam.checks import check_model
from bayesadam.likelihoods import Likelihood
from bayesadam.posterior import NetworkDistribution, Posterior
from bayesadam.predictive.batches import joined, tensors_of
from bayesadam.predictive.pairs import Data, batches, is_single
from bayesadam.predictive.plan import Options
from bayesadam.predictive.predict import NetworkOutputs, network_outputs
from bayesadam.predictive.result import Predictive

BRACKET, STEPS = (1e-4, 1e4), 21
"""First bracket of the search for a temperature, and its steps in one bracket, after which it is known to 0.1%."""

AROUND = 4.0
"""Factor, in both directions, of the first bracket of the search with the prior."""

MANY = 10_000
"""Rows from which on the prior would change a temperature by less than the precision of the search."""


@dataclass(frozen=True)
class Scored:
    """Predictions of rows with targets, which can be scored by several likelihoods.

    Attributes:
        run: The network after it was run on the inputs.
        target: Targets of the rows.
        counted: Mask of those that are not ignored; ``None`` if all count.
    """

    run: NetworkOutputs
    target: Tensor
    counted: Tensor | None

    def __call__(self, likelihood: Likelihood, **scale: float) -> Tensor:
        """Return ``-log p`` of every row, in nats and float64; without those of ignored targets.

        Args:
            likelihood: Likelihood of the kind that the network was run for.
            scale: If the run takes it, ``scale=`` multiplies the posterior's standard deviations.
        """
        predictive: Predictive = self.run(likelihood, **scale)
        target = self.target.to(predictive.device)  # which is another one if the model is on several
        if self.counted is None:
            return -predictive.log_prob(target).double()
        counted = self.counted.to(predictive.device)
        return -predictive.log_prob(target.where(counted, 0))[counted].double()


class HeldOut:
    """Rows with targets, and the settings with which the network is run on them.

    Args:
        model: The network, as for :func:`bayesadam.predict`.
        data: A pair ``(inputs, targets)``, a dict with ``"labels"``, or a loader of such batches, which is iterated
            over once and kept in memory.
        likelihood: Likelihood of the targets given the network's outputs.
        options: Further arguments of :func:`bayesadam.predict`.

    Raises:
        ValueError: The model is none, there are no data, they are not pairs, or targets of batches differ in shape.
    """

    def __init__(self, model: nn.Module, data: Data, likelihood: Likelihood, **options: Any) -> None:
        check_model(model)
        pairs = list(batches(data, None, batch_size=sys.maxsize))
        if not pairs:
            raise ValueError("data must have at least one batch, got none")
        self.model = model
        self.likelihood = likelihood
        self.inputs: Any = pairs[0][0] if is_single(data) else pairs
        target = joined([target for _, target in pairs], "targets")
        self.target = target.to(next(model.parameters(), target).device)
        counted = likelihood.counted(self.target)
        self.counted = None if counted is None or counted.all() else counted
        self.options = options
        self._batches = [batch for batch, _ in pairs]

    def scored(self, posterior: NetworkDistribution, **options: Any) -> Scored:
        """Run the network once; the result scores the predictions by any number of likelihoods.

        Args:
            posterior: Posterior, as for :func:`bayesadam.predict`.
            options: Arguments that replace those of the class.
        """
        given = {"likelihood": self.likelihood, "progress": False, **self.options, **options}
        return Scored(network_outputs(self.model, posterior, self.inputs, Options(**given)), self.target, self.counted)

    def at_widths(self, posterior: Posterior) -> Callable[[float], Callable[[Likelihood], Tensor]]:
        """Return a function of a factor of the standard deviations that gives the score of every row, as
        :meth:`scored` does; if it can, without running the network again.
        """
        unscaled = self.scored(posterior)

        def at(factor: float) -> Callable[[Likelihood], Tensor]:
            if unscaled.run.takes_scale:
                return partial(unscaled, scale=factor)
            return unscaled if factor == 1.0 else self.scored(posterior.scaled(factor))

        return at

    def rows(self) -> set[bytes]:
        """Return the bytes of each row's inputs."""
        contents = set()
        for batch in self._batches:
            tensors = [value for value in tensors_of(batch) if isinstance(value, Tensor)]
            count = next((len(tensor) for tensor in tensors if tensor.ndim), 0)
            with_rows = [t.detach().cpu().contiguous() for t in tensors if t.ndim and len(t) == count]
            for number in range(count):
                contents.add(b"".join(t[number].reshape(-1).view(torch.uint8).numpy().tobytes() for t in with_rows))
        return contents


def mean(values: Tensor) -> float:
    """Return the mean over all rows, and infinity instead of NaN."""
    value = values.mean().item()
    return math.inf if math.isnan(value) else value


def temperatures(likelihood: Likelihood) -> tuple[float, float]:
    """Return the limits of a temperature, which has the scale of the logits or of the noise.

    Classes are predicted by chance at the upper one, so that higher ones would differ by rounding only.
    """
    return 1e-20, 1e4 if likelihood.defines("log_probs") else 1e20


def best_temperature(
    score: Callable[..., Tensor], likelihood: Likelihood, *, warn: bool = False
) -> tuple[float, float]:
    """Return the temperature that rows choose, and their mean score at it; 1 if every lower temperature is better.

    Of noise it is the one with the lowest mean score. Of classes its logarithm also has a standard Cauchy prior: few
    rows with one mistake or none would choose a temperature near 0, with which the next mistake would cost hundreds of
    nats. The prior hardly moves what hundreds of rows choose, whatever the scale of their logits is.

    Args:
        score: The score of every row with a tempered likelihood.
        likelihood: The likelihood that is tempered.
        warn: Whether to warn if every lower temperature is better, or every higher one.
    """
    low, high = limits = temperatures(likelihood)

    def at(value: float) -> float:
        return mean(score(likelihood.tempered(value)))

    temperature, value = least_within(at, BRACKET, limits, STEPS)
    coldest, hottest = is_near(temperature, low), is_near(temperature, high)
    if warn and (coldest or hottest):
        _warn_of_end(likelihood, coldest)
    if coldest:
        return 1.0, at(1.0)
    rows = score(likelihood).numel()
    if hottest or not likelihood.defines("log_probs") or rows >= MANY or not math.isfinite(value):
        return temperature, value

    def penalised(value: float) -> float:
        return at(value) + math.log1p(math.log(value) ** 2) / rows

    # From this temperature on, because the scores of logits of another scale are flat near 1.
    bracket = max(low, temperature / AROUND), min(high, temperature * AROUND)
    temperature, _ = least_within(penalised, bracket, limits, STEPS)
    return temperature, at(temperature)


def _warn_of_end(likelihood: Likelihood, coldest: bool) -> None:
    low, high = temperatures(likelihood)
    if coldest:
        observation = f"every lower one is better, down to {low:g}: the temperature remains 1"
        exact = "All these rows are predicted correctly", "The predictions of these rows are equal to their targets"
        reason = f"{exact[not likelihood.defines('log_probs')]}, as rows are that a network was trained on"
    else:
        observation = f"every higher one is better, up to {high:g}: this is the temperature now"
        reason = "The network predicts these rows no better than chance, or its outputs have another scale"
    warnings.warn(
        f"held_out must determine a temperature, got rows for which {observation}. {reason}",
        UserWarning,
        stacklevel=4,
    )


def tempered_by_data(likelihood: Likelihood, temperature: float) -> Likelihood:
    """Return the likelihood at a temperature that held-out rows chose, marked as calibrated unless it remained 1."""
    tempered = likelihood.tempered(temperature)
    if temperature != 1.0:
        tempered.calibrated = True
    return tempered


def check_apart(held_out: HeldOut, train: Data | None) -> None:
    """Warn if rows also occur in the training data."""
    if train is None:
        return
    held_out_rows = held_out.rows()
    common = len(held_out_rows & HeldOut(held_out.model, train, held_out.likelihood).rows())
    if common:
        warnings.warn(
            f"held_out has {common:,} rows (of {len(held_out_rows):,} different ones) that are in train as well: "
            "for rows that the network was trained on, the best width and temperature are too small",
            UserWarning,
            stacklevel=3,
        )


def check_surer(likelihood: Likelihood, temperature: float, gain: float, rows: int, width: float = 0.0) -> None:
    """Warn if held-out rows of a classification look as if the network had been trained on them.

    A network that was trained by maximum likelihood is overconfident on new rows: their best temperature is above 1, or
    some posterior width improves the score. On its training rows the network is at or near its optimum: their best
    temperature is 1 or below, and width does not help. The sign is therefore a temperature below 0.5, with a gain that
    is not due to chance, together with no gain from the width. Networks that were trained with noise in their weights
    are often at 0.6 to 0.9 on new rows. Other likelihoods have a noise of arbitrary scale and no such sign.

    Args:
        likelihood: Likelihood of the targets given the network's outputs.
        temperature: Best temperature for the network itself.
        gain: Improvement of the mean score by this temperature over temperature 1, in nats.
        rows: Number of rows.
        width: Improvement of the mean score by the best width, in nats.
    """
    # A gain of 2 nats in all is a log-likelihood ratio at two standard errors.
    if likelihood.defines("log_probs") and temperature < 0.5 and rows * gain > 2.0 > rows * width:
        warnings.warn(
            f"held_out favours more confident predictions, at the temperature {temperature:.2g}, and no posterior "
            "width, as rows do that the network was trained on. Use rows that it has not seen (train= compares them "
            "with the training data). After label smoothing or strong regularisation, or on an easy task, the result "
            "may be right",
            UserWarning,
            stacklevel=3,
        )
