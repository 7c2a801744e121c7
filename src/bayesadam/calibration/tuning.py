"""Tuning the width of a posterior together with the temperature of its predictions, by held-out data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from bayesadam.calibration.held_out import (
    HeldOut,
    best_temperature,
    check_apart,
    check_surer,
    mean,
    temperatures,
    tempered_by_data,
)
from bayesadam.calibration.safe import RISE
from bayesadam.calibration.search import is_near, least
from bayesadam.likelihoods import Likelihood, check_likelihood
from bayesadam.posterior import Mixture, Posterior
from bayesadam.predictive.pairs import Data
from bayesadam.predictive.plan import mark_as_tuned
from bayesadam.progress import progress_bar

PRECISIONS = (1e-2, 1.0, 1e2, 1e4)
"""Candidates for the prior precision."""

SCALES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Factors of the standard deviations that are tried first; the search continues between the neighbours of the best."""

STEPS = 5
"""Number of steps of that search."""

FOUND = ("scale", "temperature", "score")
"""Columns of the table that do not say how the posterior was made."""


@dataclass(frozen=True)
class PosteriorTuning:
    """Result of :func:`tune_posterior`; scores are mean negative log predictive densities, in nats.

    Attributes:
        posterior: The posterior that was chosen, with its standard deviations multiplied by ``scale``.
        likelihood: The likelihood at the ``temperature``, for :func:`bayesadam.predict`.
        scale: Factor of the standard deviations.
        temperature: Temperature of the predictions; see :func:`bayesadam.calibrate`.
        chosen: Arguments by name with which the posterior was made; empty if a posterior was given.
        before: Score of the network itself, at the mean of the weights (for a mixture, the score of the mixture as
            given).
        calibrated: Score of the network itself at its own best temperature. This is temperature scaling, the baseline
            of the posterior.
        score: Score of the posterior and temperature that were chosen, at most 0.002 above the best one of the table.
        table: Numbers of every candidate by name with ``"scale"``, ``"temperature"`` and ``"score"``, in the order in
            which they were tried; a score that is NaN is given as infinite.
        edges: Names of numbers whose chosen value is the smallest or the largest of several candidates.
    """

    posterior: Posterior
    likelihood: Likelihood
    scale: float
    temperature: float
    chosen: dict[str, float]
    before: float
    calibrated: float
    score: float
    table: tuple[dict[str, float], ...] = field(repr=False)
    edges: tuple[str, ...]

    @property
    def message(self) -> str:
        """The choice in words, compared with the network itself, and a warning if it is at the edge of the
        candidates.
        """
        numbers = [f"{name} {value:.4g}" for name, value in self.chosen.items()]
        if self.scale != 1.0:
            numbers.append(f"standard deviations of the posterior times {self.scale:.4g}")
        if self.temperature != 1.0:
            numbers.append(f"temperature {self.temperature:.4g}")
        text = f"{', '.join(numbers) or 'no change'}, the best of {len(self.table)} candidates: "
        text += f"{self.score:.4f} nats per data point; the network has {self.before:.4f}, "
        text += f"and with temperature scaling {self.calibrated:.4f}"
        if any(row["score"] < self.score for row in self.table):
            text += f"; narrower widths are better by less than {RISE} nats"
        return text + "".join(f"; warning: {name} is at the edge of {self._range(name)}" for name in self.edges)

    def _range(self, name: str) -> str:
        values = [row[name] for row in self.table]
        return f"the values that were tried, {min(values):.4g} to {max(values):.4g}"


