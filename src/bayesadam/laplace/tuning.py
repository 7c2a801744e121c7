"""Choosing the numbers of a posterior by how well it predicts held-out data."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.laplace.batches import Data, batches
from bayesadam.likelihoods import Likelihood
from bayesadam.posterior.gaussian import GaussianPosterior
from bayesadam.predictive import predict
from bayesadam.progress import progress_bar

PRECISIONS = tuple(10.0**power for power in range(-4, 5))
"""Candidates for the prior precision."""


@dataclass(frozen=True)
class LaplaceTuning:
    """What :func:`tune_laplace` has found.

    Attributes:
        posterior: The best one.
        chosen: Its numbers by name.
        score: Its mean negative log predictive density per data point, in nats: lower is better.
        table: Every candidate's numbers by name with its ``"score"``, in the order in which they were tried; infinite
            where it was not a number.
        edges: Names of numbers whose chosen value is the smallest or the largest of several candidates.
    """

    posterior: GaussianPosterior
    chosen: dict[str, float]
    score: float
    table: tuple[dict[str, float], ...]
    edges: tuple[str, ...]

    @property
    def message(self) -> str:
        """What was chosen, and a warning if it is at the edge of the candidates: the best may be outside."""
        numbers = ", ".join(f"{name} {value:g}" for name, value in self.chosen.items())
        text = f"{numbers}: {self.score:.4f} nats per data point, the best of {len(self.table)}"
        return text + "".join(f"; warning: {name} is at the edge of its candidates" for name in self.edges)


def tune_laplace(
    make: Callable[..., GaussianPosterior],
    model: nn.Module,
    data: Data,
    *,
    likelihood: Likelihood,
    num_data: Sequence[float] | None = None,
    prior_precision: Sequence[float] | None = None,
    method: str = "monte_carlo",
    mc_samples: int = 64,
    seed: int = 0,
    output: Callable[[Any], Tensor] | None = None,
    batch_size: int | None = None,
    progress: bool | None = None,
) -> LaplaceTuning:
    """Try every combination of candidates, and keep the one that gives held-out targets the largest density.

    The score is the pointwise ``-log p(y | x)`` under the predictive distribution, averaged over data points (Kessler
    et al. 2018, appendix C: the number of data points may be seen as a number of "pseudo-observations" that is tuned
    on a validation set). All candidates are scored with the same noise::

        tune_laplace(partial(ba.badam, adam, model), model, validation, likelihood=likelihood, num_data=[100, 1e3, 1e4])
        tune_laplace(Laplace(model, train, likelihood=likelihood).posterior, model, validation, likelihood=likelihood)

    Args:
        make: Makes a posterior from the keyword arguments ``prior_precision``, and ``num_data`` if candidates for that
            are given.
        model: That the posteriors are of.
        data: Held out, on any device: a pair ``(inputs, targets)``, or a loader of such pairs, which is gone through
            once and kept.
        likelihood: What the outputs mean.
        num_data: Candidates; default none, and ``make`` is called without.
        prior_precision: Candidates; default 1e-4, 1e-3, ..., 1e4.
        method: Of :func:`bayesadam.predict`.
        mc_samples: Of :func:`bayesadam.predict`.
        seed: Of :func:`bayesadam.predict`.
        output: Of :func:`bayesadam.predict`.
        batch_size: Of :func:`bayesadam.predict`.
        progress: Show a progress bar; default in a terminal.

    Raises:
        ValueError: No candidates, or no data; and what ``make`` and ``predict`` raise.
        RuntimeError: No candidate has a finite score.
    """
    grid = {"num_data": num_data, "prior_precision": PRECISIONS if prior_precision is None else prior_precision}
    candidates = {name: [float(value) for value in values] for name, values in grid.items() if values is not None}
    for name, values in candidates.items():
        if not values:
            raise ValueError(f"{name} must have at least one candidate, got {values!r}")
    inputs, target = _kept(data)
    combinations = [dict(zip(candidates, values, strict=True)) for values in itertools.product(*candidates.values())]
    table, best, least = [], None, math.inf
    with progress_bar("tuning", len(combinations), progress) as advance:
        for numbers in combinations:
            posterior = make(**numbers)
            predictive = predict(
                model,
                posterior,
                inputs,
                likelihood=likelihood,
                mc_samples=mc_samples,
                seed=seed,
                method=method,
                output=output,
                batch_size=batch_size,
                progress=False,
            )
            target = target.to(predictive.device)
            density = predictive.log_prob(target)
            score = -density.double().mean().item()
            score = math.inf if math.isnan(score) else score
            table.append({**numbers, "score": score})
            if score < least:
                best, least, chosen = posterior, score, numbers
            advance(note=f"best {least:.4f}")
    if best is None:
        raise RuntimeError(f"at least one candidate must have a finite score, got none of {len(table)}")
    return LaplaceTuning(best, chosen, least, tuple(table), _edges(candidates, chosen))


def _edges(candidates: Mapping[str, Sequence[float]], chosen: Mapping[str, float]) -> tuple[str, ...]:
    several = [name for name, values in candidates.items() if len(set(values)) > 1]
    return tuple(name for name in several if chosen[name] in (min(candidates[name]), max(candidates[name])))


def _kept(data: Data) -> tuple[Any, Tensor]:
    """Inputs for ``predict`` and all targets; a loader may shuffle, so that it is asked only once."""
    pairs = list(batches(data, None, batch_size=sys.maxsize))
    if not pairs:
        raise ValueError("data must have at least one batch, got none")
    inputs = pairs[0][0] if isinstance(data, tuple) else pairs
    return inputs, torch.cat([target for _, target in pairs])
