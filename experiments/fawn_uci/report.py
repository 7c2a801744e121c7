"""The page: our Table 1 beside that of the paper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.experiment import Report
from experiments.fawn.numbers import in_errors, mean_and_sd, standard_error
from experiments.fawn_uci.notes import NOTES
from experiments.results import Result
from experiments.tables import Cell, Number, Published, Table, published

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER = {
    "boston": "Boston",
    "concrete": "Concrete",
    "energy": "Energy",
    "kin8nm": "Kin8Nm",
    "naval": "Naval",
    "power": "Power Plant",
    "protein": "Protein",
    "wine": "Wine",
    "yacht": "Yacht",
}
METHODS = {
    "ropd": "FAWN-ROPD",
    "vi": "FAWN-VI",
    "bern": "FAWN-BERN",
    "bern-inputs": "FAWN-BERN, scales of inputs",
    "gp": "GP",
}
FAWN = tuple(method for method in METHODS if method != "gp")
COLOURS = {"vi": "#0072B2", "ropd": "#D55E00", "bern": "#009E73", "bern-inputs": "#56B4E9", "gp": "#555555"}

Results = Mapping[str, Result]
Numbers = Mapping[tuple[str, str, str], Published]


def report(results: Results, datasets: Sequence[str]) -> Report:
    """Return the report from the results of the finished units."""
    numbers = published(Path(__file__).with_name("paper.csv"))
    tables = [_nll(results, datasets, numbers, method) for method in METHODS]
    tables += [_others(datasets, numbers), _rmse(results, datasets), _spread(results, datasets)]
    tables += [_sampled(results, datasets), _seconds(results, datasets)]
    return Report([table for table in tables if table.rows], {"nll": _figure(results, datasets, numbers)}, NOTES)


def reached(ours: Number, theirs: Number) -> bool | None:
    """Whether our number is at most the paper's number plus its standard error over ten splits."""
    difference = in_errors(ours, theirs)
    return None if difference is None else difference <= 1.0


def _values(results: Results, key: str, metric: str) -> list[float] | None:
    found = results[key].result["splits"] if key in results else []
    return [split[metric] for split in found if metric in split] or None


def _theirs(numbers: Numbers, dataset: str, method: str) -> Number | None:
    found = numbers.get((PAPER[dataset], method.partition(",")[0], "test_NLL"))
    return None if found is None else found.value


def _nll(results: Results, datasets: Sequence[str], numbers: Numbers, method: str) -> Table:
    rows: list[list[Cell]] = []
    for dataset in datasets:
        values, theirs = _values(results, f"{method}-{dataset}", "nll"), _theirs(numbers, dataset, METHODS[method])
        if values is None or theirs is None:
            continue
        ours = mean_and_sd(values, 3)
        difference = Number(in_errors(ours, theirs), None, 1)
        verdict = {True: "yes", False: "no", None: None}[reached(ours, theirs)]
        rows.append([dataset, ours, Number(standard_error(values), None, 3), theirs, difference, verdict])
    header = ["data", "ours ± sd", "standard error", "paper ± sd", "difference", "reached"]
    return Table(f"{METHODS[method]}: test NLL in nats per point", header, rows)


def _others(datasets: Sequence[str], numbers: Numbers) -> Table:
    rows: list[list[Cell]] = [[d, *(_theirs(numbers, d, method) for method in ("VI", "PBP"))] for d in datasets]
    return Table("From the paper, which copied them: test NLL ± standard error", ["data", "VI", "PBP"], rows)


def _grid(results: Results, datasets: Sequence[str], title: str, metric: str) -> Table:
    rows: list[list[Cell]] = []
    for dataset in datasets:
        values = [_values(results, f"{method}-{dataset}", metric) for method in METHODS]
        if any(values):
            rows.append([dataset, *(None if found is None else mean_and_sd(found) for found in values)])
    return Table(title, ["data", *METHODS.values()], rows)


def _rmse(results: Results, datasets: Sequence[str]) -> Table:
    return _grid(results, datasets, "Test RMSE ± sd", "rmse")


