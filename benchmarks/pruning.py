"""Pruning by signal-to-noise against pruning by magnitude, with untouched optimisers.

    python benchmarks/pruning.py         # prints the table, writes runs/benchmarks/pruning.json

The networks are those of tasks of ``defaults.py``: a perceptron for digits, a wider one for MNIST, and a convolutional
network with BatchNorm for Fashion-MNIST. Each is trained once per seed; its weights are then ranked in two ways, and at
every level the same number of them is set to zero. Scores are of the network at the posterior's mean. "Adam" is a
network that Adam trained, at the rate that is best on most of the tasks, pruned by magnitude.
"""

from __future__ import annotations

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


def curve(trained: Trained, q: ba.DiagonalGaussian, data: Data, by: str) -> list[float]:
    """Accuracy at every level."""
    found = ba.pruning_curve(
        trained.model, q, *data.test, likelihood=trained.likelihood, fractions=LEVELS, by=by, batch_size=500
    )
    return found.scores["accuracy"]


def run(task: Task, methods: list[str], seed: int) -> dict[str, list[float]]:
    """Accuracies by way of pruning; a method that refuses the network is left out."""
    data = task.load(seed)
    trained = train(task, data, adam(task, RATE), seed)
    found = {"Adam": curve(trained, ba.DiagonalGaussian.point_mass(trained.model), data, "magnitude")}
    for method in methods:
        try:
            trained = train(task, data, untouched(method), seed)
        except RuntimeError as error:
            print(f"{task.name}: {method} not supported: {error}")
            continue
        q = trained.posterior()
        for by in ("magnitude", "signal_to_noise"):
            found[f"{method} {by}"] = curve(trained, q, data, by)
    return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--network", nargs="+", choices=NETWORKS, default=NETWORKS, metavar="NAME")
    parser.add_argument("--optimizer", nargs="+", choices=list(OURS), default=list(OURS), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    report: dict[str, Any] = {**conditions("torch", "bayesadam"), "levels": LEVELS, "networks": {}}
    for network in options.network:
        runs = [run(ALL[network], options.optimizer, seed) for seed in range(options.seeds)]
        entry: dict[str, Any] = {"accuracy": {}, "above_magnitude": {}}
        print(f"\n{network:<24}" + "".join(f"{level:>7.0%}" for level in LEVELS) + "   mean above magnitude")
        for ranking in runs[0]:
            means = [sum(level) / len(runs) for level in zip(*(one[ranking] for one in runs), strict=True)]
            entry["accuracy"][ranking] = means
            said = ""
            if ranking.endswith("signal_to_noise"):
                method = ranking.split()[0]
                gains = [_mean(one[ranking]) - _mean(one[f"{method} magnitude"]) for one in runs]
                mean, error = entry["above_magnitude"][method] = paired(gains)
                said = f"{mean:+.4f} ({error:.4f}) {'yes' if mean > 2 * error else 'NO'}"
            print(f"{ranking:<24}" + "".join(f"{value:>7.3f}" for value in means) + f"   {said}", flush=True)
        report["networks"][network] = entry
    report["load_averages"].append(os.getloadavg())
    save(options.output / "pruning.json", report)
    print(f"wrote {options.output / 'pruning.json'}")


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    main()
