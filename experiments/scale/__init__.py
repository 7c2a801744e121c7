"""A GPT-2-like decoder and a ResNet-18, trained by AdamW or SGD, ``ivon-opt``, BayesAdam and VOGN at equal budgets."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from experiments.char_lm import best
from experiments.framework import Context, Report, Unit
from experiments.plots import panels
from experiments.scale.training import build, scores, train
from experiments.tables import Number, frame

TITLE = "Larger networks at equal budgets"
SOURCE = "without a paper"

TEXT = os.environ.get("BAYESADAM_TEXT", "text/war-and-peace")
"""The text, or the absolute path of another one, which the environment variable ``BAYESADAM_TEXT`` names."""
GPU = "gpu-"
"""Beginning of the keys of the optional units, which need a GPU."""
_CPU = {"device": "cpu", "autocast": False, "epochs": 2.0, "samples": 8}
_GPU = {"device": "cuda", "autocast": True, "samples": 16}
SIZES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "": {
        "text": {
            **_CPU,
            "data": TEXT,
            "train": 1_600,
            "held_out": 250,
            "batch_size": 16,
            "sizes": {"width": 128, "heads": 4, "layers": 4, "length": 64},
        },
        "images": {
            **_CPU,
            "data": "fashion-mnist",
            "train": 2_500,
            "held_out": 1_000,
            "batch_size": 32,
            "sizes": {"width": 8, "groups": 4},
        },
    },
    GPU: {
        "text": {
            **_GPU,
            "epochs": 10.0,
            "data": TEXT,
            "train": None,
            "held_out": None,
            "batch_size": 64,
            "sizes": {"width": 512, "heads": 8, "layers": 8, "length": 256},
        },
        "images": {
            **_GPU,
            "epochs": 20.0,
            "data": "fashion-mnist",
            "train": 50_000,
            "held_out": 10_000,
            "batch_size": 128,
            "sizes": {"width": 64, "groups": 32},
        },
    },
}
"""By size and problem: the numbers of examples (windows of ``length`` characters, or images; ``None`` for all), and the
network. ``held_out`` is the number of examples for validation, and of those for the test.
"""
SEARCH = 0.5
"""Share of the epochs by which a learning rate is chosen, with the first seed."""
SEEDS = 3

Options = Mapping[str, Any]
METHODS: Mapping[str, Mapping[str, tuple[Options, Sequence[float]]]] = {
    "text": {
        "adamw": ({}, (3e-4, 1e-3, 3e-3)),
        "ivon-opt": (
            {"hess_init": 1e-3, "clip_radius": 1e-3, "weight_decay": 1e-6, "ess": 1e10},
            (100.0, 300.0, 1000.0),
        ),
        "bayesadam": ({}, ()),
        "vogn": ({"betas": [0.9, 0.999]}, (0.003, 0.03, 0.3)),
    },
    "images": {
        "sgd": ({"momentum": 0.9, "weight_decay": 5e-4}, (0.01, 0.03, 0.1)),
        "ivon-opt": ({"hess_init": 0.5, "weight_decay": 2e-4}, (0.1, 0.2, 0.5)),
        "bayesadam": ({}, ()),
        "vogn": ({"betas": [0.9, 0.999]}, (0.03, 0.1, 0.3)),
    },
}
"""By problem and method: options other than the learning rate, and the learning rates that are tried; none for
BayesAdam, which has its defaults. The options of ``ivon-opt`` are those of its authors' scripts for GPT-2 and CIFAR-10.
The first method of a problem is the one that the others are compared with.
"""
LABELS = {
    "adamw": ("AdamW", "0.35"),
    "sgd": ("SGD", "0.35"),
    "ivon-opt": ("`ivon-opt`", "#D55E00"),
    "bayesadam": ("BayesAdam", "#CC79A7"),
    "vogn": ("VOGN", "#0072B2"),
    "text": ("decoder on War and Peace", ""),
    "images": ("ResNet-18 on Fashion-MNIST", ""),
}
"""Names of methods and problems, and colours."""

Results = Mapping[str, Mapping[str, Any]]


def units() -> list[Unit]:
    """Return short trainings of all learning rates, then long ones of the best, with a seed's methods side by side."""
    found = []
    for start, problems in SIZES.items():
        for problem, size in problems.items():
            for method, (options, rates) in METHODS[problem].items():
                config = {**size, "problem": problem, "method": method, "options": options, "seed": 0}
                for number, rate in enumerate(rates):
                    short = {**config, "lr": rate, "epochs": SEARCH * size["epochs"], "samples": 0}
                    found.append(Unit(f"{start}search-{problem}-{method}-{number}", short, bool(start)))
        for seed in range(SEEDS):
            for problem, size in problems.items():
                for method, (options, rates) in METHODS[problem].items():
                    config = {**size, "problem": problem, "method": method, "options": options, "seed": seed}
                    config["rates"] = list(rates)
                    found.append(Unit(f"{start}{problem}-{method}-{seed}", config, bool(start), phase=1))
    return found


