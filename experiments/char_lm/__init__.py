"""Khan et al. 2018, Fig. 8: a language model of characters; and what posteriors add to it, and to a transformer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure

from experiments.char_lm.training import Rows, load_text, mean_loss, scores, train
from experiments.framework import Context, Report, Unit
from experiments.plots import panels
from experiments.tables import Number, frame, published

TITLE = "Characters of War and Peace"
SOURCE = "Khan et al. 2018, Fig. 8 and Table 4, with other methods and a transformer beside it"

PROTOCOL: Mapping[str, Any] = {"held_out": 0.1, "published_epochs": 200}
NETWORKS: Mapping[str, Mapping[str, Any]] = {
    "lstm": {
        "network": "lstm",
        "sizes": {"embedding": 64, "hidden": 128, "layers": 2},
        "batch_size": 50,
        "length": 50,
        "clamp": 5.0,
    },
    "transformer": {
        "network": "transformer",
        "sizes": {"width": 64, "heads": 4, "layers": 2, "length": 64},
        "batch_size": 32,
        "length": 64,
        "clamp": None,
    },
}
"""torch-rnn's defaults (the paper does not describe its network), and a small transformer."""
SAMPLES = (8, 32)
SETTING = ("method", "options", "decay", "decay_every")

Setting = Mapping[str, Any]


def _published(method: str, decay_every: int, **options: Any) -> Setting:
    return {"method": method, "decay": "steps", "decay_every": decay_every, "options": options}


PUBLISHED: Mapping[str, Setting] = {
    "vadagrad": _published("vadagrad", 40, lr=0.0075, beta=0.5, s0=1e-4),
    "sgd": _published("sgd", 80, lr=0.5),
    "adagrad": _published("adagrad", 80, lr=0.025, beta=0.5),
    "adam": _published("adam", 40, lr=0.0012, betas=[0.9, 0.999]),
}
"""Khan et al. 2018, Table 4. The unit of VadaGrad's ``s0`` and the network are not published."""
SEARCHED = (0.0075, 0.025, 0.075, 0.25)
"""VadaGrad's learning rates, of which the first is published, and the best is chosen for the network of our choice."""
UNITS = {
    "mean": "mean loss; variance 1 / s",
    "data": "mean loss; variance 1 / (N s)",
    "sum": "summed loss; variance 1 / s",
}
"""Possible units of ``s0 = 1e-4``: the squared gradient of the mean loss with ``sigma^2 = 1 / s`` (``"mean"``) or
``sigma^2 = 1 / (N s)`` (``"data"``), or that of the loss summed over the text with ``sigma^2 = 1 / s`` (``"sum"``). The
unit is chosen by the validation loss, like a learning rate.
"""


def _chosen(method: str, *rates: float) -> Sequence[Setting]:
    return [{"method": method, "decay": "cosine", "options": {"lr": rate}} for rate in rates]


CHOSEN: Mapping[str, Mapping[str, Sequence[Setting]]] = {
    "lstm": {
        "ivon": _chosen("ivon", 0.1, 0.3, 1.0, 3.0, 10.0),
        "adamw": _chosen("adamw", 0.002, 0.005, 0.01),
        "bayesadam": _chosen("bayesadam", 0.002, 0.005, 0.01),
    },
    "transformer": {
        "ivon": _chosen("ivon", 0.3, 1.0, 0.1, 3.0),
        "adamw": _chosen("adamw", 0.001, 0.003, 0.01),
        "bayesadam": _chosen("bayesadam", 0.001, 0.003, 0.01),
    },
}
"""Candidates by network and method. All other hyper-parameters have the defaults of the library."""
LABELS = {
    "vadagrad": ("VadaGrad", "#D55E00"),
    "sgd": ("SGD", "#0072B2"),
    "adagrad": ("AdaGrad", "#009E73"),
    "adam": ("Adam", "0.35"),
    "ivon": ("IVON", "#D55E00"),
    "adamw": ("AdamW", "0.35"),
    "bayesadam": ("BayesAdam", "#CC79A7"),
    "lstm": ("LSTM", ""),
    "transformer": ("transformer", ""),
}
"""Names of methods and networks, and colours."""
FULL = "full-"
"""Beginning of the keys of the optional units, which have the published length."""
EPOCHS: Mapping[str, Mapping[str, float]] = {
    "": {"lstm": 2, "transformer": 2, "search": 0.5},
    FULL: {"lstm": 200, "transformer": 60, "search": 20},
}
"""Numbers of epochs of the final trainings, by network, and of those by which a setting is chosen."""
RECORDS = {"": 2, FULL: 1}
"""Number of records of the curve per epoch."""
SEEDS: Mapping[str, Mapping[str, int]] = {
    "": {"lstm": 3, "constant": 3, "chosen-lstm": 1, "transformer": 3},
    FULL: {"lstm": 3, "constant": 0, "chosen-lstm": 3, "transformer": 3},
}
"""Numbers of seeds: ``"lstm"`` for the published methods with decay, ``"constant"`` for those without, as in the first
40 published epochs, and ``"chosen-lstm"`` and ``"transformer"`` for the other methods.
"""

