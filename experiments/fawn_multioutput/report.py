"""The page: our Table 2 beside the paper's, and the predicted and observed correlations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from experiments.experiment import Report
from experiments.fawn.numbers import mean_and_sd
from experiments.fawn_multioutput.notes import NOTES
from experiments.results import Result
from experiments.tables import Cell, Number, Published, Table, published

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = {
    "energy": "Energy(2 outputs)",
    "naval": "Naval(2 outputs)",
    "sarcos": "Sarcos(7 outputs)",
    "jura": "Jura(7 outputs)",
    "jura-random": "Jura(7 outputs)",
}
METHODS = {"ropd": "FAWN-ROPD", "co": "Co-FAWN"}
METALS = ("Cd", "Co", "Cr", "Cu", "Ni", "Pb", "Zn")

Results = Mapping[str, Result]
Floats = NDArray[np.float64]


def report(results: Results, datasets: Sequence[str]) -> Report:
    """Return the report from the results of the finished units."""
    numbers = published(Path(__file__).with_name("paper.csv"))
    tables = [_beside(results, datasets, numbers), _gain(results, datasets), _crossed(results, datasets)]
    tables += [_rmse(results, datasets)]
    shown = next((name for name in ("jura-random", "jura", *datasets) if f"co-{name}" in results), None)
    figures = {} if shown is None else {"correlations": _figure(results, shown)}
    return Report([table for table in tables if table.rows], figures, NOTES)


def correlations(covariance: Floats) -> Floats:
    """Return the correlations of a covariance matrix."""
    sd = np.sqrt(np.diag(covariance))
    return np.asarray(covariance / np.outer(sd, sd))


def _values(results: Results, key: str, metric: str) -> list[float] | None:
    return [split[metric] for split in results[key].result["splits"]] if key in results else None


def _less(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(one, other, strict=True)]


def _beside(results: Results, datasets: Sequence[str], numbers: Mapping[tuple[str, str, str], Published]) -> Table:
    rows: list[list[Cell]] = []
    for dataset in datasets:
        for method, name in METHODS.items():
            values = _values(results, key := f"{method}-{dataset}", "nll")
            if values is None:
                continue
            scale = _values(results, key, "log_scale")
            assert scale is not None
            theirs = numbers[PAPER[dataset], name, "test_NLL_joint_over_outputs"].value
            found = [mean_and_sd(values, 3), mean_and_sd(_less(values, scale), 3)]
            error = Number(Number.of(values).error, None, 3)
            rows.append([dataset, name, len(values), *found, error, Number(theirs.mean, theirs.error, 3)])
    header = ["data", "method", "splits", "ours", "ours, standardised", "standard error", "paper"]
    return Table("Test NLL per point, of all targets together, in nats ± sd over splits", header, rows)


def _gain(results: Results, datasets: Sequence[str]) -> Table:
    """Tabulate the NLL of Co-FAWN minus that of FAWN-ROPD on the same splits."""
    numbers = published(Path(__file__).with_name("paper.csv"))
    rows: list[list[Cell]] = []
    for dataset in datasets:
        one, other = (_values(results, f"{method}-{dataset}", "nll") for method in ("co", "ropd"))
        if one is None or other is None:
            continue
        changes = _less(one, other)
        theirs = [numbers[PAPER[dataset], name, "test_NLL_joint_over_outputs"].value.mean for name in METHODS.values()]
        assert theirs[0] is not None
        assert theirs[1] is not None
        better = f"{sum(change < 0 for change in changes)} of {len(changes)}"
        found = Number.of(changes)
        ours = Number(found.mean, found.error, 3)
        rows.append([dataset, ours, better, Number(theirs[1] - theirs[0], None, 3)])
    title = "Co-FAWN less FAWN-ROPD, pair by pair: NLL ± standard error (negative: the covariance helps)"
    return Table(title, ["data", "ours", "splits where better", "paper"], rows)


def _crossed(results: Results, datasets: Sequence[str]) -> Table:
    rows: list[list[Cell]] = []
    for dataset in datasets:
        row: list[Cell] = [dataset]
        for method in METHODS:
            for name in ("nll_independent", "nll_together"):
                values = _values(results, f"{method}-{dataset}", name)
                row.append(None if values is None else mean_and_sd(values, 3))
        if any(cell is not None for cell in row[1:]):
            rows.append(row)
    header = ["data"]
    for name in METHODS.values():
        header += [f"{name}, independent", f"{name}, covariance"]
    return Table("The same networks scored with and without the covariance of their outputs: NLL ± sd", header, rows)


def _rmse(results: Results, datasets: Sequence[str]) -> Table:
    rows: list[list[Cell]] = []
    for dataset in datasets:
        row: list[Cell] = [dataset]
        for method in METHODS:
            values = _values(results, f"{method}-{dataset}", "rmse")
            sampled = _values(results, f"{method}-{dataset}", "sampled_nll")
            own = _values(results, f"{method}-{dataset}", "nll_together")
            row.append(None if values is None else mean_and_sd(values))
            row.append(None if sampled is None or own is None else mean_and_sd(_less(sampled, own), 3))
            found = results.get(f"{method}-{dataset}")
            row.append(None if found is None else Number(found.result["seconds_per_network"], None, 1))
        if any(cell is not None for cell in row[1:]):
            rows.append(row)
    header = ["data"]
    for name in METHODS.values():
        header += [f"{name}: RMSE", "sampled less propagated NLL", "seconds a split"]
    return Table(
        "RMSE over all targets; a mixture over 1,000 samples of the first layer less the full Gaussian; time",
        header,
        rows,
    )


def _mean(results: Results, key: str, name: str) -> Floats:
    found: Floats = np.mean([split[name] for split in results[key].result["splits"]], axis=0)
    return found


def _figure(results: Results, dataset: str) -> Figure:
    """Plot the correlations of the residuals and those that the networks predict."""
    from matplotlib.figure import Figure

    panels = [("residuals of Co-FAWN", _mean(results, f"co-{dataset}", "observed"))]
    panels.append(("predicted by Co-FAWN", _mean(results, f"co-{dataset}", "predicted")))
    if f"ropd-{dataset}" in results:
        panels.append(("predicted by FAWN-ROPD,\nnot trained for it", _mean(results, f"ropd-{dataset}", "predicted")))
    figure = Figure(figsize=(3.7 * len(panels) + 0.6, 4.0), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    image = None
    for axis, (title, covariance) in zip(axes, panels, strict=True):
        found = correlations(covariance)
        image = axis.imshow(found, vmin=-1, vmax=1, cmap="RdBu_r")
        for (row, column), value in np.ndenumerate(found):
            dark = abs(value) > 0.6
            text = f"{value:.2f}".replace("0.", ".")
            axis.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
        names = METALS if dataset.startswith("jura") else [str(i + 1) for i in range(len(found))]
        axis.set_xticks(range(len(found)), names, fontsize=9)
        axis.set_yticks(range(len(found)), names, fontsize=9)
        axis.set_title(title, fontsize=10)
    if image is not None:
        figure.colorbar(image, ax=list(axes), shrink=0.8, label="correlation")
    splits = len(results[f"co-{dataset}"].result["splits"])
    figure.suptitle(f"{dataset}: held-out points, mean over {splits} split{'s' * (splits > 1)}")
    return figure