def run(unit: Unit, context: Context) -> dict[str, Any]:
    """Train one network, with the best learning rate of those that were tried, and score it.

    Returns:
        ``lr``, ``None`` for the method's default, and ``validation``, the NLL of the mean network; the facts of
        :func:`train`; and ``test``, scores of the mean network and of posterior samples, if the unit is no search.
    """
    config = dict(unit.config)
    if rates := config.get("rates"):
        stem = f"{GPU if unit.optional else ''}search-{config['problem']}-{config['method']}"
        chosen = best({key: result for key, result in context.results.items() if key.rpartition("-")[0] == stem})
        config["lr"] = rates[int(chosen.rpartition("-")[2])]
    problem = build(config)
    posterior, facts = train(config, problem, context)
    result = {"lr": config.get("lr"), **facts, "validation": math.nan}
    if facts["diverged"] is None:
        point = config["method"] in ("adamw", "sgd")
        result["validation"] = scores(config, problem.model, posterior, problem.validation, 0)["mean"]["nll"]
        if "rates" in config:
            samples = 0 if point else config["samples"]
            result["test"] = scores(config, problem.model, posterior, problem.test, samples)
    return result


def report(results: Results) -> Report:
    """Return tables of scores, costs and searches, and the training losses as figures, for each size."""
    tables: dict[str, pd.DataFrame] = {}
    figures = {}
    for start, machine in (("", "CPU version"), (GPU, "GPU version")):
        found = {key.removeprefix(GPU): r for key, r in results.items() if key.startswith(GPU) == bool(start)}
        if not found:
            continue
        for problem in METHODS:
            tables[f"{machine}, {LABELS[problem][0]}: test scores per label"] = _scores(found, problem)
        tables[f"{machine}: costs"] = _costs(found)
        tables[f"{machine}: validation NLL after {SEARCH:g} of the epochs; the best in bold"] = _search(found)
        figures[f"{start}curves"] = _curves(found)
    return Report(tables, figures)


def trained_by(results: Results, problem: str, method: str) -> dict[int, Mapping[str, Any]]:
    """Return the results of a method's finished trainings by seed."""
    keys = {seed: f"{problem}-{method}-{seed}" for seed in range(SEEDS)}
    return {seed: results[key] for seed, key in keys.items() if key in results}


def _less(one: Mapping[int, Any], other: Mapping[int, Any], kind: str) -> Number:
    """Return the mean difference of the test NLL, paired by seed, from that of the other method's mean network."""
    seeds = [seed for seed in one if "test" in one[seed] and "test" in other.get(seed, {})]
    ours, theirs = ([runs[seed]["test"][k]["nll"] for seed in seeds] for runs, k in ((one, kind), (other, "mean")))
    return Number.less(ours, theirs, decimals=4)


def _scores(results: Results, problem: str) -> pd.DataFrame:
    rows, first = [], next(iter(METHODS[problem]))
    reference = trained_by(results, problem, first)
    for method in METHODS[problem]:
        runs = trained_by(results, problem, method)
        scored = [run["test"] for run in runs.values() if "test" in run]
        shown = ", ".join(sorted({"default" if run["lr"] is None else f"{run['lr']:g}" for run in runs.values()}))
        for kind in scored[0] if scored else ["diverged"] * bool(runs):
            row: list[Any] = [LABELS[method][0], shown, kind if method != first else "the weights", len(runs)]
            for metric, factor, decimals in (("nll", 1.0, 4), ("ece", 1.0, 4), ("accuracy", 100.0, 2)):
                values = [factor * test[kind][metric] for test in scored]
                row.append(Number.of(values, decimals=decimals) if values else None)
            rows.append([*row, None if method == first else _less(runs, reference, kind)])
    header = ["method", "learning rate", "prediction", "seeds", "NLL, nats", "ECE", "accuracy, %"]
    return frame([*header, f"NLL minus {LABELS[first][0]}'s"], rows)


def _costs(results: Results) -> pd.DataFrame:
    rows = []
    for problem, methods in METHODS.items():
        reference = trained_by(results, problem, next(iter(methods)))
        for method in methods:
            if runs := trained_by(results, problem, method):
                ratios = [
                    run["milliseconds"] / reference[s]["milliseconds"] for s, run in runs.items() if s in reference
                ]
                last = next(iter(runs.values()))
                times = Number.of(run["milliseconds"] for run in runs.values())
                row = [LABELS[problem][0], last["weights"], last["steps"], LABELS[method][0], times]
                rows.append([*row, Number.of(ratios, decimals=2), last["state_bytes"], last["peak_mib"]])
    header = ["problem", "weights", "steps", "method", "ms per step", "times the first's", "bytes of state per weight"]
    return frame([*header, "peak memory, MiB"], rows)


def _search(results: Results) -> pd.DataFrame:
    rows = []
    for problem, methods in METHODS.items():
        for method, (_, rates) in methods.items():
            keys = [f"search-{problem}-{method}-{number}" for number in range(len(rates))]
            losses = [results[key]["validation"] if key in results else None for key in keys]
            least = min((loss for loss in losses if loss is not None), default=None)
            for key, rate, loss in zip(keys, rates, losses, strict=True):
                if key in results:
                    shown = f"**{rate:g}**" if loss == least else f"{rate:g}"
                    rows.append([LABELS[problem][0], LABELS[method][0], shown, "diverged" if loss is None else loss])
    return frame(["problem", "method", "learning rate", "validation NLL"], rows)


def _curves(results: Results) -> Figure:
    figure, axes = panels(1, len(METHODS), 9.0, 3.4)
    for axis, (problem, methods) in zip(axes[0], METHODS.items(), strict=True):
        for method in methods:
            for seed, run in trained_by(results, problem, method).items():
                share = [(i + 0.5) / 20 for i in range(len(run["curve"]))]
                label = LABELS[method][0].strip("`") if seed == 0 else None
                axis.plot(share, run["curve"], color=LABELS[method][1], lw=1.2, alpha=0.8, label=label)
        axis.set(title=LABELS[problem][0], xlabel="share of the steps", ylabel="training loss, nats per label")
        axis.legend(frameon=False)
    return figure
