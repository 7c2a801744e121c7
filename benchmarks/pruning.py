"""Pruning by signal-to-noise against pruning by magnitude, with untouched optimisers.

    python benchmarks/pruning.py         # prints the table, writes runs/benchmarks/pruning.json

The networks are those of tasks of ``defaults.py``: a perceptron for digits, a wider one for MNIST, and a convolutional
network with BatchNorm for Fashion-MNIST. Each is trained once per seed; its weights are then ranked in two ways, and at
every level the same number of them is set to zero. Scores are of the network at the posterior's mean. "Adam" is a
network that Adam trained, at the rate that is best on most of the tasks, pruned by magnitude. What was measured is
kept in the JSON file, so that a run that was stopped goes on.
"""

from __future__ import annotations

import itertools
import json
import os
from typing import Any

import torch

import bayesadam as ba
from default_runs.comparison import paired
from default_runs.training import OURS, Trained, adam, train, untouched
from default_tasks import ALL, Data, Task
from record import arguments, conditions, save

NETWORKS = ("digits", "mnist", "fashion-5k")
LEVELS = (0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98)
RATE = 3e-3
WAYS = ("magnitude", "signal_to_noise")


def curve(trained: Trained, q: ba.DiagonalGaussian, data: Data, by: str) -> list[float]:
    """Accuracy at every level."""
    found = ba.pruning_curve(
        trained.model, q, *data.test, likelihood=trained.likelihood, fractions=LEVELS, by=by, batch_size=500
    )
    return found.scores["accuracy"]


def measure(task: Task, method: str, seed: int) -> dict[str, list[float] | None]:
    """Accuracies by way of pruning; None of a method that refuses the network."""
    data = task.load(seed)
    if method == "Adam":
        trained = train(task, data, adam(task, RATE), seed)
        return {"Adam": curve(trained, ba.DiagonalGaussian.point_mass(trained.model), data, "magnitude")}
    try:
        trained = train(task, data, untouched(method), seed)
    except RuntimeError as error:
        print(f"{task.name}: {method} not supported: {error}")
        return {f"{method} {by}": None for by in WAYS}
    q = trained.posterior()
    return {f"{method} {by}": curve(trained, q, data, by) for by in WAYS}


def summarized(runs: list[dict[str, list[float] | None]]) -> dict[str, Any]:
    """Means over the seeds, of the ways of pruning that all seeds have, and gains over magnitude paired by seed."""
    common = [way for way in runs[0] if all(one.get(way) is not None for one in runs)]
    curves = {way: [one[way] for one in runs] for way in common}
    entry: dict[str, Any] = {"seeds": len(runs), "accuracy": {}, "above_magnitude": {}}
    for way, found in curves.items():
        entry["accuracy"][way] = [_mean(level) for level in zip(*found, strict=True)]
        method, _, by = way.partition(" ")
        if by == "signal_to_noise":
            pairs = zip(found, curves[f"{method} magnitude"], strict=True)
            entry["above_magnitude"][method] = paired([_mean(ours) - _mean(other) for ours, other in pairs])
    return entry


def show(network: str, entry: dict[str, Any]) -> None:
    print(f"\n{network:<24}" + "".join(f"{level:>7.0%}" for level in LEVELS) + "   mean above magnitude")
    for way, means in entry["accuracy"].items():
        said = ""
        if way.endswith("signal_to_noise"):
            mean, error = entry["above_magnitude"][way.split()[0]]
            said = f"{mean:+.4f} ({error:.4f}) {'yes' if mean > 2 * error else 'NO'}"
        print(f"{way:<24}" + "".join(f"{value:>7.3f}" for value in means) + f"   {said}", flush=True)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--network", nargs="+", choices=NETWORKS, default=NETWORKS, metavar="NAME")
    parser.add_argument("--optimizer", nargs="+", choices=OURS, default=OURS, metavar="NAME")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = options.output / "pruning.json"
    results = json.loads(path.read_text())["results"] if path.exists() else {}
    report: dict[str, Any] = {**conditions("torch", "bayesadam"), "levels": LEVELS}
    report["networks"] = {name: summarized(list(runs.values())) for name, runs in results.items()}
    for seed, network, method in itertools.product(range(options.seeds), options.network, ["Adam", *options.optimizer]):
        found = results.setdefault(network, {}).setdefault(str(seed), {})
        if method not in {way.split()[0] for way in found}:
            found |= measure(ALL[network], method, seed)
            report["load_averages"].append(os.getloadavg())
            report["networks"] = {name: summarized(list(runs.values())) for name, runs in results.items()}
            save(options.output / "pruning.json", {**report, "results": results})
    for network, entry in report["networks"].items():
        show(network, entry)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    main()