def tune_posterior(
    posterior: Posterior | Callable[..., Posterior],
    model: nn.Module,
    held_out: Data,
    *,
    likelihood: Likelihood,
    candidates: Mapping[str, Sequence[float]] | None = None,
    scale: Sequence[float] | None = None,
    temperature: Sequence[float] | None = None,
    train: Data | None = None,
    method: str = "auto",
    mc_samples: int = 64,
    seed: int = 0,
    output: Callable[[Any], Tensor] | None = None,
    batch_size: int | None = None,
    batch_norm: Any = "auto",
    progress: bool | None = None,
) -> PosteriorTuning:
    """Find the width of a posterior and the temperature of its predictions that are best on held-out data.

    The score is the pointwise ``-log p(y | x)`` of the predictive distribution, averaged over data points. For every
    factor of the standard deviations (:meth:`bayesadam.Posterior.scaled`) the best temperature is found
    (:func:`bayesadam.calibrate`), so that both are tuned together. All candidates use the same noise::

        tuned = ba.tune_posterior(q, model, (x_val, y_val), likelihood=ba.Categorical())
        ba.predict(model, tuned.posterior, x_new, likelihood=tuned.likelihood)

    Instead of a posterior, a function may be given that makes one from other numbers, which are then tuned as well::

        make = partial(ba.badam, adam, model, num_data=50_000)
        tuned = ba.tune_posterior(make, model, (x_val, y_val), likelihood=ba.Categorical())
        make = ba.posthoc.LaplaceApproximation(model, train, likelihood=ba.Categorical()).posterior
        tuned = ba.tune_posterior(make, ..., candidates={"prior_precision": [1, 10, 100]})

    A posterior is not made narrower than the rows ask for: of the widths up to its own, the widest is taken with which
    they are predicted as well as with the best, to within 0.002 nats. Rows in the range of the training rows cannot
    choose the width for inputs outside of it, where most of the uncertainty is; for these, tune with rows from there,
    or keep the width and calibrate the temperature (``scale=[1]``).

    Compare the score with ``tuned.calibrated``. If a temperature alone is as good, the width of the posterior does not
    improve the probabilities; it may still be useful for outliers and for the uncertainty of weights.

    Args:
        posterior: Posterior to tune, or a function that makes one from the keyword arguments in ``candidates``.
        model: The network that the posterior belongs to.
        held_out: Rows that the network was *not* trained on, on any device: a pair ``(inputs, targets)``, a dict with
            ``"labels"``, or a loader of such batches, which is iterated over once and kept in memory. With training
            rows the width becomes too small.
        likelihood: Likelihood of the targets given the network's outputs.
        candidates: Numbers by argument name, all combinations of which are tried, if ``posterior`` is a function.
            Default: the prior precisions 0.01, 1, 100, 10,000.
        scale: Factors of the standard deviations to try; ``[1]`` does not change the width. By default the search goes
            from 0.01 to 100 in half decades, and then by golden section between the neighbours of the best.
        temperature: Temperatures to try; ``[1]`` leaves the predictions as they are. By default the temperature is
            found by golden section if the likelihood can be ``tempered``.
        train: Training data. Held-out rows that also occur in them are reported in a warning. Without them, a warning
            is issued if held-out rows of a classification look like training rows: the best temperature is clearly
            below 1 and no width is better than none.
        method: Method of prediction, as in :func:`bayesadam.predict`; use the same one there. With the linearised
            method the network is run once for each posterior that is made.
        mc_samples: Number of samples, as in :func:`bayesadam.predict`.
        seed: Seed of the samples, as in :func:`bayesadam.predict`.
        output: Function that takes the output tensor out of what the model returns, as in :func:`bayesadam.predict`.
        batch_size: Rows per forward pass, as in :func:`bayesadam.predict`.
        batch_norm: How batch norm statistics are found, as in :func:`bayesadam.predict`.
        progress: Whether to show a progress bar; by default it is shown in a terminal.

    Returns:
        The best posterior and likelihood, with the scores of all candidates.

    Raises:
        ValueError: There are no candidates, candidates are given for a finished posterior, there are no data, or the
            function or ``predict`` raises it.
        TypeError: ``posterior`` is neither a posterior over weights nor a function. For :class:`bayesadam.MCDropout`
            use :func:`bayesadam.calibrate`.
        MissingCapabilityError: Temperatures are given for a likelihood that cannot be ``tempered``.
        RuntimeError: No candidate has a finite score.
    """
    check_likelihood(likelihood)
    grid = _grid(posterior, candidates)
    for name, values in {**grid, "scale": scale, "temperature": temperature}.items():
        if values is not None and not len(values):
            raise ValueError(f"{name} must have at least one candidate, got {values!r}")
    if temperature is not None and any(value != 1.0 for value in temperature):
        likelihood.tempered(1.0)  # raises before the network is run
    options = {"seed": seed, "output": output, "batch_size": batch_size, "batch_norm": batch_norm}
    rows = HeldOut(model, held_out, likelihood, method=method, mc_samples=mc_samples, **options)
    check_apart(rows, train)
    if temperature is None and not likelihood.defines("tempered"):
        temperature = [1.0]
    search = _Search(rows, temperature)
    combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    scales = [float(value) for value in (SCALES if scale is None else scale)]
    with progress_bar("tuning", len(combinations) * len(scales) + (scale is None), progress) as advance:
        for numbers in combinations:
            made = posterior if isinstance(posterior, Posterior) else posterior(**numbers)
            search.look_at_network(made)
            score_at = search.scorer(made, numbers)
            for value in scales:
                score_at(value)
                advance(note=f"best {search.score:.4f}")
        if search.posterior is None:
            raise RuntimeError(f"at least one candidate must have a finite score, got none of {len(search.table)}")
        if scale is None:
            place = scales.index(search.best["scale"])
            low, high = scales[max(0, place - 1)], scales[min(place + 1, len(scales) - 1)]
            numbers = {name: search.best[name] for name in grid}
            least(search.scorer(search.posterior, numbers), low, high, STEPS)
            advance(note=f"best {search.score:.4f}")
    if temperature is None:
        gain = search.calibrated - search.score
        check_surer(likelihood, search.network_temperature, search.before - search.calibrated, search.count, gain)
    best = search.widest_as_good()
    tried = {**grid, "scale": scales, "temperature": temperatures(likelihood) if temperature is None else temperature}
    with_temperature = tempered_by_data if len(tried["temperature"]) > 1 else type(likelihood).tempered
    for_samples = method == "monte_carlo"
    tuned = search.posterior if best["scale"] == 1.0 and not for_samples else search.posterior.scaled(best["scale"])
    if for_samples:
        mark_as_tuned(tuned, method)
    return PosteriorTuning(
        posterior=tuned,
        likelihood=likelihood if best["temperature"] == 1.0 else with_temperature(likelihood, best["temperature"]),
        scale=best["scale"],
        temperature=best["temperature"],
        chosen={name: best[name] for name in grid},
        before=search.before,
        calibrated=search.calibrated,
        score=best["score"],
        table=tuple(search.table),
        edges=_edges(tried, best),
    )


