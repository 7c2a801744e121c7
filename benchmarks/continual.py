"""Continual learning: is the posterior of one task a good prior for the next?

    python benchmarks/continual.py       # prints the table, writes runs/benchmarks/continual.json

The digits of scikit-learn come in five tasks, 0 and 1, 2 and 3, and so on. One network learns one after another and
sees no task again. "classes" has one head for all ten digits; "parity" has one for two classes, even and odd. Ours are
untouched, ``prior=`` the posterior of the task before; Adam goes on from its weights, at the best of three rates by the
mean accuracy over all tasks on validation digits, an advantage that no method has in practice. The table has the mean
accuracy over the five tasks after the last one, and the difference from Adam's with its standard error over seeds.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import torch

import bayesadam as ba
from default_runs.comparison import paired
from default_runs.scores import predict
from default_runs.training import OURS, Trained, adam, fit, plan_of, untouched
from default_runs.units import RATES
from default_tasks import Data, Task
from default_tasks.images import digit_parts, perceptron
from default_tasks.task import Part
from record import arguments, conditions, save

SCENARIOS = {"classes": 10, "parity": 2}
POINTS = 0.1
"""By which the mean accuracy must be above Adam's."""


def stages(seed: int, classes: int) -> list[Data]:
    """The five tasks."""

    def only(part: Part, number: int) -> Part:
        x, y = part
        kept = y // 2 == number
        return x[kept], y[kept] % classes

    parts = digit_parts(seed, None)
    return [Data(*(only(part, number) for part in parts)) for number in range(5)]


def learn(task: Task, parts: list[Data], method: str, rate: float, seed: int) -> Trained:
    """One task after another."""
    torch.manual_seed(seed)
    model, likelihood = task.model(parts[0]), task.likelihood()
    prior: ba.DiagonalGaussian | None = None
    for data in parts:
        plan = plan_of(task, data)
        make = adam(task, rate) if method == "adam" else untouched(method, prior)
        trained = fit(task, data, model, likelihood, make(model, plan), plan, seed)
        prior = None if method == "adam" else trained.posterior()
    return trained


def accuracy(trained: Trained, parts: list[Part], *, posterior: bool) -> float:
    """Mean over the tasks."""
    each = [ba.metrics.accuracy(predict(trained, x, posterior=posterior).probs, y) for x, y in parts]
    return sum(each) / len(each)


def run(scenario: str, methods: list[str], seed: int, epochs: int) -> dict[str, float]:
    """Accuracy of every method; 0 if its training diverges."""
    parts = stages(seed, SCENARIOS[scenario])
    task = Task(
        name=scenario,
        data=lambda seed, size: parts[0],
        model=lambda data: perceptron(64, 128, 128, SCENARIOS[scenario]),
        likelihood=ba.Categorical,
        batch_size=32,
        epochs=epochs,
    )
    score = partial(accuracy, parts=[data.test for data in parts])
    tried = [learn(task, parts, "adam", rate, seed) for rate in RATES]
    best = max(tried, key=lambda one: accuracy(one, [data.validation for data in parts], posterior=False))
    found = {"adam": score(best, posterior=False)}
    for method in methods:
        try:
            found[method] = score(learn(task, parts, method, 0.0, seed), posterior=True)
        except FloatingPointError as error:
            print(f"{scenario} seed {seed}: {method} diverged: {error}", flush=True)
            found[method] = 0.0
    return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--optimizer", nargs="+", choices=list(OURS), default=list(OURS), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=30, help="of every task; default: %(default)s")
    options = parser.parse_args()
    torch.set_num_threads(1)
    report: dict[str, Any] = {**conditions("torch", "bayesadam"), "epochs": options.epochs, "scenarios": {}}
    print(f"{'scenario':<10}{'method':<8}{'accuracy':>9}{'to Adam':>18}   10 points above")
    for scenario in SCENARIOS:
        runs = [run(scenario, options.optimizer, seed, options.epochs) for seed in range(options.seeds)]
        report["scenarios"][scenario] = {}
        for method in runs[0]:
            values = [one[method] for one in runs]
            mean, error = paired([one[method] - one["adam"] for one in runs])
            entry = {"accuracy": sum(values) / len(values), "above_adam": [mean, error]}
            report["scenarios"][scenario][method] = entry
            said = "" if method == "adam" else f"{mean:+.3f} ({error:.3f})"
            fine = "" if method == "adam" else "yes" if mean >= POINTS else "NO"
            print(f"{scenario:<10}{method:<8}{entry['accuracy']:>9.3f}{said:>18}   {fine}", flush=True)
    report["load_averages"].append(os.getloadavg())
    save(options.output / "continual.json", report)
    print(f"wrote {options.output / 'continual.json'}")


if __name__ == "__main__":
    main()
