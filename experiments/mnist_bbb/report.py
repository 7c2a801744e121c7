"""The page: our errors beside the published ones, calibration, and out-of-distribution detection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.experiment import Report
from experiments.mnist_bbb.notes import NOTES
from experiments.results import Result
from experiments.tables import Cell, Number, Table, published

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METHODS = {
    "adam": ("Adam", "SGD"),
    "dropout": ("MC dropout", "SGD dropout"),
    "vadam": ("Vadam", None),
    "vadam-tempered": ("Vadam, temperature 0.01", None),
    "ivon": ("IVON", None),
    "bbb-gaussian": ("BBB, Gaussian prior", "BBB Gaussian prior"),
    "bbb-mixture": ("BBB, scale mixture", "BBB scale mixture prior"),
}
"""Labels of the methods, and their names in the paper."""

METRICS = {"error": ("test error (%)", 2), "nll": ("NLL (nats)", 4), "ece": ("ECE", 4), "auroc": ("OOD AUROC", 3)}
BLUE, GREY = "#0072B2", "0.45"


def report(results: Mapping[str, Result], candidates: Mapping[str, Sequence[Any]]) -> Report:
    """Return the report from the results of the finished units."""
    finals = {
        name: [r.result for key, r in results.items() if key.rpartition("-")[0] == f"final-{name}"] for name in METHODS
    }
    finals = {name: found for name, found in finals.items() if found}
    paper = _paper()
    tables = [_final(finals, paper), _mean_network(finals), _search(results, candidates)]
    return Report(
        [table for table in tables if table.rows], {"scores": _figure(finals, paper)} if finals else {}, NOTES
    )


def _paper() -> dict[str, float]:
    """Return the published test errors of networks with 400 units, by our names of the methods."""
    numbers = published(Path(__file__).with_name("paper.csv"))
    found = {}
    for name, (_, theirs) in METHODS.items():
        row = numbers.get(("mnist units=400", theirs or "", "test_error_pct"))
        if row is not None and row.value.mean is not None:
            found[name] = row.value.mean
    return found


def _predictive(run: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the scores of the method's main predictions: averages over samples, or those of the mean network."""
    found: Mapping[str, Any] = run.get("monte_carlo") or run["mean"]
    return found


def _final(finals: Mapping[str, Sequence[Mapping[str, Any]]], paper: Mapping[str, float]) -> Table:
    rows: list[list[Cell]] = []
    for name, runs in finals.items():
        found = [_predictive(run) for run in runs]
        row: list[Cell] = [METHODS[name][0]]
        for metric, (_, digits) in METRICS.items():
            row.append(Number.of((run[metric] for run in found), decimals=digits))
            if metric == "error":
                row.append(Number(paper.get(name), None, 2))
        rows.append(row)
    header = ["method", "test error, %", "published, 600 epochs", "NLL, nats", "ECE", "OOD AUROC"]
    return Table("The predictive of each method at its one setting: mean and standard error over seeds", header, rows)


def _mean_network(finals: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    rows: list[list[Cell]] = []
    for name, runs in finals.items():
        if "monte_carlo" in runs[0] and "mean" in runs[0]:
            row: list[Cell] = [METHODS[name][0]]
            row += [
                Number.of((run["mean"][metric] for run in runs), decimals=digits)
                for metric, (_, digits) in METRICS.items()
            ]
            both = [run["monte_carlo"]["auroc_mutual_information"] for run in runs]
            rows.append([*row, Number.of(both, decimals=3)])
    header = [
        "method",
        "test error, %",
        "NLL, nats",
        "ECE",
        "OOD AUROC",
        "OOD AUROC by mutual information, with samples",
    ]
    return Table("The mean network alone, without sampling", header, rows)


def _search(results: Mapping[str, Result], candidates: Mapping[str, Sequence[Any]]) -> Table:
    rows: list[list[Cell]] = []
    for name, tried in candidates.items():
        keys = [f"search-{name}-{number}" for number in range(len(tried))]
        found = {key: results[key].result for key in keys if key in results}
        best = min(found, key=lambda key: found[key]["validation"]["nll"], default=None)
        for key, result in found.items():
            settings = result["setting"]["options"] | {k: v for k, v in result["setting"].items() if k == "dropout"}
            shown = ", ".join(f"{k}={v}" for k, v in settings.items())
            scores = result["validation"]
            rows.append(
                [
                    METHODS[name][0],
                    f"**{shown}**" if key == best else shown,
                    Number(scores["error"], None, 2),
                    Number(scores["nll"], None, 4),
                    Number(scores["ece"], None, 4),
                ]
            )
    header = ["method", "setting", "error, %", "NLL, nats", "ECE"]
    return Table("All candidates on the validation split; the best NLL, in bold, is the setting above", header, rows)


def _figure(finals: Mapping[str, Sequence[Mapping[str, Any]]], paper: Mapping[str, float]) -> Figure:
    """Plot runs as dots, their means as lines, and published errors as diamonds."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(11, 0.42 * len(finals) + 1.6), layout="constrained")
    axes = figure.subplots(1, len(METRICS), sharey=True)
    for axis, (metric, (label, _)) in zip(axes, METRICS.items(), strict=True):
        for place, (name, runs) in enumerate(finals.items()):
            values = [_predictive(run)[metric] for run in runs]
            axis.plot(values, [place] * len(values), "o", color=BLUE, markersize=5, alpha=0.6, mew=0)
            axis.plot([sum(values) / len(values)] * 2, [place - 0.25, place + 0.25], color=BLUE, lw=2)
            if metric == "error" and name in paper:
                axis.plot(paper[name], place, "D", color=GREY, mfc="white", markersize=6)
        if metric in ("nll", "ece"):
            axis.set_xscale("log")
        _style(axis, label)
    axes[0].set_yticks(range(len(finals)), [METHODS[name][0] for name in finals])
    axes[0].invert_yaxis()
    legend = [
        Line2D([], [], color=BLUE, marker="o", linestyle="", label="ours, one dot per seed, line at the mean"),
        Line2D([], [], color=GREY, marker="D", mfc="white", linestyle="", label="published (not verified)"),
    ]
    figure.legend(handles=legend, loc="outside upper right", ncols=2, frameon=False, fontsize=9)
    return figure


def _style(axis: Axes, label: str) -> None:
    axis.set_xlabel(label)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="x", alpha=0.3)
    axis.margins(x=0.12)
