"""The page: returns beside those of both runs of the authors, differences between methods, and curves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from experiments.experiment import Report
from experiments.half_cheetah.curves import NAMES, Curves, conclusion, curves_of, difference, episodes_of, paper
from experiments.half_cheetah.notes import NOTES
from experiments.results import Result
from experiments.tables import Cell, Number, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {
    "vadam": "#0072B2",
    "vadagrad": "#009E73",
    "adam-explore": "#D55E00",
    "adam-plain": "#E69F00",
    "sgd-explore": "#CC79A7",
    "sgd-plain": "#000000",
}
"""Colours of Okabe and Ito."""


def report(results: Mapping[str, Result]) -> Report:
    """Return the report from the results of the finished units."""
    curves, episodes, theirs = curves_of(results), episodes_of(results), paper()
    shown = sorted({episode for run in theirs.values() for each in run.values() for episode in each} & set(episodes))
    shown += [episodes[-1]] * (episodes[-1] not in shown)
    notes = f"{conclusion(curves, episodes)}\n\n{NOTES}"
    tables = [_returns(curves, episodes, theirs, shown), _differences(curves, episodes)]
    return Report(tables, {"curves": _figure(curves, episodes, theirs)}, notes)


def _returns(
    curves: Curves, episodes: list[int], theirs: Mapping[str, Mapping[str, Mapping[int, Number]]], shown: list[int]
) -> Table:
    rows: list[list[Cell]] = []
    for method, name in NAMES.items():
        seeds = curves.get(method, {})
        row: list[Cell] = [name, len(seeds)]
        for episode in shown:
            place = episodes.index(episode)
            row.append(Number.of([float(curve[place]) for curve in seeds.values()], decimals=0) if seeds else None)
            for run in theirs.values():
                number = run[method].get(episode)
                row.append(None if number is None else Number(number.mean, number.error, 0))
        rows.append(row)
    header = ["method", "our seeds"]
    for episode in shown:
        header += [f"episode {episode}: ours", *theirs]
    keep = [i for i in range(len(header)) if i < 2 or any(row[i] is not None for row in rows) or ": ours" in header[i]]
    title = "Return of the mean policy: mean over seeds with its standard error"
    return Table(title, [header[i] for i in keep], [[row[i] for i in keep] for row in rows])


def _differences(curves: Curves, episodes: list[int]) -> Table:
    rows: list[list[Cell]] = []
    for method, name in NAMES.items():
        seeds = curves.get(method, {})
        own = Number.of([float(curve[1:].mean()) for curve in seeds.values()], decimals=0) if seeds else None
        found = difference(curves, "vadam", method) if method != "vadam" else None
        if found is None:
            rows.append([name, own, None, None, None])
        else:
            number, half, count = found
            assert number.mean is not None
            rows.append([name, own, number, f"{number.mean - half:.0f} to {number.mean + half:.0f}", count])
    title = f"Early learning: mean of the evaluations after episodes {episodes[1]} to {episodes[-1]}"
    return Table(title, ["method", "return", "Vadam less it, by seed", "95% interval", "seeds in common"], rows)


def _figure(curves: Curves, episodes: list[int], theirs: Mapping[str, Mapping[str, Mapping[int, Number]]]) -> Figure:
    """Plot our curves and those of both runs of the authors, with bands of one standard error over seeds."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    ours, *others = figure.subplots(1, 1 + len(theirs), sharey=True, sharex=True)
    last = episodes[-1]
    for method, colour in COLOURS.items():
        seeds = list(curves.get(method, {}).values())
        if seeds:
            values = np.array(seeds)
            mean = values.mean(0)
            ours.plot(episodes, mean, color=colour, linewidth=1.8)
            if len(seeds) > 1:
                error = values.std(0, ddof=1) / len(seeds) ** 0.5
                ours.fill_between(episodes, mean - error, mean + error, color=colour, alpha=0.18, linewidth=0)
        for axis, run in zip(others, theirs.values(), strict=True):
            known = {episode: number for episode, number in run[method].items() if episode <= max(200, last)}
            means, errors = zip(*((number.mean, number.error) for number in known.values()), strict=True)
            axis.errorbar(list(known), means, errors, color=colour, linewidth=1.4, capsize=3, marker="o", markersize=4)
    counts = sorted({len(seeds) for seeds in curves.values()})
    ours.set_title(f"ours, {' or '.join(map(str, counts))} seed{'s' if counts != [1] else ''}", fontsize=10)
    for axis, name in zip(others, theirs, strict=True):
        axis.set_title(f"{name}, 5 seeds", fontsize=10)
    for axis in (ours, *others):
        axis.set_xlabel("training episodes")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    ours.set_ylabel("return of the mean policy")
    legend = [Line2D([], [], color=COLOURS[method], linewidth=2, label=name) for method, name in NAMES.items()]
    figure.legend(handles=legend, loc="outside upper center", ncols=len(legend), frameon=False, fontsize=9)
    return figure
