"""Away from the data, on images: do last layers in random features tell foreign images better than plain ones?

    python benchmarks/distance.py            # two tasks, three seeds: writes runs/benchmarks/distance.json

Tasks, networks and scores are those of ``defaults.py``. All networks are trained by Adam, with the best of three
learning rates by the validation NLL, once as they are, and with ``ba.distance.distance_aware``, also with its bound of
0.95. All are scored as points and with Laplace approximations over the last layer: at a prior precision of 1, and with
the default width, which does not make predictions on training data worse. ``auroc`` is that of the entropy for telling
images of the task from foreign ones.

Finished units are kept in the file: a run that was interrupted continues, ``--again`` does its units again.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import bayesadam as ba
from bayesadam.distance import distance_aware
from default_runs.comparison import paired
from default_runs.scores import finite_nll, score
from default_runs.training import RATES, Trained, adam, train
from default_tasks import TASKS, Data, Task
from default_tasks.images import fashion
from record import arguments, conditions, earlier, save

SIZE = 5_000
CASES = {
    "mnist": dataclasses.replace(TASKS["mnist"], size=SIZE),
    "fashion-5k": fashion(SIZE, 15),
}
NETWORKS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "plain": lambda model: model,
    "distance-aware": distance_aware,
    "with bounded layers": lambda model: distance_aware(model, bound=0.95),
}
POSTERIORS: dict[str, dict[str, float]] = {"prior precision 1": {"prior_precision": 1.0}, "default width": {}}
MEASURES = ("nll", "accuracy", "ece", "auroc")


def scores(trained: Trained, data: Data, q: ba.posterior.NetworkDistribution) -> dict[str, float]:
    """On the test images, and the NLL on the validation images."""
    inputs = {"validation": data.validation[0], "test": data.test[0], "outside": data.outside}
    found = {
        part: ba.predict(trained.model, q, x, likelihood=trained.likelihood, batch_size=500)
        for part, x in inputs.items()
    }
    scores = score(found["test"], data.test[1], found["outside"])
    return {**scores, "validation": finite_nll(found["validation"], data.validation[1])}


def unit(task: Task, data: Data, network: str, seed: int) -> dict[str, dict[str, float]]:
    """Scores of the network as a point and with a posterior of its last layer."""
    began = time.process_time()
    plain = task.model
    task = dataclasses.replace(task, model=lambda data: NETWORKS[network](plain(data)))
    tried = []
    for rate in RATES:
        trained = train(task, data, adam(task, rate), seed)
        point = scores(trained, data, ba.DiagonalGaussian.point_mass(trained.model)) | {"lr": rate}
        tried.append((point, trained))
    point, trained = min(tried, key=lambda one: one[0]["validation"])
    found = {"point": point}
    for part, options in POSTERIORS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of widths that are judged here
            q = ba.laplace(
                trained.model, data.train, likelihood=trained.likelihood, structure="last_layer_kron", **options
            )
        found[part] = scores(trained, data, q)
    found["point"]["seconds"] = time.process_time() - began
    return {part: {name: round(value, 5) for name, value in own.items()} for part, own in found.items()}


def summary(units: dict[str, Any], label: str, seeds: int) -> list[str]:
    """Means over the seeds, and their standard errors."""
    lines = []
    for network in NETWORKS:
        own = [units[key] for seed in range(seeds) if (key := f"{label}/{network}/{seed}") in units]
        for part in ("point", *POSTERIORS):
            cells = []
            for measure in MEASURES:
                mean, error = paired([found[part][measure] for found in own])
                cells.append(f"{measure} {mean:.4f} +- {error:.4f}")
            lines.append(f"{label}, {network}, {part}: {', '.join(cells)}")
    return lines


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--task", nargs="+", choices=list(CASES), default=list(CASES), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=3, metavar="K")
    parser.add_argument("--again", action="store_true", help="do finished units again")
    options = parser.parse_args()
    torch.set_num_threads(1)
    units = earlier(options.output / "distance.json").get("units", {})
    report = conditions("torch", "bayesadam")
    for name in options.task:
        task = CASES[name]
        label = f"{name} {SIZE}"
        for seed in range(options.seeds):
            data = task.load(seed)
            for network in NETWORKS:
                key = f"{label}/{network}/{seed}"
                if key not in units or options.again:
                    units[key] = unit(task, data, network, seed)
                    save(options.output / "distance.json", {**report, "units": dict(sorted(units.items()))})
                print(f"{key:<40}{units[key]}", flush=True)
        print("\n".join(summary(units, label, options.seeds)), flush=True)


if __name__ == "__main__":
    main()
