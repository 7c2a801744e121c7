"""The page: our table beside the published one, the short version, and the wheel."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.bandits.notes import NOTES
from experiments.bandits.problems import LENGTHS
from experiments.bandits.settings import (
    ALGORITHMS,
    DELTAS,
    LABELS,
    LONG,
    PUBLISHED,
    QUICK,
    QUICK_RUNS,
    RUNS,
    SHORT,
    WHEEL_ROUNDS,
    WHEEL_RUNS,
)
from experiments.bandits.settings import WHEEL as WHEEL_ALGORITHMS
from experiments.experiment import Report
from experiments.results import Result
from experiments.tables import Cell, Number, Table, published

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Found = Mapping[str, Mapping[str, Any]]
OURS = ("vadam", "ivon", "vogn")
COLORS = {
    "vadam": "#0072B2",
    "ivon": "#009E73",
    "vogn": "#56B4E9",
    "badam": "#D55E00",
    "neural-linear": "#CC79A7",
    "linear": "#E69F00",
    "greedy": "#000000",
    "uniform": "#999999",
}


def report(results: Mapping[str, Result]) -> Report:
    """Return the report from the results of the finished units."""
    found = {key: result.result for key, result in results.items()}
    tables = [
        _scores(found, "table", f"Mean and standard error over {RUNS} runs; published: mean and standard deviation"),
        _target(found),
        _scores(found, "quick", f"The first {QUICK:,} rounds at most, {QUICK_RUNS} runs"),
        _wheel(found),
    ]
    figures = {}
    for kind in ("table", "quick"):
        if any(key.startswith(f"{kind}-") for key in found) and "curves" not in figures:
            figures["curves"] = _curves(found, kind)
    return Report([table for table in tables if table.rows], figures, NOTES)


def _published() -> dict[tuple[str, str], Number]:
    numbers = published(Path(__file__).with_name("paper.csv"))
    return {(problem.lower(), method): row.value for (problem, method, _), row in numbers.items()}


def _scores(found: Found, kind: str, title: str) -> Table:
    paper = _published()
    rows: list[list[Cell]] = []
    for name in ALGORITHMS:
        own = [found.get(f"{kind}-{problem}-{name}") for problem in LENGTHS]
        if not any(own):
            continue
        whole = kind == "quick" or name in LONG
        label = LABELS[name] if whole else f"{LABELS[name]} (at most {SHORT:,} rounds)"
        rows.append([label, *(None if run is None else Number.of(run["ratio"], decimals=3) for run in own)])
        if kind == "table" and name in PUBLISHED and (name != "badam-mle"):
            theirs = [paper.get((problem, PUBLISHED[name])) for problem in LENGTHS]
            rows.append([f"published: {PUBLISHED[name]}", *theirs])
    return Table(title, ["algorithm", *(problem.capitalize() for problem in LENGTHS)], rows)


def _target(found: Found) -> Table:
    """Compare our best algorithm with the best published one for each problem."""
    paper = _published()
    rows: list[list[Cell]] = []
    for problem in LENGTHS:
        own = {name: found.get(f"table-{problem}-{name}") for name in OURS}
        numbers = {name: Number.of(run["ratio"], decimals=3) for name, run in own.items() if run is not None}
        if not numbers:
            continue
        best = max(numbers, key=lambda name: numbers[name].mean or -math.inf)
        theirs = {method: value for (where, method), value in paper.items() if where == problem}
        method = max(theirs, key=lambda name: theirs[name].mean or -math.inf)
        mean, error, wanted = numbers[best].mean or 0.0, numbers[best].error or 0.0, theirs[method].mean or 0.0
        reached = "yes" if mean + 2.0 * error >= wanted else "no"
        rows.append([problem.capitalize(), LABELS[best], numbers[best], method, theirs[method], reached])
    header = ["problem", "best of Vadam, IVON, VOGN", "ours", "best published", "published", "within two errors"]
    return Table("The best of ours and the best published algorithm", header, rows)


def _wheel(found: Found) -> Table:
    rows: list[list[Cell]] = []
    for name in WHEEL_ALGORITHMS:
        own = [found.get(f"wheel-{delta}-{name}") for delta in DELTAS]
        if any(own):
            rows.append([LABELS[name], *(None if run is None else Number.of(run["ratio"], decimals=3) for run in own)])
    title = f"The wheel: mean and standard error over {WHEEL_RUNS} runs of {WHEEL_ROUNDS:,} rounds, by delta"
    return Table(title, ["algorithm", *map(str, DELTAS)], rows)


def _curves(found: Found, kind: str) -> Figure:
    """Plot the cumulative reward, divided by that of the optimal policy, against the round."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    axes: Sequence[Any] = figure.subplots(2, 3).ravel()
    for axis, problem in zip(axes, LENGTHS, strict=True):
        for name, color in COLORS.items():
            run = found.get(f"{kind}-{problem}-{name}")
            if run is not None:
                axis.plot(run["rounds"], run["curve"], color=color, lw=1.4, label=LABELS[name])
        axis.set_title(problem.capitalize(), fontsize=10)
        axis.set_xlabel("rounds")
        axis.set_ylim(-1.0 if problem == "mushroom" else 0.0, 1.0)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("cumulative reward / optimal")
    axes[3].set_ylabel("cumulative reward / optimal")
    handles = {label: line for axis in axes for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure
