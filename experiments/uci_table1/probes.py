"""Probes, which show why numbers differ from the paper's: grids over the two precisions, instead of a search."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from experiments.framework import Context
from experiments.tables import Number, frame
from experiments.uci import splits
from experiments.uci_table1.methods import Precisions, fit, folds, scores

KIN8NM = {"dataset": "kin8nm", "method": "vadam", "log_noise": [2.2], "log_prior": [4.0]}
PROBES: dict[str, dict[str, Any]] = {
    "kin8nm-grid": {**KIN8NM, "log_noise": [1.8, 2.2, 2.6, 3.0], "log_prior": [-3.0, 0.0, 2.0, 4.0, 6.0]},
    "kin8nm-batch-64": {**KIN8NM, "batch_size": 64},
    "kin8nm-batch-32": {**KIN8NM, "batch_size": 32, "mc_samples": 10},
    "kin8nm-samples": {**KIN8NM, "evaluation_samples": 1000},
    "energy-folds-0": {
        "dataset": "energy",
        "method": "vadam",
        "log_noise": [2.0, 2.5, 2.75, 3.0, 3.5, 4.0, 4.5, 5.0],
        "log_prior": [3.0],
        "folds": 5,
    },
    "vprop-naval": {
        "dataset": "naval",
        "method": "vprop",
        "log_noise": [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5],
        "log_prior": [2.0],
    },
}
"""Changes of the protocol by probe: grids of natural logarithms of the precisions, and the number of folds of the
training parts on which a probe is scored, instead of the test parts.
"""
PROBES["energy-folds-1"] = {**PROBES["energy-folds-0"], "first_seed": 500}
SPLITS = 8
"""Number of splits, the first ones."""


def run(config: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """Return the scores of all splits, or folds of splits, at every point of the grid."""
    points = list(product(config["log_noise"], config["log_prior"]))
    cached, found = context.memory.cache(_scores), []
    for number, (noise, prior) in enumerate(points):
        context.progress(number, len(points))
        found.append({"log_noise": noise, "log_prior": prior, **cached(dict(config), noise, prior)})
    return {"points": found}


def _scores(config: dict[str, Any], noise: float, prior: float) -> dict[str, list[float]]:
    """Train on all parts with the same precisions."""
    count, name = config["splits"], config["dataset"]
    if size := config.get("folds"):
        parts = [part for own in folds(name, count, size, config["fold_seed"]) for part in own]
    else:
        parts = splits(f"uci/{name}", count)
    seeds = [1000 * i + config.get("first_seed", 0) for i in range(len(parts))]
    return scores(fit(parts, [Precisions(noise, prior)] * len(parts), seeds, config), parts, config)


def table(results: Mapping[str, Any]) -> pd.DataFrame:
    """Tabulate every point of all probes."""
    rows = []
    for name in PROBES:
        for point in results.get(f"probe-{name}", {"points": []})["points"]:
            metrics = ("rmse", "log_likelihood", "joint_log_likelihood")
            means = [Number.of([v for v in point[metric] if v is not None], ddof=0) for metric in metrics]
            rows.append([name, f"{np.exp(point['log_noise']):.1f}", f"{np.exp(point['log_prior']):.3g}", *means])
    header = ["probe", "noise precision", "prior precision", "RMSE", "log-likelihood, pointwise", "joint"]
    return frame(header, rows)
