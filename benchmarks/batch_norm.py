"""Which statistics should batch norm have in predictions: running ones, each sample's own, or the mean network's?

    python benchmarks/batch_norm.py      # prints the table, writes runs/benchmarks/batch_norm.json

A convolutional network with BatchNorm is trained by untouched BayesAdam on 2,000 images of USPS (480 steps). Statistics
are estimated on 512 training images. NLL in nats, accuracy, ECE of 32 samples, and of the network at the posterior's
mean.
"""

from __future__ import annotations

import dataclasses
import os
from functools import partial
from typing import Any

import torch

import bayesadam as ba
from default_runs.comparison import paired
from default_runs.training import train, untouched
from default_tasks import ALL
from default_tasks.images import convolutional
from record import arguments, conditions, save

TASK = dataclasses.replace(ALL["usps"], model=convolutional, size=2_000)
ROWS = 512


def measure(seed: int) -> dict[str, dict[str, float]]:
    """Scores by way of prediction."""
    data = TASK.load(seed)
    trained = train(TASK, data, untouched("bayesadam"), seed)
    q, seen, (x, y) = trained.posterior(), data.train[0][:ROWS], data.test
    predict = partial(ba.predict, trained.model, q, x, likelihood=trained.likelihood, mc_samples=32, batch_size=500)
    found = {
        "samples, running": predict(batch_norm=None),
        "samples, own": predict(batch_norm=seen),
        "mean network, running": predict(batch_norm=None, method="mean"),
        "mean network, own": predict(batch_norm=seen, method="mean"),
    }
    with q.applied(trained.model):
        torch.optim.swa_utils.update_bn(seen.split(128), trained.model)
    trained.model.eval()
    found["samples, those of the mean"] = predict(batch_norm=None)
    return {
        way: {
            "nll": ba.metrics.nll(pred, y),
            "accuracy": ba.metrics.accuracy(pred.probs, y),
            "ece": ba.metrics.expected_calibration_error(pred.probs, y),
        }
        for way, pred in found.items()
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    report: dict[str, Any] = conditions("torch", "bayesadam")
    runs = [measure(seed) for seed in range(options.seeds)]
    report["ways"] = {}
    print(f"{'statistics':<28}{'NLL':>8}{'accuracy':>10}{'ECE':>8}{'NLL to running':>20}")
    for way in runs[0]:
        means = {name: sum(one[way][name] for one in runs) / len(runs) for name in ("nll", "accuracy", "ece")}
        base = f"{way.split(',')[0]}, running"
        difference = paired([one[way]["nll"] - one[base]["nll"] for one in runs])
        report["ways"][way] = {**means, "nll_to_running": difference}
        numbers = f"{means['nll']:>8.3f}{means['accuracy']:>10.3f}{means['ece']:>8.3f}"
        print(f"{way:<28}{numbers}{difference[0]:>+12.3f} ({difference[1] or 0:.3f})", flush=True)
    report["load_averages"].append(os.getloadavg())
    save(options.output / "batch_norm.json", report)
    print(f"wrote {options.output / 'batch_norm.json'}")


if __name__ == "__main__":
    main()
