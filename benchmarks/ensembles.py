"""Ensembles of posteriors against ensembles of points: five members each, on images and on images of something else.

    python benchmarks/ensembles.py            # everything: prints, writes runs/benchmarks/ensembles.json
    python benchmarks/ensembles.py --quick    # 1,000 images, two members: under a minute
    python benchmarks/ensembles.py --task mnist --size 10000 --seeds 3

Tasks, networks and scores are those of ``defaults.py``. Both ensembles are made by ``ba.train_ensemble`` from the same
first weights and minibatches. BayesAdam has its defaults; Adam has the best of three learning rates by the validation
NLL of a single network. Predictions of BayesAdam are averages over 20 samples, four of each member. ``auroc`` is that
of the entropy for telling images of the task from foreign ones. The columns of differences are means over the seeds,
with their standard errors.

Finished units are kept in the file: a run that was interrupted continues, ``--again`` does its units again.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import time
from typing import Any

import torch
from torch import nn

import bayesadam as ba
from default_runs.scores import score, validation_nll
from default_tasks import ALL, Data, Task
from record import arguments, conditions, save

TASKS = {name: ALL[name] for name in ("mnist", "fashion-5k", "fashion-20k", "digits", "usps")}
USUAL = ("mnist", "fashion-5k")
MEMBERS, SAMPLES = 5, 4
RATES = (3e-4, 1e-3, 3e-3)
MEASURES = ("nll", "accuracy", "ece", "auroc")


def ensemble(task: Task, data: Data, method: str, seed: int, **options: Any) -> ba.Mixture:
    """Train an ensemble whose members share nothing with those of another seed."""
    return ba.train_ensemble(
        lambda: task.model(data),
        data.train,
        likelihood=task.likelihood(),
        epochs=task.epochs,
        batch_size=task.batch_size,
        method=method,
        seed=1000 * seed,
        **options,
    )


def scores(task: Task, data: Data, q: ba.Mixture, samples: int) -> dict[str, float]:
    """On the test images, and the NLL on the validation images."""
    inputs = {"validation": data.validation[0], "test": data.test[0], "outside": data.outside}
    model, count = task.model(data), samples * len(q.components)
    normalised = any(isinstance(layer, nn.BatchNorm2d) for layer in model.modules())
    options: dict[str, Any] = {"mc_samples": count, "batch_size": 500}
    if normalised and samples > 1:  # the statistics of every sample are its own
        options["batch_norm"] = data.train[0]
    found = {part: ba.predict(model, q, x, likelihood=task.likelihood(), **options) for part, x in inputs.items()}
    return {**score(found, data), "validation": validation_nll(found, data)}


def adam_rate(task: Task, data: Data, seed: int) -> float:
    """The best of three by validation."""
    tried = {
        rate: scores(task, data, ensemble(task, data, "adam", seed, members=1, lr=rate), 1)["validation"]
        for rate in RATES
    }
    return min(tried, key=tried.__getitem__)


def unit(task: Task, data: Data, method: str, seed: int, members: int) -> dict[str, float]:
    """Scores of an ensemble, and the seconds of processor time for finding and scoring it."""
    began = time.process_time()
    options = {"lr": adam_rate(task, data, seed)} if method == "adam" else {}
    q = ensemble(task, data, method, seed, members=members, **options)
    samples = 1 if method == "adam" else SAMPLES
    found = {**scores(task, data, q, samples), **options}
    return {name: round(value, 5) for name, value in found.items()} | {"seconds": round(time.process_time() - began, 1)}


def differences(units: dict[str, Any], name: str, seeds: int) -> str:
    """BayesAdam minus Adam, paired by seed."""
    pairs = [(units.get(f"{name}/bayesadam/{seed}"), units.get(f"{name}/adam/{seed}")) for seed in range(seeds)]
    cells = []
    for measure in MEASURES:
        found = [ours[measure] - theirs[measure] for ours, theirs in pairs if ours and theirs]
        if len(found) < 2:
            return f"{name}: one pair at most"
        error = statistics.stdev(found) / math.sqrt(len(found))
        cells.append(f"{measure} {statistics.mean(found):+.4f} +- {error:.4f}")
    return f"{name}, BayesAdam - Adam over {seeds} seeds: {', '.join(cells)}"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--task", nargs="+", choices=list(TASKS), default=list(USUAL), metavar="NAME")
    parser.add_argument("--size", type=int, metavar="N", help="training images, at most; default: those of the task")
    parser.add_argument("--seeds", type=int, default=3, metavar="K")
    parser.add_argument("--quick", action="store_true", help="1,000 images, two epochs, two members")
    parser.add_argument("--again", action="store_true", help="do finished units again")
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = options.output / "ensembles.json"
    units: dict[str, Any] = dict(json.loads(path.read_text())["units"]) if path.exists() else {}
    report = conditions("torch", "bayesadam")
    for name in options.task:
        task = TASKS[name]
        if options.quick:
            task = dataclasses.replace(task, size=1_000, epochs=2)
        elif options.size is not None:
            task = dataclasses.replace(task, size=options.size)
        label = f"{name} {'quick' if options.quick else task.size or 'all'}"
        for seed in range(options.seeds):
            data = task.load(seed)
            for method in ("adam", "bayesadam"):
                key = f"{label}/{method}/{seed}"
                if key not in units or options.again:
                    units[key] = unit(task, data, method, seed, 2 if options.quick else MEMBERS)
                    save(options.output / "ensembles.json", {**report, "units": dict(sorted(units.items()))})
                print(f"{key:<28}{units[key]}", flush=True)
        print(differences(units, label, options.seeds), flush=True)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
