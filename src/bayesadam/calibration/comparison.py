"""The mean network and the posterior on held-out data, each with and without a temperature."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.calibration.held_out import HeldOut, Scored, best_temperature, mean, tempered_by_data
from bayesadam.likelihoods import Likelihood, check_likelihood
from bayesadam.posterior import NetworkDistribution
from bayesadam.predictive.pairs import Data

FOLDS = 10
"""Parts of the held-out rows, each of which is scored with the temperature of the others."""


@dataclass(frozen=True)
class Candidate:
    """One way to predict.

    Attributes:
        method: ``"mean"``, or the method with the posterior, as in :func:`bayesadam.predict`.
        likelihood: The likelihood to predict with, tempered if the candidate has a temperature.
        temperature: The temperature that all held-out rows together determine; 1 without one.
        log_loss: ``-log p`` of every row in nats. With a temperature, that of each tenth of the rows was found on the
            other nine.
    """

    method: str
    likelihood: Likelihood
    temperature: float
    log_loss: Tensor

    @property
    def nll(self) -> float:
        """Mean ``-log p`` of the rows in nats."""
        return mean(self.log_loss)


@dataclass(frozen=True)
class Comparison:
    """What :func:`compare` found; as text it is a table.

    Attributes:
        candidates: The ways to predict by name.
    """

    candidates: dict[str, Candidate]

    @property
    def best(self) -> str:
        """Name of the candidate with the lowest mean ``-log p``; of equal ones the first, which costs less."""
        return min(self.candidates, key=lambda name: self.candidates[name].nll)

    @property
    def options(self) -> dict[str, Any]:
        """Arguments ``likelihood`` and ``method`` with which :func:`bayesadam.predict` predicts as the best one."""
        best = self.candidates[self.best]
        return {"likelihood": best.likelihood, "method": best.method}

    def __str__(self) -> str:
        best = self.candidates[self.best]
        width = max(map(len, self.candidates))
        lines = [f"{'':<{width}}  {'NLL':>8}  {'to the best (standard error)':<28}  temperature"]
        for name, candidate in self.candidates.items():
            difference = candidate.log_loss - best.log_loss
            error = difference.std().item() / math.sqrt(len(difference)) if len(difference) > 1 else math.nan
            gap = "best" if candidate is best else f"{difference.mean().item():+.4f} ({error:.4f})"
            lines.append(f"{name:<{width}}  {candidate.nll:>8.4f}  {gap:<28}  {candidate.temperature:.3g}")
        return "\n".join(lines)


def compare(
    model: nn.Module,
    posterior: NetworkDistribution,
    held_out: Data,
    *,
    likelihood: Likelihood,
    method: str = "auto",
    mc_samples: int = 64,
    seed: int = 0,
    output: Callable[[Any], Tensor] | None = None,
    batch_size: int | None = None,
    batch_norm: Any = "auto",
    progress: bool | None = None,
) -> Comparison:
    """Compare the mean network with the posterior on held-out data, each with and without a temperature.

    Samples tell what the network does not know, and cost ``mc_samples`` forward passes; on the distribution of the
    training data the mean network, or it with a temperature, is sometimes as good. This function says which predicts
    best::

        found = ba.compare(model, q, (x_val, y_val), likelihood=ba.Categorical())
        print(found)
        ba.predict(model, q, x_new, **found.options)

    A temperature is scored by cross-validation: each tenth of the rows (every tenth one) with the temperature of the
    other nine, so that no row is scored by a temperature that it helped to choose. Temperatures are those of
    :func:`bayesadam.calibrate`.

    Args:
        model: The trained network.
        posterior: Posterior over its weights.
        held_out: Rows that the network was *not* trained on: a pair ``(inputs, targets)``, a dict with ``"labels"``, or
            a loader of such batches, from which :func:`bayesadam.predict` takes the inputs.
        likelihood: Likelihood of the targets given the network's outputs.
        method: Method with the posterior, as in :func:`bayesadam.predict`.
        mc_samples: Number of samples, as in :func:`bayesadam.predict`.
        seed: Seed of the samples, as in :func:`bayesadam.predict`.
        output: Function that takes the output tensor out of what the model returns, as in :func:`bayesadam.predict`.
        batch_size: Rows per forward pass, as in :func:`bayesadam.predict`.
        batch_norm: How batch norm statistics are found, as in :func:`bayesadam.predict`.
        progress: Whether to show a progress bar, as in :func:`bayesadam.predict`.

    Returns:
        Candidates ``"mean network"`` and ``"posterior"``, and both ``"with temperature"`` if the likelihood has one.
        Their score is the mean negative log predictive density of the targets, in nats per row (or per element of a
        sequence).

    Raises:
        ValueError: There are no data, or :func:`bayesadam.predict` raises it.
    """
    check_likelihood(likelihood)
    options = {"output": output, "batch_size": batch_size, "batch_norm": batch_norm, "progress": progress}
    rows = HeldOut(model, held_out, likelihood, mc_samples=mc_samples, seed=seed, **options)
    candidates = {}
    for name, how in (("mean network", "mean"), ("posterior", method)):
        score = rows.scored(posterior, method=how)
        candidates[name] = Candidate(how, likelihood, 1.0, score(likelihood).flatten())
        if likelihood.defines("tempered"):
            candidates[f"{name} with temperature"] = _tempered(how, score, likelihood)
    return Comparison(candidates)


def _tempered(method: str, score: Scored, likelihood: Likelihood) -> Candidate:
    """The candidate with a temperature: that of all rows, as :func:`calibrate` finds it, scored by cross-validation."""
    log_loss = torch.empty_like(score(likelihood))
    rows = torch.arange(len(log_loss), device=log_loss.device)

    def scored(part: Tensor) -> Callable[[Likelihood], Tensor]:
        return lambda tempered: score(tempered)[part]

    parts = [rows[number::FOLDS] for number in range(min(FOLDS, len(rows)))]
    for number, part in enumerate(parts):
        others = torch.cat([rows[:0], *parts[:number], *parts[number + 1 :]])
        temperature = best_temperature(scored(others), likelihood)[0] if len(others) else 1.0
        log_loss[part] = score(likelihood.tempered(temperature))[part]
    temperature, _ = best_temperature(score, likelihood, warn=True)
    return Candidate(method, tempered_by_data(likelihood, temperature), temperature, log_loss.flatten())