class _Search:
    """Scores candidates one by one and keeps the best.

    Attributes:
        table: Numbers of the candidates that were tried.
        posterior: The best posterior, before it is scaled.
        best: The row of the table for this posterior.
        before: Score of the network itself.
        calibrated: Score of the network itself at its best temperature.
        network_temperature: The best temperature of the network itself.
        count: Number of held-out data points.
    """

    def __init__(self, rows: HeldOut, temperature: Sequence[float] | None) -> None:
        self.rows = rows
        self.temperature = temperature
        self.table: list[dict[str, float]] = []
        self.posterior: Posterior | None = None
        self.best: dict[str, float] = {"score": math.inf}
        self.before = self.calibrated = math.inf
        self.network_temperature = 1.0
        self.count = 0

    @property
    def score(self) -> float:
        """The best score so far."""
        return self.best["score"]

    def look_at_network(self, posterior: Posterior) -> None:
        """Score the network itself, once; if it has no best temperature, no temperature is searched."""
        if self.count:
            return
        mixture = isinstance(posterior, Mixture)  # the mean weights of a mixture are not a useful network
        score = self.rows.scored(posterior) if mixture else self.rows.scored(posterior, method="mean", batch_norm=None)
        densities = score(self.rows.likelihood)
        self.count, self.before = densities.numel(), mean(densities)
        self.network_temperature, self.calibrated = self._tempered(score, warn=True)
        if self.temperature is None and self.network_temperature == 1.0:  # every lower one is better
            self.temperature = [1.0]

    def widest_as_good(self) -> dict[str, float]:
        """Return the row of the widest posterior, up to its own width, that predicts as well as the best one.

        Rows in the range of the training rows hardly depend on the width: they must not take away the uncertainty of
        other inputs.
        """
        best = self.best
        if best["scale"] >= 1.0:
            return best
        made = [row for row in self.table if all(row[name] == best[name] for name in row if name not in FOUND)]
        as_good = [row for row in made if row["scale"] <= 1.0 and row["score"] <= best["score"] + RISE]
        return max(as_good, key=lambda row: row["scale"])

    def scorer(self, posterior: Posterior, numbers: Mapping[str, float]) -> Callable[[float], float]:
        """Return a function that scores the posterior, which was made with ``numbers``, at a given width."""
        at = self.rows.at_widths(posterior)

        def score_at(scale: float) -> float:
            temperature, value = self._tempered(at(scale))
            self.table.append({**numbers, "scale": scale, "temperature": temperature, "score": value})
            if value < self.score:
                self.best, self.posterior = self.table[-1], posterior
            return value

        return score_at

    def _tempered(self, score: Callable[..., Tensor], *, warn: bool = False) -> tuple[float, float]:
        """Find the best temperature, and the mean score at it."""
        if self.temperature is None:
            return best_temperature(score, self.rows.likelihood, warn=warn)
        tried = [
            (mean(score(self.rows.likelihood if value == 1.0 else self.rows.likelihood.tempered(value))), value)
            for value in self.temperature
        ]
        value, temperature = min(tried)
        return float(temperature), value


def _grid(posterior: object, candidates: Mapping[str, Sequence[float]] | None) -> dict[str, list[float]]:
    """Return the candidates by name for a function that makes posteriors; for a finished posterior there are none."""
    if isinstance(posterior, Posterior):
        if candidates is not None:
            raise ValueError(f"candidates must be given for a function that makes posteriors only, got {candidates!r}")
        return {}
    if not callable(posterior):
        raise TypeError(
            f"posterior must be one over weights, or a function that makes one, got {type(posterior).__name__} "
            "(calibrate finds a temperature for other distributions over networks)"
        )
    if candidates is None:
        candidates = {"prior_precision": PRECISIONS}
    return {name: [float(value) for value in values] for name, values in candidates.items()}


def _edges(candidates: Mapping[str, Sequence[float]], chosen: Mapping[str, float]) -> tuple[str, ...]:
    several = [name for name, values in candidates.items() if len(set(values)) > 1]
    ends = {name: (min(candidates[name]), max(candidates[name])) for name in several}
    return tuple(name for name, either in ends.items() if any(is_near(chosen[name], end) for end in either))
