"""Signal-to-noise ratios of the weights, and scores of pruned networks."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bayesadam.posterior import DiagonalGaussian, Mixture
from bayesadam.posterior.gaussian import GaussianPosterior
from bayesadam.runs.held_out import predict_held_out
from bayesadam.runs.scores import scores
from bayesadam.tabular import Target

QUANTILES = 200
FRACTIONS = (0.0, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
MAX_ROWS = 1_000


def weights(estimator: Any, inputs: NDArray[np.float32], targets: NDArray[Any], target: Target) -> dict[str, Any]:
    """Return signal-to-noise ratios of the weights of all members, and scores after pruning the weakest weights.

    Args:
        estimator: The fitted estimator.
        inputs: Inputs of the rows for the scores, ``(N, D)``; only the first ``MAX_ROWS`` are used.
        targets: Targets of these rows.
        target: The target, which determines the task.

    Returns:
        A dictionary, which is empty if no weight has a variance. "signal_to_noise" has quantiles of the logarithms to
        base 10, for the weights that have a variance. "pruning" has "fraction", "nll", and "rmse" or "accuracy"; only
        posteriors with independent weights have it, as others, such as that of a last layer, do not survive it.
    """
    posterior = estimator.posterior_
    members: list[Any] = list(posterior.components) if isinstance(posterior, Mixture) else [posterior]
    if not all(isinstance(member, GaussianPosterior) for member in members):
        return {}
    ratios = torch.cat([r.flatten() for member in members for r in member.signal_to_noise().values()]).double().cpu()
    logs = ratios[(ratios > 0) & ratios.isfinite()].log10().numpy()
    if not len(logs):
        return {}
    found: dict[str, Any] = {"signal_to_noise": np.quantile(logs, np.linspace(0, 1, QUANTILES)).tolist()}
    if not all(isinstance(member, DiagonalGaussian) for member in members):
        return found
    score = "accuracy" if target.classes else "RMSE"
    curve: dict[str, list[Any]] = {"fraction": list(FRACTIONS), "nll": [], score.lower(): []}
    pruned = copy.copy(estimator)
    for fraction in FRACTIONS:
        parts = [member.prune(fraction) if fraction else member for member in members]
        pruned.posterior_ = Mixture(parts) if isinstance(posterior, Mixture) else parts[0]
        result = scores(predict_held_out(pruned, inputs[:MAX_ROWS], targets[:MAX_ROWS], target), 0.0)
        curve["nll"].append(result["NLL"])
        curve[score.lower()].append(result[score])
    return {**found, "pruning": curve}
