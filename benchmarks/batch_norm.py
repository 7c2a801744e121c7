"""Batch norm statistics: averages over the samples of training, those of the mean, or those of every sample?

    python benchmarks/batch_norm.py            # two tasks: writes runs/benchmarks/batch_norm.json

Convolutional networks with three batch norm layers are trained with sampled weights. Each posterior predicts in a new
network: by its mean and by 32 samples, with the statistics that it has from the training, with those
that ``with_batch_norm`` computes at its mean, and with those of every sample.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

import bayesadam as ba
from default_runs.comparison import paired
from default_runs.training import Make, Plan, train
from default_tasks import TASKS, Data, Task
from default_tasks.images import convolutional, fashion
from record import arguments, conditions, save


def of_digits(data: Data) -> nn.Module:
    """The network of Fashion-MNIST, for rows of 64 pixels."""
    return nn.Sequential(nn.Unflatten(1, (1, 8, 8)), *convolutional(data))


CASES = {
    "digits": dataclasses.replace(TASKS["digits"], model=of_digits, epochs=20, batch_size=64),
    "fashion-5k": fashion(5_000, 15),
}


def bayesadam(**options: float) -> Make:
    """BayesAdam, with norm layers without noise."""

    def make(model: nn.Module, plan: Plan) -> torch.optim.Optimizer:
        return ba.BayesAdam(ba.param_groups(model), **dataclasses.asdict(plan), **options)

    return make


def ivon(model: nn.Module, plan: Plan) -> torch.optim.Optimizer:
    """IVON with a usual learning rate, with norm layers without noise."""
    return ba.IVON(ba.param_groups(model), lr=0.1, num_data=plan.num_data)


METHODS = {"BayesAdam": bayesadam(), "BayesAdam, temperature 1": bayesadam(temperature=1.0), "IVON": ivon}


def unit(task: Task, make: Make, seed: int) -> dict[str, list[float]]:
    """Accuracy and NLL on the test images of every way to predict in a new network."""
    data = task.load(seed)
    trained = train(task, data, make, seed)
    inputs, (x, y) = data.train[0], data.test
    scores = {}
    at_mean, model = trained.posterior, task.model(data)
    q = at_mean.with_buffers(dict(trained.model.named_buffers()))
    for name, posterior, batch_norm, method in (
        ("mean, training", q, None, "mean"),
        ("mean, at the mean", at_mean, None, "mean"),
        ("samples, training", q, None, "monte_carlo"),
        ("samples, at the mean", at_mean, None, "monte_carlo"),
        ("samples, of every sample", q, inputs, "monte_carlo"),
    ):
        options = {"likelihood": trained.likelihood, "mc_samples": 32, "method": method, "batch_size": 500}
        pred = ba.predict(model, posterior, x, batch_norm=batch_norm, **options)
        scores[name] = [ba.metrics.accuracy(pred.class_probs, y), ba.metrics.nll(pred, y)]
    return {name: [round(value, 4) for value in pair] for name, pair in scores.items()}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--task", nargs="+", choices=list(CASES), default=list(CASES), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=5, metavar="K")
    options = parser.parse_args()
    torch.set_num_threads(1)
    report = {**conditions("torch", "bayesadam"), "means": {}, "units": {}}
    for name in options.task:
        for method, make in METHODS.items():
            units = [unit(CASES[name], make, seed) for seed in range(options.seeds)]
            means = {
                way: {
                    measure: [round(number, 4) for number in paired([found[way][part] for found in units])]
                    for part, measure in enumerate(("accuracy", "nll"))
                }
                for way in units[0]
            }
            report["units"][f"{name}, {method}"], report["means"][f"{name}, {method}"] = units, means
            print(name, method, *(f"{way}: {found}" for way, found in means.items()), sep="\n  ", flush=True)
            save(options.output / "batch_norm.json", report)


if __name__ == "__main__":
    main()
