"""Khan et al. 2018, Figs. 3 (right), 5 and 6: HalfCheetah, explored by noise in the weights of the actor."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.framework import Context, Report, Unit
from experiments.plots import panels
from experiments.tables import Number, frame, published

TITLE = "HalfCheetah: exploration by noise in the weights of the actor"
SOURCE = "Khan et al. 2018, Figs. 3 (right), 5 and 6, appendix K"

METHODS: Mapping[str, dict[str, Any]] = {
    "vadam": {"lr": 1e-4, "betas": [0.9, 0.999], "prior_precision": 1e-8, "initial_precision": 1e-8, "floor": 1e4},
    "vadagrad": {"lr": 0.01, "betas": [0.9, 0.99], "initial_precision": 1e4},
    "adam-explore": {"lr": 1e-4, "betas": [0.9, 0.999], "initial_precision": 1e4, "precision_lr": 0.01},
    "adam-plain": {"lr": 1e-4, "betas": [0.9, 0.999]},
    "sgd-explore": {"lr": 1e-4, "initial_precision": 1e4, "precision_lr": 0.01},
    "sgd-plain": {"lr": 1e-4},
}
"""Settings of Khan et al. 2018, Table 3, with those that only their code has."""
PROTOCOL = {
    "environment": "HalfCheetah-v5",
    "steps": 1000,
    "every": 10,
    "tests": 20,
    "hidden": [400, 300],
    "batch_size": 64,
    "replay": 1_000_000,
    "discount": 0.99,
    "target_rate": 0.001,
    "critic_lr": 0.001,
}
"""Settings of the authors' code, except for the version of the environment."""
LABELS = {
    "vadam": ("Vadam", "#0072B2"),
    "vadagrad": ("VadaGrad", "#009E73"),
    "adam-explore": ("Adam-Explore", "#D55E00"),
    "adam-plain": ("Adam-Plain", "#E69F00"),
    "sgd-explore": ("SGD-Explore", "#CC79A7"),
    "sgd-plain": ("SGD-Plain", "#000000"),
}
"""Names in the paper, and the colours of Okabe and Ito."""
RUNS = {"run1(HalfCheetah-v1": "paper, run 1", "run2(HalfCheetah-v1_2nd": "paper, run 2"}
"""Prefixes of the names of the authors' two stored runs, and their names here. The paper shows the first run."""
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}
"""97.5% quantiles of Student's t by the number of seeds."""
LENGTHS = {"": (151, 3, ""), "500-": (501, 5, "500 episodes. "), "full-": (3000, 5, "Published length. ")}
"""Numbers of episodes and of seeds, and beginning of the tables' titles, by the beginning of the keys. The longer
trainings, 500 episodes as in Fig. 5 and the published 3,000 of Fig. 6, are optional.
"""

Curves = dict[str, dict[int, npt.NDArray[np.float64]]]
"""The mean return of the test episodes of each evaluation, by method and seed."""
Paper = Mapping[str, Mapping[str, Mapping[int, Number]]]
"""Means over 5 seeds, with their errors, by run, method and episode."""


def units() -> list[Unit]:
    """Return one unit per method and seed. All methods with the first seed come first."""
    found = []
    for start, (episodes, seeds, _) in LENGTHS.items():
        for seed, (name, settings) in product(range(seeds), METHODS.items()):
            config = {**PROTOCOL, "episodes": episodes, "method": name, "settings": settings, "seed": seed}
            found.append(Unit(f"{start}{name}-seed{seed}", config, optional=bool(start)))
    return found


def run(unit: Unit, context: Context) -> dict[str, Any]:
    """Train one agent, and return its evaluations."""
    from experiments.half_cheetah.training import learn

    return learn(unit.config, context)


def report(results: Mapping[str, Any]) -> Report:
    """Return curves and returns beside those of both runs of the authors, and differences between methods."""
    tables, figures = {}, {}
    for start, (_, _, title) in LENGTHS.items():
        named = {key.removeprefix(start): result for key, result in results.items() if key.startswith(start)}
        part = {key: result for key, result in named.items() if key.rpartition("-seed")[0] in METHODS}
        if part:
            episodes, curves, paper = next(iter(part.values()))["episodes"], _curves(part), _paper()
            returns = f"{title}Return of the mean policy: mean over seeds with its standard error"
            tables[returns] = _returns(curves, episodes, paper)
            end = f"mean of the evaluations after episodes {episodes[1]} to {episodes[-1]}"
            tables[f"{title}Early learning: {end}"] = _differences(curves)
            figures[f"{start}curves"] = _figure(curves, episodes, paper)
    return Report(tables, figures)


