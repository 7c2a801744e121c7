"""The page: our numbers beside the best published one of each data set, and paired with the other estimators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.experiment import Report
from experiments.results import Result
from experiments.tables import Cell, Number, Published, Table, published
from experiments.uci_best.notes import NOTES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS = "bayesadam"
PEERS = {
    "deep-ensemble": "deep ensemble",
    "gaussian-process": "Gaussian process",
    "ngboost": "NGBoost",
    "catboost": "CatBoost",
    "catboost-tuned": "CatBoost, tuned",
}
COLOURS = dict(zip(PEERS, ("#0072B2", "#555555", "#009E73", "#E69F00", "#D55E00"), strict=True))
METRICS = {"log_likelihood": ("test_loglik", 1.0), "rmse": ("test_RMSE", -1.0)}
"""Names of the metrics in the published numbers, and the signs with which larger values are better."""

Results = Mapping[str, Result]
Numbers = Mapping[tuple[str, str, str], Published]


def report(results: Results, datasets: Sequence[str]) -> Report:
    """Return the report from the results of the finished units."""
    numbers = published(Path(__file__).with_name("paper.csv"))
    tables = [_headline(results, datasets, numbers), _calibration(results, datasets)]
    tables += [
        _paired(results, datasets, "log_likelihood", "log-likelihood in nats per row", 1.0),
        _paired(results, datasets, "crps", "CRPS, as a share of ours", -1.0),
        _paired(results, datasets, "rmse", "RMSE, as a share of ours", -1.0),
        _seconds(results, datasets),
    ]
    figures = {"differences": _figure(results, datasets)} if _finished(results, datasets) else {}
    return Report([table for table in tables if table.rows], figures, NOTES)


def best_published(numbers: Numbers, dataset: str, metric: str) -> tuple[str, Number] | None:
    """Return the method with the best comparable published number, and this number.

    Joint log-likelihoods, which the CSV marks as such, and an RMSE that its source rounds to 0 are left out.
    """
    name, sign = METRICS[metric]
    cells = [
        (method, Number(found.value.mean, found.value.error))
        for (data, method, kind), found in numbers.items()
        if data == dataset and kind == name and found.value.mean and (metric != "rmse" or found.value.mean > 0)
    ]
    return max(cells, key=lambda cell: sign * (cell[1].mean or 0.0), default=None)


def better_by(ours: Number, theirs: Number, sign: float) -> float:
    """Return by how much ours is better, in standard errors of the difference of two independent means."""
    assert ours.mean is not None
    assert theirs.mean is not None
    error = ((ours.error or 0.0) ** 2 + (theirs.error or 0.0) ** 2) ** 0.5
    return sign * (ours.mean - theirs.mean) / error if error else 0.0


def _values(results: Results, estimator: str, dataset: str, metric: str) -> list[float]:
    found = results.get(f"{estimator}-{dataset}")
    return [] if found is None else [split[metric] for split in found.result["splits"]]


def _finished(results: Results, datasets: Sequence[str]) -> list[str]:
    return [dataset for dataset in datasets if f"{OURS}-{dataset}" in results]


def _headline(results: Results, datasets: Sequence[str], numbers: Numbers) -> Table:
    rows: list[list[Cell]] = []
    for dataset in _finished(results, datasets):
        row: list[Cell] = [dataset]
        for metric, (_, sign) in METRICS.items():
            ours = Number.of(_values(results, OURS, dataset, metric))
            theirs = best_published(numbers, dataset, metric)
            row += (
                [ours, None, None, None]
                if theirs is None
                else [
                    ours,
                    theirs[1],
                    theirs[0],
                    Number(better_by(ours, theirs[1], sign), None, 1),
                ]
            )
        rows.append(row)
    header = ["data", "log-likelihood, ours", "best published", "whose", "better by"]
    header += ["RMSE, ours", "best published", "whose", "better by"]
    return Table(
        "Pointwise test log-likelihood and RMSE; better by: in standard errors of the difference", header, rows
    )


def _calibration(results: Results, datasets: Sequence[str]) -> Table:
    rows: list[list[Cell]] = []
    for dataset in _finished(results, datasets):
        row: list[Cell] = [dataset, Number.of(_values(results, OURS, dataset, "crps"))]
        for coverage in ("50%", "80%", "95%"):
            row.append(
                Number.of([100.0 * v for v in _values(results, OURS, dataset, f"covered_{coverage}")], decimals=1)
            )
        rows.append(row)
    header = ["data", "CRPS", "in 50% intervals, %", "in 80% intervals, %", "in 95% intervals, %"]
    return Table("Calibration on the test rows", header, rows)


def _differences(results: Results, peer: str, dataset: str, metric: str, sign: float) -> Number | None:
    """Return by how much ours is better, paired by split. Metrics with units are relative to our mean."""
    ours, theirs = (_values(results, estimator, dataset, metric) for estimator in (OURS, peer))
    if not ours or len(ours) != len(theirs):
        return None
    unit = 1.0 if metric == "log_likelihood" else sum(ours) / len(ours)
    return Number.of([sign * (a - b) / unit for a, b in zip(ours, theirs, strict=True)])


def _paired(results: Results, datasets: Sequence[str], metric: str, title: str, sign: float) -> Table:
    rows: list[list[Cell]] = []
    for dataset in _finished(results, datasets):
        found = [_differences(results, peer, dataset, metric, sign) for peer in PEERS]
        if any(found):
            rows.append([dataset, *found])
    title = f"How much better ours is than each estimator, paired by split: {title}"
    return Table(title, ["data", *PEERS.values()], rows)


def _seconds(results: Results, datasets: Sequence[str]) -> Table:
    rows: list[list[Cell]] = []
    for dataset in datasets:
        found = [_values(results, estimator, dataset, "cpu_seconds") for estimator in (OURS, *PEERS)]
        if any(found):
            rows.append([dataset, *(Number(sum(v) / len(v), None, 1) if v else None for v in found)])
    return Table("Processor seconds of a fit and its prediction", ["data", OURS, *PEERS.values()], rows)


def _figure(results: Results, datasets: Sequence[str]) -> Figure:
    """Plot paired differences of the log-likelihood, with two standard errors."""
    from matplotlib.figure import Figure

    names = _finished(results, datasets)
    figure = Figure(figsize=(7.5, 0.55 * len(names) + 1.6), layout="constrained")
    axis = figure.subplots()
    for place, (peer, label) in enumerate(PEERS.items()):
        points = [(row, _differences(results, peer, name, "log_likelihood", 1.0)) for row, name in enumerate(names)]
        known = [(row, found) for row, found in points if found is not None]
        axis.errorbar(
            [found.mean or 0.0 for _, found in known],
            [row + 0.14 * (place - 2) for row, _ in known],
            xerr=[2.0 * (found.error or 0.0) for _, found in known],
            fmt="o",
            markersize=4,
            elinewidth=1.0,
            color=COLOURS[peer],
            label=label,
        )
    axis.axvline(0.0, color="black", linewidth=0.8)
    axis.set_xscale("symlog", linthresh=0.1)
    axis.set_xticks([-1.0, -0.1, 0.0, 0.1, 1.0], ["-1", "-0.1", "0", "0.1", "1"])
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.set_xlabel("our log-likelihood minus theirs, nats per row (± two standard errors); right of 0: ours is better")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="x", alpha=0.25)
    figure.legend(loc="outside upper center", ncols=len(PEERS), frameon=False, fontsize=9)
    return figure
