"""The width of any posterior, and with it the temperature of its predictions, by held-out data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn

from bayesadam.calibration.held_out import (
    HeldOut,
    best_temperature,
    check_apart,
    check_surer,
    is_coldest,
    mean,
    temperatures,
)
from bayesadam.calibration.search import least
from bayesadam.likelihoods import Likelihood, check_likelihood
from bayesadam.posterior import Mixture, Posterior
from bayesadam.predictive.choice import mark_as_tuned
from bayesadam.predictive.pairs import Data
from bayesadam.progress import progress_bar

PRECISIONS = tuple(10.0**power for power in range(-4, 5))
"""Candidates for the prior precision, where nothing else is tuned."""

FEW_PRECISIONS = (1e-2, 1.0, 1e2, 1e4)
"""Likewise, where the width is."""

SCALES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Of the standard deviations, tried first; the search goes on between the neighbours of the best."""

STEPS = 5
"""Of that search."""


@dataclass(frozen=True)
class PosteriorTuning:
    """What :func:`tune_posterior` has found; scores are mean negative log predictive densities, in nats.

    Attributes:
        posterior: The best one, its standard deviations multiplied by ``scale``.
        likelihood: At the ``temperature``: for :func:`bayesadam.predict`.
        scale: Of the standard deviations.
        temperature: Of the predictions; see :func:`bayesadam.calibrate`.
        chosen: What the posterior was made with, by name; empty if it was given.
        before: Score of the network itself, with the mean of the weights (of a mixture: of the mixture as it was).
        calibrated: Likewise at its own best temperature: temperature scaling, which the posterior has to beat.
        score: Score of what was found.
        table: Every candidate's numbers by name with ``"scale"``, ``"temperature"`` and ``"score"``, in the order in
            which they were tried; infinite where it was not a number.
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
        """What was chosen, beside the network itself, and a warning if it is at the edge of the candidates."""
        found = {**self.chosen, "scale": self.scale, "temperature": self.temperature}
        numbers = ", ".join(f"{k} {v:.4g}" for k, v in found.items() if v != 1.0 or k in self.chosen) or "nothing"
        text = f"{numbers}: {self.score:.4f} nats per data point, the network {self.before:.4f}"
        text += f" and by temperature scaling {self.calibrated:.4f}, the best of {len(self.table)}"
        return text + "".join(f"; warning: {name} is at the edge of its candidates" for name in self.edges)


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
    batch_norm: Any = None,
    progress: bool | None = None,
) -> PosteriorTuning:
    """The width of a posterior and the temperature of its predictions that suit held-out data best.

    The score is the pointwise ``-log p(y | x)`` of the predictive distribution, averaged over data points. For every
    factor of the standard deviations (:meth:`bayesadam.Posterior.scaled`) the best temperature is found
    (:func:`bayesadam.calibrate`), so that both are searched together; all candidates have the same noise::

        tuned = ba.tune_posterior(q, model, (x_val, y_val), likelihood=ba.Categorical())
        ba.predict(model, tuned.posterior, x_new, likelihood=tuned.likelihood)

    In the place of a posterior, a function makes one of other numbers, which are tuned as well::

        make = partial(ba.badam, adam, model, num_data=50_000)
        tuned = ba.tune_posterior(make, model, (x_val, y_val), likelihood=ba.Categorical())
        make = ba.Laplace(model, train, likelihood=ba.Categorical()).posterior
        tuned = ba.tune_posterior(make, ..., candidates={"prior_precision": [1, 10, 100]})

    Look at ``tuned.calibrated``, too: where a temperature alone is as good, the posterior's width adds nothing to the
    probabilities (what it says of foreign inputs, and of weights, is another matter).

    Args:
        posterior: To be tuned; or a function that makes one from the keyword arguments in ``candidates``.
        model: That the posterior is of.
        held_out: Rows that the network was *not* trained on, on any device: a pair ``(inputs, targets)``, or a loader
            of such pairs, which is gone through once and kept. Rows that it was trained on make the width too small.
        likelihood: What the outputs mean.
        candidates: Numbers by name, every combination of which is tried, if the posterior is made. Default: the
            prior precisions 0.01, 1, 100, 10,000.
        scale: Factors of the standard deviations to try; ``[1]`` leaves the width alone. Default: searched from
            0.01 to 10 in half decades, and then by golden section between the neighbours of the best.
        temperature: Temperatures to try; ``[1]`` leaves it alone. Default: golden section, for a likelihood that can
            be ``tempered``.
        train: The training data, to be compared with: rows that are in both are warned of. Without, a warning says
            where classes ask for clearly surer predictions and no width, as on training rows.
        method: Of :func:`bayesadam.predict`, and to be used there. Linearised, the network is run once for each
            posterior that is made.
        mc_samples: Of :func:`bayesadam.predict`.
        seed: Of :func:`bayesadam.predict`.
        output: Of :func:`bayesadam.predict`.
        batch_size: Of :func:`bayesadam.predict`.
        batch_norm: Of :func:`bayesadam.predict`.
        progress: Show a progress bar; default in a terminal.

    Raises:
        ValueError: No candidates, or candidates for a posterior that is given; no data; and what the function and
            ``predict`` raise.
        TypeError: Something that is neither a posterior nor a function (for others than posteriors over weights,
            :class:`bayesadam.MCDropout`, there is :func:`bayesadam.calibrate`).
        MissingCapabilityError: Temperatures for a likelihood that cannot be ``tempered``.
        RuntimeError: No candidate has a finite score.
    """
    check_likelihood(likelihood)
    grid = _grid(posterior, candidates, few=scale is None)
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
    best = search.best
    if temperature is None:
        gain = search.calibrated - search.score
        check_surer(likelihood, search.network_temperature, search.before - search.calibrated, search.count, gain)
    tried = {**grid, "scale": scales, "temperature": temperatures(likelihood) if temperature is None else temperature}
    for_samples = method == "monte_carlo"
    tuned = search.posterior if best["scale"] == 1.0 and not for_samples else search.posterior.scaled(best["scale"])
    if for_samples:
        mark_as_tuned(tuned, method)
    return PosteriorTuning(
        posterior=tuned,
        likelihood=likelihood if best["temperature"] == 1.0 else likelihood.tempered(best["temperature"]),
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
    """Scores candidates one by one, and keeps the best.

    Attributes:
        table: What was tried.
        posterior: The best one, before it is scaled.
        best: Its row of the table.
        before: Score of the network itself.
        calibrated: Likewise at its best temperature.
        network_temperature: Which that is.
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
        """The best so far."""
        return self.best["score"]

    def look_at_network(self, posterior: Posterior) -> None:
        """Score the network itself, once; where no temperature is best for it, none is searched."""
        if self.count:
            return
        mixture = isinstance(posterior, Mixture)  # the mean of whose weights is no network
        score = self.rows.scored(posterior) if mixture else self.rows.scored(posterior, method="mean", batch_norm=None)
        densities = score(self.rows.likelihood)
        self.count, self.before = densities.numel(), mean(densities)
        self.network_temperature, self.calibrated = self._tempered(score)
        finite = math.isfinite(self.calibrated)
        if finite and self.temperature is None and is_coldest(self.rows.likelihood, self.network_temperature):
            self.temperature = [1.0]
            self.network_temperature, self.calibrated = 1.0, self.before

    def scorer(self, posterior: Posterior, numbers: Mapping[str, float]) -> Callable[[float], float]:
        """A function from a width to the score of the posterior, which was made with these numbers."""
        unscaled = self.rows.scored(posterior)

        def score_at(scale: float) -> float:
            score: Callable[..., Tensor]
            if unscaled.takes_scale:
                score = partial(unscaled, scale=scale)
            else:
                score = unscaled if scale == 1.0 else self.rows.scored(posterior.scaled(scale))
            temperature, value = self._tempered(score)
            self.table.append({**numbers, "scale": scale, "temperature": temperature, "score": value})
            if value < self.score:
                self.best, self.posterior = self.table[-1], posterior
            return value

        return score_at

    def _tempered(self, score: Callable[..., Tensor]) -> tuple[float, float]:
        """The best temperature, and the mean score there."""
        if self.temperature is None:
            return best_temperature(score, self.rows.likelihood)
        tried = [
            (mean(score(self.rows.likelihood if value == 1.0 else self.rows.likelihood.tempered(value))), value)
            for value in self.temperature
        ]
        value, temperature = min(tried)
        return float(temperature), value


def _grid(posterior: object, candidates: Mapping[str, Sequence[float]] | None, *, few: bool) -> dict[str, list[float]]:
    """Candidates by name for a function; none for a posterior."""
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
        candidates = {"prior_precision": FEW_PRECISIONS if few else PRECISIONS}
    return {name: [float(value) for value in values] for name, values in candidates.items()}


def _edges(candidates: Mapping[str, Sequence[float]], chosen: Mapping[str, float]) -> tuple[str, ...]:
    several = [name for name, values in candidates.items() if len(set(values)) > 1]
    ends = {name: (min(candidates[name]), max(candidates[name])) for name in several}
    # A search ends near an edge, not at it.
    return tuple(name for name, (low, high) in ends.items() if not 1.01 * low < chosen[name] < high / 1.01)
