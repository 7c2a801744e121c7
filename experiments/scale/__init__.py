"""A GPT-2-like decoder and a ResNet-18, trained by AdamW or SGD, ``ivon-opt``, BayesAdam and VOGN at equal budgets."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from experiments.char_lm import best, differences, trained_by
from experiments.framework import Context, Report, Unit
from experiments.plots import panels
from experiments.scale.training import build, posterior, scores, train
from experiments.tables import Number, frame

TITLE = "Larger networks at equal budgets"
SOURCE = "without a paper"

TEXT = os.environ.get("BAYESADAM_TEXT", "text/war-and-peace")
"""The text, or the absolute path of another one, which the environment variable ``BAYESADAM_TEXT`` names."""
GPU = "gpu-"
"""Beginning of the keys of the optional units, which need a GPU."""
_CPU = {"device": "cpu", "autocast": False, "epochs": 2.0, "samples": 8}
_GPU = {"device": "cuda", "autocast": True, "samples": 16}
_SMALL = {"width": 128, "heads": 4, "layers": 4, "length": 64}
_LARGE = {"width": 512, "heads": 8, "layers": 8, "length": 256}
_TEXT, _IMAGES = {"problem": "text", "data": TEXT}, {"problem": "images", "data": "fashion-mnist"}
SIZES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "": [
        {**_CPU, **_TEXT, "train": 1_600, "held_out": 250, "batch_size": 16, "sizes": _SMALL},
        {**_CPU, **_IMAGES, "train": 2_500, "held_out": 1_000, "batch_size": 32, "sizes": {"width": 8, "groups": 4}},
    ],
    GPU: [
        {**_GPU, **_TEXT, "train": None, "held_out": None, "batch_size": 64, "sizes": _LARGE, "epochs": 10.0},
        {
            **{**_GPU, **_IMAGES, "train": 50_000, "held_out": 10_000, "batch_size": 128},
            **{"sizes": {"width": 64, "groups": 32}, "epochs": 20.0},
        },
    ],
}
"""The two problems of each size: the network, and the numbers of examples, windows of ``length`` characters or images,
of which ``None`` stands for all. ``held_out`` is that of the validation, and of the test.
"""
SEARCH = 0.5
"""Share of the epochs by which a learning rate is chosen, with the first seed."""
SEEDS = 3

Options = Mapping[str, Any]
_GPT2 = {"hess_init": 1e-3, "clip_radius": 1e-3, "weight_decay": 1e-6, "ess": 1e10}
METHODS: Mapping[str, Mapping[str, tuple[Options, Sequence[float]]]] = {
    "text": {
        "adamw": ({}, (3e-4, 1e-3, 3e-3)),
        "ivon-opt": (_GPT2, (100.0, 300.0, 1000.0)),
        "bayesadam": ({}, ()),
        "bayesadam-rate": ({}, (0.001, 0.002, 0.005)),
        "vogn": ({}, (0.003, 0.03, 0.3)),
    },
    "images": {
        "sgd": ({"momentum": 0.9, "weight_decay": 5e-4}, (0.01, 0.03, 0.1)),
        "ivon-opt": ({"hess_init": 0.5, "weight_decay": 2e-4}, (0.1, 0.2, 0.5)),
        "bayesadam": ({}, ()),
        "bayesadam-rate": ({}, (0.001, 0.002, 0.005)),
        "vogn": ({}, (0.03, 0.1, 0.3)),
    },
}
"""By problem and method: options other than the learning rate, and the learning rates that are tried; none for
untouched BayesAdam, which is in a second row with the best of three, as the others. The options of ``ivon-opt`` are
those of its authors' scripts for GPT-2 and CIFAR-10. The first method of a problem is the one that the others are
compared with.
"""
LABELS = {
    "adamw": ("AdamW", "0.35"),
    "sgd": ("SGD", "0.35"),
    "ivon-opt": ("`ivon-opt`", "#D55E00"),
    "bayesadam": ("BayesAdam, untouched", "#CC79A7"),
    "bayesadam-rate": ("BayesAdam", "#009E73"),
    "vogn": ("VOGN", "#0072B2"),
    "text": ("decoder on War and Peace", ""),
    "images": ("ResNet-18 on Fashion-MNIST", ""),
}
"""Names of methods and problems, and colours."""

Results = Mapping[str, Mapping[str, Any]]


def units() -> list[Unit]:
    """Return short trainings of all learning rates, then long ones of the best, with a seed's methods side by side."""
    found = []
    for start, sizes in SIZES.items():
        for size in sizes:
            problem = size["problem"]
            for method, (options, rates) in METHODS[problem].items():
                config = {**size, "method": method, "options": options, "seed": 0}
                for number, rate in enumerate(rates):
                    short = {**config, "lr": rate, "epochs": SEARCH * size["epochs"], "samples": 0}
                    found.append(Unit(f"{start}search-{problem}-{method}-{number}", short, bool(start)))
                for seed in range(SEEDS):
                    full = {**config, "seed": seed, "rates": list(rates)}
                    found.append(Unit(f"{start}{problem}-{method}-{seed}", full, bool(start), phase=1))
    return sorted(found, key=lambda unit: unit.config["seed"])


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
    optimizer, facts = train(config, problem, context)
    result = {"lr": config.get("lr"), **facts, "validation": math.nan}
    if facts["diverged"] is None:
        q, samples = posterior(optimizer, problem.model), config["samples"] * (config["method"] not in ("adamw", "sgd"))
        result["validation"] = scores(config, problem.model, q, problem.validation, 0)["mean"]["nll"]
        if "rates" in config:
            result["test"] = scores(config, problem.model, q, problem.test, samples)
    return result


