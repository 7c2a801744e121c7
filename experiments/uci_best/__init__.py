"""One recipe for nine UCI data sets, compared with the best published number of each data set."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from experiments.framework import Context, Report, Unit
from experiments.tables import Number, frame, grid, published
from experiments.uci_best.estimators import score

TITLE = "One recipe for nine UCI data sets, beside the best published numbers"
SOURCE = "Khan et al. 2018, Table 1; Gal and Ghahramani 2016 as rerun in 2018; Bayer et al. 2015, Table 1; PBP; VBLL"

DATASETS = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht")
SPLITS = {"protein": 5}
"""Number of published splits of the data sets with fewer than 20."""
GP = ("boston", "concrete", "energy", "wine", "yacht")
"""The data sets with at most 2,000 rows, to which a Gaussian process is fitted."""
ESTIMATORS: dict[str, dict[str, Any]] = {
    "bayesadam": {},
    "deep-ensemble": {"members": 5, "hidden": 50, "steps": 4_000, "least_epochs": 40, "batch_size": 100, "lr": 0.01},
    "gaussian-process": {"restarts": 1},
    "ngboost": {"trees": 2_000, "patience": 50, "held_out": 0.1},
    "catboost": {"patience": 50, "held_out": 0.1},
    "catboost-tuned": {
        "patience": 50,
        "held_out": 0.1,
        "grid": {"depth": [4, 6, 8], "learning_rate": [0.03, 0.1]},
    },
}
"""Settings of the estimators. ``bayesadam`` is ``BayesianMLPRegressor()``, which chooses on training splits only."""
OURS = "bayesadam"
PEERS = {
    "deep-ensemble": "deep ensemble",
    "gaussian-process": "Gaussian process",
    "ngboost": "NGBoost",
    "catboost": "CatBoost",
    "catboost-tuned": "CatBoost, tuned",
}
"""Names of the other estimators."""

Numbers = Mapping[tuple[str, str, str], Number]
Values = Mapping[tuple[str, str], Mapping[str, list[float]]]
"""The values of every metric over the splits, by estimator and data set."""


def units() -> list[Unit]:
    """Return one unit per data set and estimator."""
    return [
        Unit(
            f"{estimator}-{dataset}",
            {"dataset": dataset, "splits": SPLITS.get(dataset, 20), "estimator": estimator, "settings": settings},
        )
        for estimator, settings in ESTIMATORS.items()
        for dataset in DATASETS
        if estimator != "gaussian-process" or dataset in GP
    ]


def run(unit: Unit, context: Context) -> dict[str, Any]:
    """Fit every split in turn, and return the scores. A stopped unit keeps its finished splits."""
    config, found, cached = unit.config, [], context.memory.cache(score)
    for split in range(config["splits"]):
        context.progress(split, config["splits"], f"split {split}")
        found.append(cached(config["estimator"], config["dataset"], split, config["settings"]))
    return {"splits": found}


def report(results: Mapping[str, Any]) -> Report:
    """Return our numbers beside the best published one of each data set, and paired with the other estimators."""
    numbers = published(Path(__file__).with_name("paper.csv"))
    values: dict[tuple[str, str], dict[str, list[float]]] = {}
    for key, result in results.items():
        estimator, _, dataset = key.rpartition("-")
        metrics = result["splits"][0]
        values[estimator, dataset] = {metric: [split[metric] for split in result["splits"]] for metric in metrics}
    headline, calibration = [], []
    for dataset in DATASETS:
        own = values[OURS, dataset]
        row: list[Any] = [dataset]
        for metric, name, sign in (("log_likelihood", "test_loglik", 1.0), ("rmse", "test_RMSE", -1.0)):
            ours, (whose, theirs) = Number.of(own[metric]), best_published(numbers, dataset, name, sign)
            row += [ours, theirs, whose, Number(better_by(ours, theirs, sign), None, 1)]
        headline.append(row)
        shares = [[100.0 * share for share in own[f"covered_{level}"]] for level in ("50%", "80%", "95%")]
        calibration.append([dataset, Number.of(own["crps"]), *(Number.of(share, decimals=1) for share in shares)])
    header = ["log-likelihood, ours", "best published", "whose", "better by"]
    header += ["RMSE, ours", "best published", "whose", "better by"]
    tables = {
        "Pointwise test log-likelihood and RMSE; better by: in standard errors of the difference": frame(
            ["data", *header], headline
        ),
        "Calibration on the test rows": frame(
            ["data", "CRPS", "in 50% intervals, %", "in 80% intervals, %", "in 95% intervals, %"], calibration
        ),
    }
    for metric, title in (
        ("log_likelihood", "log-likelihood in nats per row"),
        ("crps", "CRPS, as a share of ours"),
        ("rmse", "RMSE, as a share of ours"),
    ):
        table = grid(DATASETS, PEERS, partial(difference, values, metric))
        tables[f"How much better ours is than each estimator, paired by split: {title}"] = table
    seconds = {key: Number.of(found["cpu_seconds"]).mean for key, found in values.items()}
    tables["Processor seconds of a fit and its prediction"] = grid(
        DATASETS, {OURS: OURS, **PEERS}, lambda d, estimator: Number(seconds.get((estimator, d)), None, 1)
    )
    return Report(tables)


def best_published(numbers: Numbers, dataset: str, metric: str, sign: float) -> tuple[str, Number]:
    """Return the method with the best comparable published number, and this number.

    Joint log-likelihoods, which the CSV marks as such, and an RMSE that its source rounds to 0 are left out.
    """
    cells = [
        (method, Number(number.mean, number.error))
        for (data, method, kind), number in numbers.items()
        if data == dataset and kind == metric and number.mean
    ]
    return max(cells, key=lambda cell: sign * (cell[1].mean or 0.0), default=("", Number(None)))


def better_by(ours: Number, theirs: Number, sign: float) -> float | None:
    """Return by how much ours is better, in standard errors of the difference of two independent means."""
    if ours.mean is None or theirs.mean is None:
        return None
    return sign * (ours.mean - theirs.mean) / math.hypot(ours.error or 0.0, theirs.error or 0.0)


def difference(values: Values, metric: str, dataset: str, peer: str) -> Number:
    """Return by how much ours is better, paired by split. Metrics with units are relative to our mean."""
    ours, theirs = values[OURS, dataset][metric], values.get((peer, dataset), {}).get(metric, [])
    unit, sign = (1.0, 1.0) if metric == "log_likelihood" else (sum(ours) / len(ours), -1.0)
    return Number.of([sign * (a - b) / unit for a, b in zip(ours, theirs, strict=True)] if theirs else [])