def _spread(results: Results, datasets: Sequence[str]) -> Table:
    """Tabulate the parts of the predictive variance."""
    header, rows = ["data"], list[list[Cell]]()
    for method in FAWN:
        header += [f"{METHODS[method]}: noise sd", "predictive sd", "of the weights"]
    for dataset in datasets:
        row: list[Cell] = [dataset]
        for method in FAWN:
            sd, share = (_values(results, f"{method}-{dataset}", name) for name in ("sd", "epistemic"))
            noise = [split["noise_sd"][0] for split in _splits(results, f"{method}-{dataset}")]
            row += [None if not found else sum(found) / len(found) for found in (noise, sd)]
            row.append(None if not share else f"{sum(share) / len(share):.0%}")
        if any(cell is not None for cell in row[1:]):
            rows.append(row)
    return Table("What the predictive variance is made of; means over the splits", header, rows)


def _splits(results: Results, key: str) -> Sequence[Mapping[str, Sequence[float]]]:
    return results[key].result["splits"] if key in results else ()


def _sampled(results: Results, datasets: Sequence[str]) -> Table:
    header, rows = ["data"], list[list[Cell]]()
    for method in FAWN:
        header += [f"{METHODS[method]}: NLL", "RMSE"]
    for dataset in datasets:
        row: list[Cell] = [dataset]
        for method in FAWN:
            for name, decimals in (("nll", 3), ("rmse", None)):
                found = _values(results, f"{method}-{dataset}", f"sampled_{name}")
                own = _values(results, f"{method}-{dataset}", name)
                change = None
                if found is not None and own is not None:
                    change = mean_and_sd([a - b for a, b in zip(found, own, strict=True)], decimals)
                row.append(change)
        if any(cell is not None for cell in row[1:]):
            rows.append(row)
    return Table(
        "A mixture over 1,000 samples of the first layer less propagated moments, ± sd over the splits", header, rows
    )


def _seconds(results: Results, datasets: Sequence[str]) -> Table:
    rows: list[list[Cell]] = []
    for dataset in datasets:
        row: list[Cell] = [dataset]
        for method in FAWN:
            found = results.get(f"{method}-{dataset}")
            row.append(None if found is None else Number(found.result["seconds_per_network"], None, 1))
        times = _values(results, f"gp-{dataset}", "seconds")
        row.append(None if times is None else Number(sum(times) / len(times), None, 1))
        if any(cell is not None for cell in row[1:]):
            rows.append(row)
    header = ["data", *METHODS.values()]
    return Table("Seconds of training per split, on one core that others also used", header, rows)


def _figure(results: Results, datasets: Sequence[str], numbers: Numbers) -> Figure:
    """Plot a panel per data set: our means are filled, the paper's are open, and bars are one standard deviation."""
    from matplotlib.figure import Figure

    columns = min(3, len(datasets))
    lines = math.ceil(len(datasets) / columns)
    figure = Figure(figsize=(3.3 * columns, 2.5 * lines + 0.5), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).flatten()
    for axis in axes[len(datasets) :]:
        axis.remove()
    methods = ("vi", "ropd", "bern", "bern-inputs", "gp")
    for axis, dataset in zip(axes, datasets, strict=False):
        for place, method in enumerate(methods):
            values = _values(results, f"{method}-{dataset}", "nll")
            theirs = _theirs(numbers, dataset, METHODS[method])
            colour = COLOURS[method]
            if values is not None:
                _dot(axis, place - 0.13, mean_and_sd(values), colour, colour)
            if theirs is not None:
                _dot(axis, place + 0.13, theirs, colour, "white")
        if (pbp := _theirs(numbers, dataset, "PBP")) is not None and pbp.mean is not None:
            axis.axhline(pbp.mean, color="black", linewidth=0.8, linestyle=":", zorder=0)
        axis.set_title(dataset, fontsize=10)
        axis.set_xticks(range(len(methods)), ["VI", "ROPD", "BERN", "BERN\ninputs", "GP"], fontsize=8)
        axis.set_xlim(-0.6, len(methods) - 0.4)
        axis.tick_params(axis="y", labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.25)
    for axis in axes[: len(datasets) : columns]:
        axis.set_ylabel("test NLL, nats", fontsize=9)
    bars = "Filled: ours; open: paper; bars: one standard deviation over splits."
    figure.suptitle(f"{bars}\nDotted: PBP, from the paper. Lower is better.", fontsize=9)
    return figure


def _dot(axis: Axes, place: float, number: Number, colour: str, inside: str) -> None:
    assert number.mean is not None
    error = number.error or 0.0
    axis.errorbar(
        place, number.mean, yerr=error, fmt="o", color=colour, markerfacecolor=inside, markersize=6, elinewidth=1.2
    )