def _curves(results: Mapping[str, Any]) -> Curves:
    found: Curves = {method: {} for method in METHODS}
    for key, result in results.items():
        method, _, seed = key.rpartition("-seed")
        found[method][int(seed)] = np.array(result["returns"], float).mean(1)
    return {method: seeds for method, seeds in found.items() if seeds}


def _paper() -> Paper:
    found: dict[str, dict[str, dict[int, Number]]] = {name: {key: {} for key in LABELS} for name in RUNS.values()}
    keys = {name: key for key, (name, _) in LABELS.items()}
    for (run, method, metric), number in published(Path(__file__).with_name("paper.csv")).items():
        if episode := re.fullmatch(r"test_return@episode(\d+)", metric):
            name = next(name for start, name in RUNS.items() if run.startswith(start))
            found[name][keys[method]][int(episode[1])] = number
    return found


def _returns(curves: Curves, episodes: list[int], paper: Paper) -> pd.DataFrame:
    known = {episode for run in paper.values() for each in run.values() for episode in each} & set(episodes)
    columns: dict[str, list[Any]] = {"method": [LABELS[method][0] for method in curves]}
    columns["our seeds"] = [len(seeds) for seeds in curves.values()]
    header = list(columns)
    for episode in sorted(known | {episodes[-1]}):
        place = episodes.index(episode)
        values = [[float(curve[place]) for curve in seeds.values()] for seeds in curves.values()]
        columns[f"{episode}"] = [Number.of(own, decimals=0) for own in values]
        header.append(f"episode {episode}: ours")
        for name, run in paper.items():
            theirs = [run[method].get(episode) for method in curves]
            if any(theirs):
                columns[f"{episode}, {name}"] = [number and Number(number.mean, number.error, 0) for number in theirs]
                header.append(name)
    return frame(header, list(zip(*columns.values(), strict=True)))


def _differences(curves: Curves) -> pd.DataFrame:
    """Tabulate Vadam's return less each other one, over the evaluations after the first, paired by seed.

    Methods with the same seed share the initial weights, the starts of episodes and the places of minibatches.
    """
    rows, vadam = [], curves.get("vadam", {})
    for method, own in curves.items():
        means = {seed: float(curve[1:].mean()) for seed, curve in own.items()}
        row: list[Any] = [LABELS[method][0], Number.of(means.values(), decimals=0), None, None, None]
        seeds = sorted(own.keys() & vadam.keys())
        if method != "vadam" and len(seeds) > 1:
            each = [float((vadam[seed][1:] - own[seed][1:]).mean()) for seed in seeds]
            gap = Number.of(each, decimals=0)
            mean, half = gap.mean or 0.0, STUDENT[len(seeds)] * (gap.error or 0.0)
            row[2:] = [gap, f"{mean - half:.0f} to {mean + half:.0f}", len(seeds)]
        rows.append(row)
    return frame(["method", "return", "Vadam less it, by seed", "95% interval", "seeds in common"], rows)


def _figure(curves: Curves, episodes: list[int], paper: Paper) -> Figure:
    """Plot our curves and those of both runs of the authors, with bands of one standard error over seeds."""
    figure, axes = panels(1, 1 + len(paper), 11, 4.2, sharex=True, sharey=True)
    ours, *others = axes[0]
    for method, (_, colour) in LABELS.items():
        if method in curves:
            values = np.array(list(curves[method].values()))
            mean = values.mean(0)
            ours.plot(episodes, mean, color=colour, linewidth=1.8)
            if len(values) > 1:
                error = values.std(0, ddof=1) / len(values) ** 0.5
                ours.fill_between(episodes, mean - error, mean + error, color=colour, alpha=0.18, linewidth=0)
        for axis, run in zip(others, paper.values(), strict=True):
            known = {episode: number for episode, number in run[method].items() if episode <= max(200, episodes[-1])}
            means, errors = zip(*((number.mean, number.error) for number in known.values()), strict=True)
            axis.errorbar(list(known), means, errors, color=colour, linewidth=1.4, capsize=3, marker="o", markersize=4)
    least, most = (limit(map(len, curves.values())) for limit in (min, max))
    count = f"{most}" if least == most else f"{least} to {most}"
    ours.set_title(f"ours, {count} seed{'s' * (most > 1)}", fontsize=10)
    for axis, name in zip(others, paper, strict=True):
        axis.set_title(f"{name}, 5 seeds", fontsize=10)
    for axis in axes[0]:
        axis.set_xlabel("training episodes")
    ours.set_ylabel("return of the mean policy")
    legend = [Line2D([], [], color=colour, linewidth=2, label=name) for name, colour in LABELS.values()]
    figure.legend(handles=legend, loc="outside upper center", ncols=len(legend), frameon=False, fontsize=9)
    return figure
