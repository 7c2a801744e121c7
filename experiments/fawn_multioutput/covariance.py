"""Scores of a network's joint predictions of its outputs, whether or not it was trained on their covariance."""

from __future__ import annotations

from typing import Any

import bayesadam as ba
from experiments.fawn.scores import predictive
from experiments.fawn.training import Fitted
from experiments.uci_table1.protocol import Part


def together(fitted: Fitted, part: Part) -> dict[str, Any]:
    """Return the NLL with and without the covariance of the outputs, and covariances in standardised units.

    ``log_scale`` is the NLL in original units minus the NLL in standardised units, ``predicted`` the mean of the
    predictive covariances over the held-out points, and ``observed`` the matrix of second moments of the residuals.
    """
    single, full = (predictive(fitted, part, covariance=covariance) for covariance in (False, True))
    std = part.scaler.std
    residual = (part.y - full.mean).double() / std
    return {
        "nll_independent": ba.metrics.nll(single, part.y),
        "nll_together": ba.metrics.nll(full, part.y),
        "log_scale": std.log().sum(),
        "predicted": full.covariance.double().mean(0) / std / std[:, None],
        "observed": residual.T @ residual / len(residual),
    }