Results = Mapping[str, Mapping[str, Any]]


def units() -> list[Unit]:
    """Return published methods, short trainings of the other methods' candidates, and long ones of the best."""
    return [*_units(""), *_units(FULL)]


def _units(start: str) -> list[Unit]:
    found, seeds = [], SEEDS[start]

    def add(key: str, network: str, seed: int, setting: Setting) -> None:
        final = "part" not in setting
        config = {**PROTOCOL, "records": RECORDS[start], **NETWORKS[network], "seed": seed, "part": "final"}
        config |= {"epochs": EPOCHS[start][network if final else "search"], "samples": []}
        optional = bool(start) or key.startswith("rate-")
        found.append(Unit(start + key, {**config, **setting}, optional, phase=int(final)))

    steady = {"decay_every": PROTOCOL["published_epochs"]}
    for unit in UNITS:
        options = {**PUBLISHED["vadagrad"]["options"], "unit": unit}
        setting = {**PUBLISHED["vadagrad"], **steady, "options": options, "part": "search"}
        add(f"unit-{unit}", "lstm", 0, setting)
    for rate in SEARCHED[1:]:
        options = {**PUBLISHED["vadagrad"]["options"], "lr": rate, "unit": "data"}
        add(f"rate-{rate}", "lstm", 0, {**PUBLISHED["vadagrad"], **steady, "options": options, "part": "search"})
    add("noiseless", "lstm", 0, {**PUBLISHED["vadagrad"], **steady, "method": "adagrad", "part": "search"})
    for name, published_setting in PUBLISHED.items():
        known = {key: value for key, value in published_setting.items() if (name, key) != ("vadagrad", "options")}
        for prefix, own in (("lstm", known), ("constant", {**known, **steady})):
            for seed in range(seeds[prefix]):
                add(f"{prefix}-{name}-{seed}", "lstm", seed, own)
    for network, methods in CHOSEN.items():
        for name, candidates in methods.items():
            for number, candidate in enumerate(candidates):
                add(f"search-{network}-{name}-{number}", network, 0, {**candidate, "part": "search"})
            samples = list(SAMPLES) if name in ("ivon", "bayesadam") else []
            for seed in range(seeds["chosen-lstm" if network == "lstm" else network]):
                add(f"{network}-{name}-{seed}", network, seed, {"method": name, "samples": samples})
    return found


def run(unit: Unit, context: Context) -> dict[str, Any]:
    """Train one network, with the best setting of its candidates, and score it.

    Returns:
        ``setting``, and ``chosen``, the unit by which it was chosen; ``curve``, ``diverged`` and ``steps`` of the
        training; ``validation``, the loss at the end. A final training also has the scores ``test``.
        A posterior also has ``widths``, the 1%, 50% and 99% quantiles of its standard deviations.
    """
    config, text, chosen = dict(unit.config), load_text(), None
    if "options" not in config:
        start = FULL if unit.optional else ""
        stem = "unit" if config["method"] == "vadagrad" else f"search-{config['network']}-{config['method']}"
        chosen = best({key: r for key, r in context.results.items() if key.rpartition("-")[0] == start + stem})
        config = {**context.results[chosen]["setting"], **config}
    model, posterior, facts = train(config, text, context)
    result: dict[str, Any] = {
        "setting": {name: config[name] for name in SETTING if name in config},
        "chosen": chosen,
        "alphabet": len(text.alphabet),
        **facts,
    }
    if facts["diverged"] is not None:
        return {**result, "validation": math.nan}
    result["validation"] = mean_loss(model, Rows(text.validation, config))
    if config["part"] == "final":
        result["test"] = scores(model, posterior, Rows(text.test, config), config["samples"])
    if posterior is not None:
        deviations = torch.cat([v.sqrt().flatten() for v in posterior.variance.values()])
        deviations = deviations[deviations > 0].sort().values  # norm layers have no noise
        result["widths"] = [float(deviations[int(q * (len(deviations) - 1))]) for q in (0.01, 0.5, 0.99)]
    return result


def best(candidates: Results) -> str:
    """Return the unit with the lowest validation loss. Diverged trainings have no such loss.

    Raises:
        ValueError: No candidate is finished, or all diverged.
    """
    finite = {key: result["validation"] for key, result in candidates.items() if result["validation"] is not None}
    if not finite:
        raise ValueError(f"a candidate must be finished and not diverge, got {list(candidates)}: run them first")
    return min(finite, key=lambda key: finite[key])


def report(results: Results) -> Report:
    """Return tables and figures with the published losses beside ours."""
    numbers = published(Path(__file__).with_name("paper.csv"))
    paper = {}
    for name in PUBLISHED:
        paper[name] = numbers["war_and_peace", LABELS[name][0], "best_test_loss_nats_per_char"].mean or math.nan
    short = {key: result for key, result in results.items() if not key.startswith(FULL)}
    full = {key.removeprefix(FULL): result for key, result in results.items() if key.startswith(FULL)}
    tables = _tables(short, paper, EPOCHS[""])
    if full:
        tables |= {f"Published length. {title}": t for title, t in _tables(full, paper, EPOCHS[FULL]).items()}
    figures = {"curves": _curves(short, paper)}
    if full:
        figures["full-curves"] = _curves(full, paper)
    return Report(tables, figures)


def _tables(results: Results, paper: Mapping[str, float], epochs: Mapping[str, float]) -> dict[str, pd.DataFrame]:
    start = "With the published settings, their decay scaled to the epochs run"
    steady = "The same without decay, as in the first epochs of the published trainings"
    end = f": nats per character after {epochs['lstm']} epochs, mean network"
    tables = {start + end: _losses(results, paper, "lstm"), steady + end: _losses(results, {}, "constant")}
    for network in NETWORKS:
        title = f"{LABELS[network][0]}: test scores per character after {epochs[network]} epochs"
        tables[title] = _scores(results, network)
    title = "VadaGrad's `s0 = 1e-4` in three units, of which the best is chosen, and without noise; no decay"
    tables[title] = _units_of_s0(results)
    tables[f"Candidates after {epochs['search']} epochs, the mean network's loss; the best in bold"] = _search(results)
    return tables


def trained_by(results: Results, prefix: str, method: str) -> dict[int, Mapping[str, Any]]:
    """Return the results of a method's finished trainings by seed, without those that diverged."""
    start = f"{prefix}-{method}"
    found = {key.rpartition("-"): r for key, r in results.items() if r["diverged"] is None}
    return {int(seed): r for (head, _, seed), r in sorted(found.items()) if head == start}


def differences(one: Mapping[int, Any], other: Mapping[int, Any], kind: str, decimals: int) -> Number:
    """Return the mean of one method's test losses minus those of another method's mean network, paired by seed."""
    seeds = [seed for seed in one if seed in other]
    ours, theirs = ([runs[seed]["test"][k]["nll"] for seed in seeds] for runs, k in ((one, kind), (other, "mean")))
    return Number.less(ours, theirs, decimals=decimals)


def _losses(results: Results, paper: Mapping[str, float], prefix: str) -> pd.DataFrame:
    """Tabulate losses per character of the published methods, and VadaGrad's differences from each, paired by seed."""
    rows, reference = [], trained_by(results, prefix, "vadagrad")
    for name in PUBLISHED:
        if found := trained_by(results, prefix, name):
            last = Number.of([run["test"]["mean"]["nll"] for run in found.values()], decimals=3)
            least = Number.of([min(run["curve"]["test"]) for run in found.values()], decimals=3)
            gap = None if name == "vadagrad" else differences(reference, found, "mean", 3)
            row: list[Any] = [LABELS[name][0], len(found), last, least, gap]
            if paper:
                theirs = None if name == "vadagrad" else Number(paper["vadagrad"] - paper[name], None, 4)
                row += [Number(paper[name], None, 4), theirs]
            rows.append(row)
    header = ["method", "seeds", "test loss", "best test loss", "VadaGrad minus this"]
    return frame(header + ["published best, 200 epochs", "published VadaGrad minus this"] * bool(paper), rows)


def _scores(results: Results, network: str) -> pd.DataFrame:
    """Tabulate the perplexity and the calibration of the chosen methods."""
    rows, reference = [], trained_by(results, network, "adamw")
    for name in CHOSEN[network]:
        found = trained_by(results, network, name)
        for kind in next(iter(found.values()))["test"] if found else ():
            values = [run["test"][kind] for run in found.values()]
            shown = "mean network" if kind == "mean" else f"{kind.partition('-')[2]} samples"
            row: list[Any] = [LABELS[name][0], "the weights" if name == "adamw" else shown, len(values)]
            for metric, digits in (("nll", 4), ("perplexity", 3), ("ece", 4)):
                row.append(Number.of([value[metric] for value in values], decimals=digits))
            row.append(Number.of([100.0 * value["accuracy"] for value in values], decimals=2))
            rows.append([*row, None if name == "adamw" else differences(found, reference, kind, 4)])
    header = ["method", "prediction", "seeds", "NLL, nats", "perplexity", "ECE", "accuracy, %", "NLL minus AdamW's"]
    return frame(header, rows)


def _units_of_s0(results: Results) -> pd.DataFrame:
    rows = []
    keys = {f"unit-{unit}": reading for unit, reading in UNITS.items()}
    keys |= {f"rate-{rate}": f"{UNITS['data']}; learning rate {rate}" for rate in SEARCHED[1:]}
    for key, reading in {**keys, "noiseless": "mean loss; no noise"}.items():
        if found := results.get(key):
            widths = [Number(width) for width in found.get("widths", [None] * 3)]
            rows.append([reading, found["steps"], _validation(found), *widths])
    return frame(["gradient of s; variance", "steps", "validation loss", "width, 1%", "50%", "99%"], rows)


def _validation(result: Mapping[str, Any]) -> str | Number:
    return "diverged" if result["validation"] is None else Number(result["validation"], None, 3)


def _search(results: Results) -> pd.DataFrame:
    rows = []
    for network, methods in CHOSEN.items():
        for name in methods:
            found = {k: r for k, r in results.items() if k.rpartition("-")[0] == f"search-{network}-{name}"}
            for key, result in found.items():
                rate = f"{result['setting']['options']['lr']:g}"
                rate = f"**{rate}**" if key == best(found) else rate
                rows.append([LABELS[network][0], LABELS[name][0], rate, _validation(result)])
    return frame(["network", "method", "learning rate", "validation loss"], rows)


def _curves(results: Results, paper: Mapping[str, float]) -> Figure:
    """Plot test losses by epoch, one line per seed, and a grey band from the lowest to the highest published loss.

    Panels without a finished training are left out.
    """
    choices = {
        "LSTM, decay scaled to the epochs run": ("lstm", PUBLISHED),
        "LSTM, no decay": ("constant", PUBLISHED),
        "LSTM, rates chosen on validation": ("lstm", CHOSEN["lstm"]),
        "transformer, rates chosen on validation": ("transformer", CHOSEN["transformer"]),
    }
    shown: dict[str, dict[str, list[Any]]] = {}
    for title, (prefix, methods) in choices.items():
        curves = {
            name: [r["curve"] for key, r in results.items() if key.rpartition("-")[0] == f"{prefix}-{name}"]
            for name in methods
        }
        if any(curves.values()):
            shown[title] = curves
    long = any(len(c["epoch"]) > 20 for curves in shown.values() for found in curves.values() for c in found)
    style, limits = ("-", (1.15, 1.8)) if long else (".-", (1.1, 3.2))
    figure, axes = panels(1, len(shown), 3.6 * len(shown) + 0.6, 4.0, sharey=True)
    for axis, (title, curves) in zip(axes[0], shown.items(), strict=True):
        for name, found in curves.items():
            label, colour = LABELS[name]
            for curve in found:
                axis.plot(curve["epoch"], curve["test"], style, color=colour, label=label, linewidth=1.4)
                label = "_"  # one entry of the legend for all seeds
        if curves.keys() == paper.keys():
            band = min(paper.values()), max(paper.values())
            axis.axhspan(*band, color="0.8", label="published best, 200 epochs")
        axis.set_title(title, fontsize=9.5)
        axis.set(xlabel="epoch", xlim=(0, None))
        axis.legend(frameon=False, fontsize=9)
    axes[0, 0].set(ylabel="test loss of the mean network (nats per character)", ylim=limits)
    return figure
