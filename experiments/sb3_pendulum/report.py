"""The page: returns after several numbers of steps, with errors over seeds, and one figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from experiments.experiment import Report
from experiments.results import Result
from experiments.sb3_pendulum.experiment import EXPLORATIONS
from experiments.tables import Cell, Number, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {
    "weights-wide": "weights, up to 0.05",
    "weights-narrow": "weights, up to 0.01",
    "action-noise": "actions, 0.1",
    "none": "none",
}
COLOURS = {"weights-wide": "#0072B2", "weights-narrow": "#56B4E9", "action-noise": "#D55E00", "none": "#000000"}

NOTES = """\
DDPG of stable-baselines3 with 64-64 units and 200 random steps at the start, otherwise with the library's defaults and
without any changes to its code. `bayesadam.integrations.stable_baselines3.ParameterExploration` trains the actor with
Vadam, whose noise is at most as wide as its prior (0.05 and 0.01) and narrower where gradients have been large; the
actor uses a new sample of the weights in every step of the environment. Evaluations use the mean, and
stable-baselines3's own `evaluate_policy`. The other two explorations train the actor with Adam. The returns are those
of 10 test episodes, which have the same starts for all. Returns of Pendulum are between about -1800 and 0, and a return
of about -150 means that the pendulum stands upright.

The experiment shows that the integration works. It does not show that noise in the weights explores better: with three
seeds, no two of the four explorations differ by two standard errors of the difference after any number of steps. The
first 200 actions are random, and Pendulum needs little further exploration.
"""


def report(results: Mapping[str, Result]) -> Report:
    """Return the report from the results of the finished units."""
    steps = list(next(iter(results.values())).result["steps"])
    curves: dict[str, list[npt.NDArray[np.float64]]] = {name: [] for name in EXPLORATIONS}
    deviations: dict[str, list[float]] = {name: [] for name in EXPLORATIONS}
    for result in results.values():
        name = result.config["exploration"]
        curves[name].append(np.array(result.result["returns"], float).mean(1))
        if result.result["deviation"] is not None:
            deviations[name].append(result.result["deviation"])
    rows: list[list[Cell]] = []
    for name, found in curves.items():
        values = np.array(found)
        means = [Number.of([float(x) for x in values[:, i]], decimals=0) if found else None for i in range(len(steps))]
        deviation = Number.of(deviations[name], decimals=4) if deviations[name] else None
        rows.append([NAMES[name], len(found), *means, deviation])
    header = ["noise in", "seeds", *(f"{step:,} steps" for step in steps), "deviation at the end"]
    table = Table("Return of the deterministic policy: mean over seeds with its standard error", header, rows)
    return Report([table], {"curves": _figure(curves, steps)}, NOTES)


def _figure(curves: Mapping[str, list[npt.NDArray[np.float64]]], steps: list[int]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axis = figure.subplots()
    for name, found in curves.items():
        if not found:
            continue
        values = np.array(found)
        mean = values.mean(0)
        axis.plot(steps, mean, color=COLOURS[name], linewidth=1.8, label=NAMES[name])
        if len(found) > 1:
            error = values.std(0, ddof=1) / len(found) ** 0.5
            axis.fill_between(steps, mean - error, mean + error, color=COLOURS[name], alpha=0.18, linewidth=0)
    axis.set_xlabel("steps of the environment")
    axis.set_ylabel("return of the deterministic policy")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.3)
    axis.legend(title="noise in", frameon=False, fontsize=9)
    return figure
