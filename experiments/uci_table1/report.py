"""The page: our Table 1 and Fig. 4 beside those of the paper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.experiment import Report
from experiments.results import Result
from experiments.tables import Cell, Number, Published, Table, published
from experiments.uci_table1.curves import curves
from experiments.uci_table1.notes import NOTES

PAPER = {"vadam": "Vadam", "vprop": "Vprop", "bbvi": "BBVI"}
"""Names of the paper's methods in its table of numbers."""
METHODS = {**PAPER, "vogn": "VOGN", "ivon": "IVON", "ropd": "FAWN-ROPD", "dropout": "MC dropout"}
RERUN = "MC-Dropout, 4,000 epochs"

Results = Mapping[str, Result]
Numbers = Mapping[tuple[str, str, str], Published]


def report(results: Results, datasets: Sequence[str]) -> Report:
    """Return the report from the results of the finished units."""
    numbers = published(Path(__file__).with_name("paper.csv"))
    tables = [_rmse(results, datasets, numbers, "vadam"), _log_likelihood(results, datasets, numbers, "vadam")]
    tables += [_log_likelihood(results, datasets, numbers, "vadam-joint"), _rmse(results, datasets, numbers, "vprop")]
    tables += [_rmse(results, datasets, numbers, "bbvi"), _log_likelihood(results, datasets, numbers, "bbvi")]
    tables += [_log_likelihood(results, datasets, numbers, "bbvi-joint")]
    tables += [
        _dropout(results, datasets, numbers, key, epochs) for key, epochs in (("dropout", 400), ("4000-epochs", 4000))
    ]
    tables += [
        _all(results, datasets, "rmse", "RMSE"),
        _all(results, datasets, "log_likelihood", "log-likelihood, pointwise"),
    ]
    tables += [_all(results, datasets, "joint_log_likelihood", "log-likelihood, joint"), _speed(results, datasets)]
    figures = {"learning-curves": curves(results, datasets, numbers)} if results else {}
    return Report([table for table in tables if table.rows], figures, NOTES)


def values(result: Result, metric: str, decimals: int | None = None) -> Number | None:
    """Return the mean over the splits, or ``None`` if the method has no such score."""
    found = [split[metric] for split in result.result["splits"] if split.get(metric) is not None]
    return Number.of(found, ddof=0, decimals=decimals) if found else None


def _rmse(results: Results, datasets: Sequence[str], numbers: Numbers, method: str) -> Table:
    """Tabulate the RMSE beside Table 1, which has two decimals and no Vprop, and beside the last points of Fig. 4."""
    rows: list[list[Cell]] = []
    for dataset in datasets:
        if (result := results.get(f"{method}-{dataset}")) is None:
            continue
        ours, read = values(result, "rmse"), numbers[dataset, PAPER[method], "test_RMSE@epoch40"].value
        figure = Number(read.mean, read.error)
        if method == "vprop":
            rows.append([dataset, ours, figure, _difference(ours, figure, -1)])
        else:
            table = _printed(numbers[dataset, PAPER[method], "test_RMSE"])
            rows.append([dataset, ours, table, figure, _difference(ours, table, -1)])
    header = ["data", "ours", "paper, Table 1", "paper, Fig. 4", "difference"]
    if method == "vprop":
        header.remove("paper, Table 1")
    return Table(f"{PAPER[method]}: test RMSE", header, rows)


def _log_likelihood(results: Results, datasets: Sequence[str], numbers: Numbers, method: str) -> Table:
    rows: list[list[Cell]] = []
    name = PAPER[method.removesuffix("-joint")]
    for dataset in datasets:
        if (result := results.get(f"{method}-{dataset}")) is None:
            continue
        pointwise, joint = (values(result, metric, 2) for metric in ("log_likelihood", "joint_log_likelihood"))
        theirs = _printed(numbers[dataset, name, "test_loglik"])
        rows.append([dataset, pointwise, joint, theirs, _difference(joint, theirs, 1)])
    tuned = "tuned on the joint one, as the paper" if method.endswith("-joint") else "tuned on the pointwise one"
    header = ["data", "ours, pointwise", "ours, joint", "paper, joint", "difference"]
    return Table(f"{name}: test log-likelihood in nats per point, {tuned}", header, rows)


def _dropout(results: Results, datasets: Sequence[str], numbers: Numbers, key: str, epochs: int) -> Table:
    """Tabulate MC dropout beside Gal's run of the same grid and Table 1 of the paper, which are both pointwise."""
    rows: list[list[Cell]] = []
    for dataset in datasets:
        if (result := results.get(f"{key}-{dataset}")) is None:
            continue
        row: list[Cell] = [dataset]
        for metric, name, sign in (("rmse", "test_RMSE", -1), ("log_likelihood", "test_loglik", 1)):
            ours, rerun = values(result, metric), numbers[dataset, RERUN, name].value
            theirs = Number(rerun.mean, rerun.error)
            paper = _printed(numbers[dataset, "MC-Dropout", name])
            row += [ours, theirs, _difference(ours, theirs, sign), paper]
        rows.append(row)
    header = ["data", "RMSE, ours", "Gal, 4,000 epochs", "difference", "paper"]
    header += ["log-likelihood, ours", "Gal, 4,000 epochs", "difference", "paper"]
    return Table(f"MC dropout, {epochs:,} epochs, pointwise log-likelihood", header, rows)


def _all(results: Results, datasets: Sequence[str], metric: str, title: str) -> Table:
    rows: list[list[Cell]] = []
    for dataset in datasets:
        found = [results.get(f"{method}-{dataset}") for method in METHODS]
        row = [None if result is None else values(result, metric) for result in found]
        if any(cell is not None for cell in row):
            rows.append([dataset, *row])
    return Table(f"All methods side by side: test {title}", ["data", *METHODS.values()], rows)


def _speed(results: Results, datasets: Sequence[str]) -> Table:
    """Tabulate the number of networks that are trained and scored per second of processor time."""
    rows: list[list[Cell]] = []
    for dataset in datasets:
        row: list[Cell] = []
        for method in METHODS:
            result = results.get(f"{method}-{dataset}")
            row.append(None if result is None else Number(fits(result) / result.cpu_seconds, None, 1))
        if any(cell is not None for cell in row):
            rows.append([dataset, *row])
    title = "Fits per second of processor time, tuning and test included (MC dropout: 400 epochs, others 40)"
    return Table(title, ["data", *METHODS.values()], rows)


def fits(result: Result) -> int:
    """Return the number of networks that a unit has trained."""
    config, tuned = result.config, not result.needs
    if config["method"] == "mc-dropout":
        return int(config["splits"] * (1 + len(config["rates"]) * len(config["noise_precisions"])))
    return int(config["splits"] * (1 + tuned * config["rounds"] * config["folds"]))


def _printed(number: Published) -> Number:
    """Format a number as in Table 1."""
    return Number(number.value.mean, number.value.error, 2)


def _difference(ours: Number | None, theirs: Number, sign: int) -> Number:
    """Return by how much our number is better, in combined standard errors."""
    assert ours is not None
    assert ours.mean is not None
    assert theirs.mean is not None
    rounding = 0.0 if theirs.decimals is None else 10.0**-theirs.decimals / math.sqrt(12)
    error = math.sqrt((ours.error or 0.0) ** 2 + (theirs.error or 0.0) ** 2 + rounding**2)
    return Number(sign * (ours.mean - theirs.mean) / error, None, 1)
