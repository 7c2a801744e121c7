"""Continual learning: is the posterior of one task a good prior for the next?

    python benchmarks/continual.py       # writes runs/benchmarks/continual.json

The digits of scikit-learn come in five tasks, 0 and 1, 2 and 3, and so on. One network learns one after another and
sees no task again. "classes" has one head for all ten digits; "parity" has one for two classes, even and odd. The
networks have two hidden layers, or one ("shallow"). BayesAdam is untouched, ``prior=`` the posterior of the task
before. "kron" is Adam with the log density of a Kronecker-factored Laplace posterior in its loss, which is continued
after every task; the curvature is that at probabilities of which a share is spread over all classes, and is multiplied
by a strength. Adam goes on from its weights. The rate of Adam, and the strength of "kron", are the best by the mean
accuracy over all tasks on validation digits, an advantage that no method has in practice. The file has the mean
accuracy over the five tasks after the last one, and the difference from Adam's with its standard error over seeds. A
run that was stopped goes on.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import torch
from torch import Tensor, nn

import bayesadam as ba
from default_runs.comparison import paired
from default_runs.scores import predict
from default_runs.training import RATES, Trained, adam, fit, plan_of, untouched
from default_tasks import Data, Task
from default_tasks.images import digit_parts
from default_tasks.task import Part
from networks import perceptron
from record import arguments, conditions, earlier, save

SCENARIOS = {
    "classes": (10, (128, 128)),
    "parity": (2, (128, 128)),
    "classes, shallow": (10, (64,)),
    "parity, shallow": (2, (64,)),
}
"""Number of classes, and widths of the hidden layers."""
METHODS = ["adam", "bayesadam", "kron"]
STRENGTHS = (10.0, 30.0)
SHARE = 0.2
PENALISED_RATE = 2e-3


def stages(seed: int, classes: int) -> list[Data]:
    """The five tasks."""

    def only(part: Part, number: int) -> Part:
        x, y = part
        kept = y // 2 == number
        return x[kept], y[kept] % classes

    parts = digit_parts(seed, 1_200, 200, 397)
    return [Data(*(only(part, number) for part in parts)) for number in range(5)]


def learn(task: Task, parts: list[Data], method: str, rate: float, seed: int) -> Trained:
    """One task after another."""
    torch.manual_seed(seed)
    model, likelihood = task.model(parts[0]), task.likelihood()
    prior: ba.DiagonalGaussian | None = None
    for data in parts:
        plan = plan_of(task, data)
        make = adam(task, rate) if method == "adam" else untouched(prior)
        trained = fit(task, data, model, likelihood, make(model, plan), plan, seed)
        prior = None if method == "adam" else trained.posterior
    return trained


def accuracy(trained: Trained, parts: list[Part], *, posterior: bool) -> float:
    """Mean over the tasks."""
    each = [ba.metrics.accuracy(predict(trained, x, posterior=posterior).probs, y) for x, y in parts]
    return sum(each) / len(each)


class Spread(ba.Categorical):
    """Categorical whose curvature is that of probabilities of which a share is spread over all classes.

    A network that has learned its task is sure of its classes, and the curvature at its own probabilities is almost 0:
    it would not say that the network must not predict other classes for these inputs.
    """

    def fisher_factor(self, output: Tensor, target: Tensor) -> Tensor:
        """Factor of the curvature."""
        probs = (1.0 - SHARE) * output.softmax(-1) + SHARE / output.shape[-1]
        return super().fisher_factor(probs.log(), target)


def learn_with_penalty(task: Task, parts: list[Data], strength: float, seed: int) -> Trained:
    """One task after another by Adam, with the log density of the Laplace posterior of all tasks before."""
    torch.manual_seed(seed)
    model, likelihood = task.model(parts[0]), task.likelihood()
    prior: ba.KroneckerGaussian | None = None
    for data in parts:
        plan = plan_of(task, data)
        penalised = Penalised(likelihood, model, prior, plan.num_data)
        optimizer = torch.optim.Adam(model.parameters(), lr=PENALISED_RATE)
        trained = fit(task, data, model, penalised, optimizer, plan, seed)
        laplace = ba.posthoc.LaplaceApproximation(
            model, data.train, likelihood=Spread(), structure="kron", progress=False
        )
        prior = laplace.posterior(temperature=1.0 / strength, **({} if prior is None else {"prior": prior}))
    return dataclasses.replace(trained, likelihood=likelihood)


class Penalised(ba.Categorical):
    """The mean loss of a minibatch, minus the log density of the weights under a prior, divided by ``num_data``."""

    def __init__(self, likelihood: Any, model: nn.Module, prior: ba.KroneckerGaussian | None, num_data: int) -> None:
        super().__init__()
        self.told = likelihood, model, prior, num_data

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        likelihood, model, prior, num_data = self.told
        loss = likelihood(output, target)
        return loss if prior is None else loss - prior.log_prob(dict(model.named_parameters())).float() / num_data


def measure(scenario: str, method: str, seed: int, epochs: int) -> float:
    """Accuracy of a method; 0 if its training diverges."""
    classes, hidden = SCENARIOS[scenario]
    parts = stages(seed, classes)
    task = Task(
        name=scenario,
        data=lambda seed, size: parts[0],
        model=lambda data: perceptron(64, *hidden, classes),
        likelihood=ba.Categorical,
        batch_size=32,
        epochs=epochs,
    )
    if method == "bayesadam":
        try:
            return accuracy(learn(task, parts, method, 0.0, seed), [data.test for data in parts], posterior=True)
        except FloatingPointError as error:
            print(f"{scenario} seed {seed}: {method} diverged: {error}", flush=True)
            return 0.0
    if method == "kron":
        tried = [learn_with_penalty(task, parts, strength, seed) for strength in STRENGTHS]
    else:
        tried = [learn(task, parts, "adam", rate, seed) for rate in RATES]
    best = max(tried, key=lambda one: accuracy(one, [data.validation for data in parts], posterior=False))
    return accuracy(best, [data.test for data in parts], posterior=False)


def summarized(runs: list[dict[str, float]]) -> dict[str, Any]:
    """Means over the seeds that have all methods of the first, and differences from Adam."""
    runs = [one for one in runs if one.keys() >= runs[0].keys()]
    summary: dict[str, Any] = {}
    for method in runs[0]:
        mean, error = paired([one[method] - one["adam"] for one in runs])
        values = [one[method] for one in runs]
        summary[method] = {"accuracy": sum(values) / len(values), "above_adam": [mean, error], "seeds": len(runs)}
    return summary


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--method", nargs="+", choices=METHODS, default=METHODS, metavar="NAME")
    parser.add_argument("--scenario", nargs="+", choices=list(SCENARIOS), default=list(SCENARIOS), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=30, help="of every task; default: %(default)s")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = earlier(options.output / "continual.json").get("results", {})
    report: dict[str, Any] = {**conditions("torch", "bayesadam"), "epochs": options.epochs}
    methods = ["adam", *(method for method in options.method if method != "adam")]
    for seed, scenario, method in itertools.product(range(options.seeds), options.scenario, methods):
        found = results.setdefault(scenario, {}).setdefault(str(seed), {})
        if method not in found:
            found[method] = measure(scenario, method, seed, options.epochs)
            print(f"{scenario}, seed {seed}, {method}: {found[method]:.3f}", flush=True)
            report["scenarios"] = {name: summarized(list(runs.values())) for name, runs in results.items()}
            save(options.output / "continual.json", {**report, "results": results})


if __name__ == "__main__":
    main()