def report(results: Results) -> Report:
    """Return tables of scores and costs, and of the searches, and the training losses as figures, for each size."""
    tables: dict[str, pd.DataFrame] = {}
    figures = {}
    for start, machine in (("", "CPU version"), (GPU, "GPU version")):
        found = {key.removeprefix(GPU): r for key, r in results.items() if key.startswith(GPU) == bool(start)}
        if found:
            for problem in METHODS:
                tables[f"{machine}, {LABELS[problem][0]}: test scores per label, and costs"] = _scores(found, problem)
            tables[f"{machine}: validation NLL after {SEARCH:g} of the epochs; the best in bold"] = _search(found)
            if any("test" in result for result in found.values()):
                figures[f"{start}curves"] = _curves(found)
    return Report(tables, figures)


def _scores(results: Results, problem: str) -> pd.DataFrame:
    rows, first = [], next(iter(METHODS[problem]))
    reference = trained_by(results, problem, first)
    for method in METHODS[problem]:
        runs = trained_by(results, problem, method)
        for kind in next(iter(runs.values()))["test"] if runs else ():
            row: list[Any] = [LABELS[method][0], kind if method != first else "the weights", len(runs)]
            for metric, factor, decimals in (("nll", 1.0, 4), ("ece", 1.0, 4), ("accuracy", 100.0, 2)):
                values = [factor * run["test"][kind][metric] for run in runs.values()]
                row.append(Number.of(values, decimals=decimals))
            row.append(None if method == first else differences(runs, reference, kind, 4))
            times = {seed: run["milliseconds"] for seed, run in runs.items() if seed in reference}
            ratios = [time / reference[seed]["milliseconds"] for seed, time in times.items()]
            costs = [Number.of(times.values()), Number.of(ratios, decimals=2)]
            costs += [next(iter(runs.values()))[key] for key in ("state_bytes", "peak_mib")]
            rows.append(row + (costs if kind == "mean" else [None] * 4))
    other = LABELS[first][0]
    header = ["method", "prediction", "seeds", "NLL, nats", "ECE", "accuracy, %", f"NLL minus {other}'s", "ms per step"]
    return frame([*header, f"times {other}'s", "bytes of state per weight", "peak memory, MiB"], rows)


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
