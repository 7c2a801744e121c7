"""Kessler et al. 2018, Table 1: contextual bandits, and the wheel of Riquelme et al. 2018."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from experiments.bandits.agents import play
from experiments.bandits.problems import LENGTHS
from experiments.framework import Context, Report, Unit
from experiments.plots import panels
from experiments.tables import Number, frame, published

TITLE = "Contextual bandits: cumulative reward over that of the optimal policy"
SOURCE = "Kessler et al. 2018, Table 1; problems, neural-linear and the wheel of Riquelme et al. 2018"


def _neural(method: str, **options: Any) -> dict[str, Any]:
    return {"belief": "neural", "options": {"method": method, **options}}


ALGORITHMS: dict[str, dict[str, Any]] = {
    "vadam": _neural("vadam", data_weight=512.0, prior_precision=10.0),
    "ivon": _neural("ivon", data_weight=30.0, prior_precision=1000.0),
    "ivon-once": _neural("ivon", data_weight=1.0, prior_precision=1.0),
    "vogn": _neural("vogn", data_weight=30.0, prior_precision=100.0),
    "badam": _neural("badam", data_weight=512.0, prior_precision=3000.0),
    "badam-mle": _neural("badam-mle", data_weight=512.0, prior_precision=10.0),
    "badam-mle-strong": _neural("badam-mle", data_weight=512.0, prior_precision=3000.0),
    "dropout": _neural("dropout"),
    "bbb": _neural("bbb", data_weight=512.0, prior_precision=10.0),
    "last-layer": _neural("last-layer", prior_precision=10.0),
    "neural-linear": _neural("neural-linear", prior_precision=0.25),
    "linear": {"belief": "linear", "options": {}},
    "epsilon-greedy": {**_neural("adam"), "policy": "epsilon-greedy"},
    "greedy": {**_neural("adam"), "policy": "greedy"},
    "uniform": {"belief": "linear", "options": {}, "policy": "uniform"},
    "all-rewards": {**_neural("adam", data_weight=512.0, prior_precision=3000.0), "policy": "greedy", "told": "all"},
}
"""The arguments of ``play`` by algorithm, the same for all problems; the page says how they were chosen."""
PROBLEMS = {"all-rewards": ("adult", "covertype"), "ivon-once": ()}
"""Problems of the table for algorithms that do not play all of them. An agent that is told all rewards shows how much a
network of this size can earn; ``ivon-once`` plays only the wheel.
"""
LABELS = {
    "vadam": "Vadam, earlier recipe",
    "ivon": "IVON, earlier recipe",
    "ivon-once": "IVON, earlier recipe, observations counted once",
    "vogn": "VOGN, earlier recipe",
    "badam": "Badam (prior in the loss)",
    "badam-mle": "Badam (prior added after)",
    "badam-mle-strong": "Badam (added after, with the prior of the loss)",
    "dropout": "MC dropout",
    "bbb": "Bayes by Backprop",
    "last-layer": "last-layer Laplace",
    "neural-linear": "neural-linear",
    "linear": "linear-Gaussian, exact",
    "epsilon-greedy": "epsilon-greedy, 5%",
    "greedy": "greedy",
    "uniform": "uniform",
    "all-rewards": "no bandit: greedy, told the rewards of all actions",
}
PUBLISHED = {
    "vadam": "Vadam",
    "badam": "Badam",
    "badam-mle": "Badam",
    "dropout": "MC dropout",
    "bbb": "BBB",
    "greedy": "Greedy",
    "uniform": "Uniform",
}
"""Names of the algorithms in the paper."""
OURS = ("vadam", "ivon", "vogn")
LONG = ("badam", "vadam", "ivon", "linear", "neural-linear", "uniform")
"""Algorithms that play the published number of rounds. The other algorithms stop after ``SHORT`` rounds."""
RUNS, SHORT = 10, 10_000
WHEEL = ("vadam", "ivon", "ivon-once", "vogn", "neural-linear", "linear", "greedy", "uniform")
DELTAS = (0.5, 0.7, 0.9, 0.95, 0.99)
WHEEL_ROUNDS, WHEEL_RUNS = 4_000, 5
FIRST, POINTS = 20, 50
"""Number of rounds before the first point of a curve, and number of points."""
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
Results = Mapping[str, Mapping[str, Any]]


def units() -> list[Unit]:
    """Return one unit per problem and algorithm with all runs, and those of the wheel.

    Optional are census, whose data must be downloaded; the published numbers of rounds for the algorithms that stop
    earlier; and the published algorithms with the published settings.
    """
    found = []
    for problem, length in LENGTHS.items():
        for name, own in ALGORITHMS.items():
            if problem in PROBLEMS.get(name, LENGTHS):
                rounds = length if name in LONG else min(SHORT, length)
                found.append(_unit(f"table-{problem}", problem, name, rounds, RUNS, optional=problem == "census"))
                if rounds < length:
                    found.append(_unit(f"whole-{problem}", problem, name, length, RUNS, optional=True))
            if name in PUBLISHED and own["belief"] == "neural":
                unit = _unit(f"published-{problem}", problem, name, length, RUNS, True, published_settings=True)
                found.append(unit)
    for delta in DELTAS:
        found += [_unit(f"wheel-{delta}", f"wheel-{delta}", name, WHEEL_ROUNDS, WHEEL_RUNS) for name in WHEEL]
    return found


def _unit(start: str, problem: str, name: str, rounds: int, runs: int, optional: bool = False, **own: Any) -> Unit:
    config = {"problem": problem, "rounds": rounds, "runs": runs, **ALGORITHMS[name], **own}
    return Unit(f"{start}-{name}", config, optional)


def run(unit: Unit, context: Context) -> dict[str, Any]:
    """Play one problem with one algorithm in all runs, which differ in their seeds.

    Returns:
        ``"ratio"``: the cumulative reward of every run, divided by that of the optimal policy. ``"second_half"``: the
        same ratio for the second half of the rounds. ``"curve"``: the cumulative ratio of all runs together after each
        number of rounds in ``"rounds"``.
    """
    rounds, runs = unit.config["rounds"], unit.config["runs"]
    cached = context.memory.cache(play, ignore=["progress"])
    found = []
    for seed in range(runs):
        found.append(
            cached(unit.config, seed, lambda done, seed=seed: context.progress(seed * rounds + done, runs * rounds))
        )
    return scores(*map(np.stack, zip(*found, strict=True)))


def scores(earned: NDArray[np.float64], optimal: NDArray[np.float64]) -> dict[str, Any]:
    """Return the result of a unit from the rewards of its runs and of the optimal policy, ``(R, T)``."""
    rounds = earned.shape[1]
    shown = np.unique(np.linspace(min(FIRST, rounds), rounds, POINTS).round().astype(int))
    # The ratio is that of the sums over all runs, because the optimal reward of a single run may be 0 for some rounds.
    curve = earned.sum(0).cumsum()[shown - 1] / optimal.sum(0).cumsum()[shown - 1]
    half = rounds // 2
    return {
        "ratio": earned.sum(1) / optimal.sum(1),
        "second_half": earned[:, half:].sum(1) / optimal[:, half:].sum(1),
        "rounds": shown,
        "curve": curve.round(4),
    }


def report(results: Results) -> Report:
    """Return our table beside the published one, and the wheel."""
    wheel = {name: [results.get(f"wheel-{delta}-{name}") for delta in DELTAS] for name in WHEEL}
    tables = {
        f"Mean and standard error over {RUNS} runs; published: mean and standard deviation": _table(results, "table"),
        "The best of ours and the best published algorithm": _target(results),
        f"The wheel: mean and standard error over {WHEEL_RUNS} runs of {WHEEL_ROUNDS:,} rounds, by delta": frame(
            ["algorithm", *map(str, DELTAS)],
            [[LABELS[name], *map(_ratio, runs)] for name, runs in wheel.items() if any(runs)],
        ),
    }
    if any(key.startswith("published-") for key in results):
        tables["The same with the published learning rate, initial weights and clipping"] = _table(results, "published")
    return Report(tables, {"curves": _curves(results)})


def _ratio(result: Mapping[str, Any] | None) -> Number | None:
    return None if result is None else Number.of(result["ratio"], decimals=3)


def _paper() -> dict[tuple[str, str], Number]:
    numbers = published(Path(__file__).with_name("paper.csv"))
    return {(problem.lower(), method): value for (problem, method, _), value in numbers.items()}


def _table(results: Results, kind: str) -> pd.DataFrame:
    paper = _paper()
    rows = []
    for name, label in LABELS.items():
        own = [results.get(f"{kind}-{problem}-{name}") for problem in LENGTHS]
        if kind == "table":
            own = [results.get(f"whole-{problem}-{name}", one) for problem, one in zip(LENGTHS, own, strict=True)]
        if not any(own):
            continue
        whole = LENGTHS.values()
        short = any(one and one["rounds"][-1] < length for one, length in zip(own, whole, strict=True))
        rows.append([f"{label} (at most {SHORT:,} rounds)" if short else label, *map(_ratio, own)])
        if name in PUBLISHED:
            theirs = [paper.get((problem, PUBLISHED[name])) for problem in LENGTHS]
            rows.append([f"published: {PUBLISHED[name]}", *theirs])
    return frame(["algorithm", *(problem.capitalize() for problem in LENGTHS)], rows)


def _target(results: Results) -> pd.DataFrame:
    """Compare our best algorithm with the best published one for each problem."""

    def best(numbers: Mapping[str, Number]) -> tuple[str, Number]:
        return max(numbers.items(), key=lambda item: item[1].mean or -math.inf)

    paper, rows = _paper(), []
    for problem in LENGTHS:
        own = {name: _ratio(results.get(f"table-{problem}-{name}")) for name in OURS}
        found = {name: number for name, number in own.items() if number is not None}
        if found:
            name, ours = best(found)
            method, theirs = best({method: value for (where, method), value in paper.items() if where == problem})
            reached = (ours.mean or 0.0) + 2.0 * (ours.error or 0.0) >= (theirs.mean or 0.0)
            rows.append([problem.capitalize(), LABELS[name], ours, method, theirs, "yes" if reached else "no"])
    header = ["problem", "best of the earlier recipe", "ours", "best published", "published", "within two errors"]
    return frame(header, rows)


def _curves(results: Results) -> Figure:
    """Plot the cumulative reward, divided by that of the optimal policy, against the round."""
    figure, grid = panels(2, 3, 11, 6)
    axes = grid.ravel()
    for axis, problem in zip(axes, LENGTHS, strict=False):  # census has no panel
        for name, color in COLORS.items():
            found = results.get(f"table-{problem}-{name}")
            if found is not None:
                axis.plot(found["rounds"], found["curve"], color=color, lw=1.4, label=LABELS[name])
        axis.set_title(problem.capitalize(), fontsize=10)
        axis.set_xlabel("rounds")
        axis.set_ylim(-1.0 if problem == "mushroom" else 0.0, 1.0)
    grid[0, 0].set_ylabel("cumulative reward / optimal")
    grid[1, 0].set_ylabel("cumulative reward / optimal")
    handles = {label: line for axis in axes for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure
