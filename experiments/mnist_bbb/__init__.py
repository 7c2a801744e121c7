"""Blundell et al. 2015, Table 1: MNIST, and predictions for images that are not digits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.data import load
from experiments.framework import Context, Report, Unit
from experiments.mnist import predictive, scores, train
from experiments.tables import Number, frame, published

TITLE = "MNIST: errors, calibration, and images that are no digits"
SOURCE = "Blundell et al. 2015, Table 1, with the weight-perturbed optimisers beside it"

PROTOCOL = {
    "epochs": 20,
    "batch_size": 128,
    "hidden": 400,
    "train": 60_000,
    "held_out": 10_000,
    "split": 0,
    "validation_samples": 16,
    "mc_samples": 32,
}
LONG, LONG_EPOCHS, LONG_SEEDS = "100-epochs-", 100, 3
"""Beginning of the keys, length and number of seeds of the optional units: Bayes by Backprop, trained longer."""
SETTING = ("method", "options", "dropout", "predict")
BINS = 40
METHODS = {
    "adam": ("Adam", "SGD"),
    "dropout": ("MC dropout", "SGD dropout"),
    "vadam": ("Vadam", ""),
    "vadam-tempered": ("Vadam, temperature 0.01", ""),
    "ivon": ("IVON", ""),
    "bbb-gaussian": ("BBB, Gaussian prior", "BBB Gaussian prior"),
    "bbb-mixture": ("BBB, scale mixture", "BBB scale mixture prior"),
}
"""Label, and name in the paper."""
SEEDS = 2
METRICS = {"error": ("test error (%)", 2), "nll": ("NLL (nats)", 4), "ece": ("ECE", 4), "auroc": ("OOD AUROC", 3)}

Candidate = dict[str, Any]


def _adam(lr: float) -> Candidate:
    return {"method": "adam", "predict": "mean", "options": {"lr": lr}}


def _dropout(rate: float, lr: float) -> Candidate:
    return {"method": "adam", "predict": "monte_carlo", "dropout": rate, "options": {"lr": lr}}


def _vadam(lr: float, prior_precision: float, temperature: float) -> Candidate:
    options = {"lr": lr, "betas": [0.9, 0.999], "prior_precision": prior_precision, "temperature": temperature}
    return {"method": "vadam", "predict": "monte_carlo", "options": options}


def _ivon(lr: float, prior_precision: float) -> Candidate:
    options = {"lr": lr, "betas": [0.9, 0.99995], "prior_precision": prior_precision, "initial_precision": 5000.0}
    return {"method": "ivon", "predict": "monte_carlo", "options": options}


def _bbb(lr: float, *prior: Any) -> Candidate:
    options = {"lr": lr, "initial_std": 0.02, "prior": list(prior)}
    return {"method": "bbb", "predict": "monte_carlo", "options": options}


MIXTURES = (
    (
        (0.001, 0.003),
        (
            (0.5, 0.37, 0.0025),
            (0.25, 0.37, 0.0025),
            (0.5, 0.14, 0.0025),
            (0.5, 0.37, 0.0009),
            (0.5, 1.0, 0.0025),
            (0.75, 0.37, 0.0025),
        ),
    ),
    ((0.003, 0.01), ((0.75, 0.37, 0.0009), (0.75, 1.0, 0.0009), (0.5, 1.0, 0.0009), (0.5, 0.37, 0.0003))),
    ((0.003,), ((0.5, 1.0, 0.0003), (0.25, 1.0, 0.0009), (0.25, 1.0, 0.0003))),
)
"""Learning rates, with the scale mixtures (weight and standard deviation of the wide component, that of the narrow one)
that are trained with them. The best of the first six was at their edge, as was that of the next four.
"""
CANDIDATES: Mapping[str, Sequence[Candidate]] = {
    "adam": [_adam(0.0003), _adam(0.001), _adam(0.003)],
    "dropout": [_dropout(0.2, 0.001), _dropout(0.2, 0.003), _dropout(0.5, 0.001)],
    "vadam": [_vadam(0.001, 1.0, 1.0), _vadam(0.003, 1.0, 1.0), _vadam(0.003, 10.0, 1.0)],
    "vadam-tempered": [_vadam(0.001, 1.0, 0.01), _vadam(0.003, 1.0, 0.01), _vadam(0.003, 10.0, 0.01)],
    "ivon": [_ivon(0.5, 3.0), _ivon(1.0, 3.0), _ivon(1.0, 10.0)],
    "bbb-gaussian": [
        _bbb(lr, "Gaussian", precision) for precision in (100.0, 400.0, 25.0, 7.4, 1.0) for lr in (0.001, 0.003)
    ],
    "bbb-mixture": [
        _bbb(lr, "ScaleMixture", pi, sigma1, sigma2)
        for rates, mixtures in MIXTURES
        for pi, sigma1, sigma2 in mixtures
        for lr in rates
    ],
}
"""Candidate settings by method."""
REWEIGHTED = {
    "gaussian": ("bbb-gaussian", "uniform", "BBB, Gaussian prior"),
    "mixture": ("bbb-mixture", "uniform", "BBB, scale mixture"),
    "mixture-reweighted": ("bbb-mixture", "blundell", "BBB, scale mixture, shares of the KL 2^(B - i) / (2^B - 1)"),
}
"""Setting, schedule of the KL divergence and label of the long trainings."""

PROBES: Mapping[str, tuple[dict[str, Any], str]] = {
    "probe-pixels": ({"pixel_factor": 255 / 126}, "pixels divided by 126"),
    "probe-kl": ({"kl_factor": 0.3}, "0.3 of the KL divergence"),
    "probe-both": ({"pixel_factor": 255 / 126, "kl_factor": 0.3}, "both"),
    "probe-shares": (
        {"pixel_factor": 255 / 126, "kl": "blundell"},
        "pixels divided by 126, shares 2^(B - i) / (2^B - 1)",
    ),
}
"""Changes of the protocol, and label, of trainings with the setting of the scale mixture."""


def units() -> list[Unit]:
    """Return every candidate on one validation split, and then each method's best candidate with several seeds."""
    found = []
    for name, candidates in CANDIDATES.items():
        for number, candidate in enumerate(candidates):
            config = {**PROTOCOL, "seed": 0, "part": "search", **candidate}
            found.append(Unit(f"search-{name}-{number}", config))
        for seed in range(SEEDS):
            found.append(Unit(f"final-{name}-{seed}", {**PROTOCOL, "seed": seed, "part": "final"}, phase=1))
    for name, (changes, _) in PROBES.items():
        for seed in range(SEEDS):
            found.append(Unit(f"{name}-{seed}", {**PROTOCOL, "seed": seed, "part": "final", **changes}, phase=1))
    for name, (_, schedule, _) in REWEIGHTED.items():
        config = {**PROTOCOL, "epochs": LONG_EPOCHS, "part": "final", "kl": schedule}
        for seed in range(LONG_SEEDS):
            found.append(Unit(f"{LONG}{name}-{seed}", {**config, "seed": seed}, optional=True, phase=1))
    return found


def run(unit: Unit, context: Context) -> dict[str, Any]:
    """Train one network, and return its scores.

    A candidate is trained on one part of the training digits, and scored on the other. The best one is trained on all
    of them, and scored on the test digits and on the test images of Fashion-MNIST: the average over samples, if weights
    or units are random, and the mean network.
    """
    config, digits = dict(unit.config), load("mnist")
    factor = config.get("pixel_factor", 1.0)
    x, y = factor * digits.x_train[: config["train"]], digits.y_train[: config["train"]]
    if config["part"] == "search":
        order = torch.randperm(len(digits.x_train), generator=torch.Generator().manual_seed(config["split"]))
        inner, outer = torch.split(order[: config["train"]], config["train"] - config["held_out"])
        trained = train(config, digits.x_train[inner], digits.y_train[inner], context)
        options = {"method": config["predict"], "mc_samples": config["validation_samples"]}
        own = predictive(trained, digits.x_train[outer], **options)
        return {"setting": _setting(config), "validation": scores(own, digits.y_train[outer])}
    name = unit.key.removeprefix("final-").removeprefix(LONG).rpartition("-")[0]
    chosen_for = REWEIGHTED[name][0] if unit.optional else "bbb-mixture" if name in PROBES else name
    best = best_candidate(context.results, chosen_for)
    config |= context.results[best]["setting"]
    trained = train(config, x, y, context)
    result: dict[str, Any] = {"chosen": best, "setting": _setting(config)}
    for method in dict.fromkeys((config["predict"], "mean")):
        own, other = (
            predictive(trained, factor * images, method=method, mc_samples=config["mc_samples"])
            for images in (digits.x_test, load("fashion-mnist").x_test)
        )
        counts = {name: torch.histc(p.entropy, BINS, 0.0, math.log(10.0)) for name, p in (("in", own), ("out", other))}
        result[method] = {**scores(own, digits.y_test, other), "entropy": counts}
    return result


def best_candidate(results: Mapping[str, Any], name: str) -> str:
    """Return the key of a method's candidate with the lowest NLL; the results of all are needed."""
    keys = [f"search-{name}-{number}" for number in range(len(CANDIDATES[name]))]
    return min(keys, key=lambda key: float(results[key]["validation"]["nll"]))


def _setting(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: config[name] for name in SETTING if name in config}


def report(results: Mapping[str, Any]) -> Report:
    """Return tables and a figure with the errors of the paper beside ours."""
    numbers = published(Path(__file__).with_name("paper.csv"))
    paper = {name: numbers.get(("mnist units=400", theirs, "test_error_pct")) for name, (_, theirs) in METHODS.items()}
    finals: dict[str, list[Mapping[str, Any]]] = {name: [] for name in METHODS}
    for key, result in results.items():
        if key.startswith("final-"):
            finals[key.removeprefix("final-").rpartition("-")[0]].append(result)
    rows, alone, tried = [], [], []
    for name, runs in finals.items():
        label = METHODS[name][0]
        row: list[Any] = [
            label,
            *(_number([_main(run)[m] for run in runs], digits) for m, (_, digits) in METRICS.items()),
        ]
        row.insert(2, Number(theirs.mean, None, 2) if (theirs := paper[name]) else None)
        rows.append(row)
        if "monte_carlo" in runs[0]:
            own = [_number([run["mean"][m] for run in runs], digits) for m, (_, digits) in METRICS.items()]
            both = [run["monte_carlo"]["auroc_mutual_information"] for run in runs]
            alone.append([label, *own, _number(both, 3)])
        for number in range(len(CANDIDATES[name])):
            found = results[key := f"search-{name}-{number}"]
            settings = found["setting"]["options"] | {k: v for k, v in found["setting"].items() if k == "dropout"}
            shown = ", ".join(f"{k}={v}" for k, v in settings.items())
            shown = f"**{shown}**" if key == best_candidate(results, name) else shown
            digits = {"error": 2, "nll": 4, "ece": 4}
            tried.append([label, shown, *(Number(found["validation"][m], None, n) for m, n in digits.items())])
    header = ["method", "test error, %", "published (not verified), 600 epochs", "NLL, nats", "ECE", "OOD AUROC"]
    mutual = "OOD AUROC by mutual information, with samples"
    tables = {
        "The predictive of each method at its one setting: mean and standard error over seeds": frame(header, rows),
        "The mean network alone, without sampling": frame([header[0], header[1], *header[3:], mutual], alone),
        "All candidates on the validation split; the best NLL, in bold, is the setting above": frame(
            ["method", "setting", "error, %", "NLL, nats", "ECE"], tried
        ),
    }
    probes = {name: label for name, (_, label) in PROBES.items()}
    long = {f"{LONG}{name}": label for name, (_, _, label) in REWEIGHTED.items()}
    for title, labels in (
        ("Probes of the scale mixture: mean and standard error over seeds", probes),
        (f"Bayes by Backprop after {LONG_EPOCHS} epochs: mean and standard error over seeds", long),
    ):
        rows = []
        for name, label in labels.items():
            if found := [result for key, result in results.items() if key.rpartition("-")[0] == name]:
                cells = [_number([_main(run)[m] for run in found], digits) for m, (_, digits) in METRICS.items()]
                rows.append([label, len(found), *cells])
        tables[title] = frame([header[0], "seeds", header[1], *header[3:]], rows)
    return Report(tables)


def _number(values: Sequence[float], decimals: int) -> Number:
    return Number.of(values, decimals=decimals)


def _main(run: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the scores of the method's main predictions: averages over samples, or those of the mean network."""
    found: Mapping[str, Any] = run.get("monte_carlo") or run["mean"]
    return found
