"""Around four networks that Adam has trained: temperature scaling, one-line posteriors, tuned ones, and SWAG.

    python benchmarks/posthoc.py                       # writes runs/benchmarks/posthoc.json
    python benchmarks/posthoc.py --task digits         # one network
    python benchmarks/posthoc.py --method badam laplace "temperature scaling" "the network"

Every network and seed has its own split into training, held-out and test rows; what is measured is kept, and a run that
was stopped goes on. Test NLL in nats, accuracy, ECE; differences are paired by seed, with standard errors over seeds.
Tuned posteriors and temperatures see the held-out rows, one-line posteriors the training rows (Badam's: none, or them).
SWAG trains on: ten epochs of SGD at a constant rate, weights collected twice an epoch; its mean with a temperature is
beside it. Laplace posteriors are predicted linearised, the others by 64 samples.
"""

from __future__ import annotations

import collections
import copy
import itertools
import math
import re
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import bayesadam as ba
from default_runs.comparison import paired
from default_tasks.images import block, digit_parts
from default_tasks.task import Part, divide, divided
from networks import perceptron
from public_data import load
from record import arguments, conditions, earlier, save

SEEDS = (0, 1, 2)
LIKELIHOOD = ba.Categorical()


class LSTM(nn.Module):
    """Classes of windows of words."""

    def __init__(self, words: int, classes: int) -> None:
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(words, 32), nn.Dropout(0.3)
        self.recurrent, self.head = nn.LSTM(32, 64, batch_first=True), nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``(N, classes)`` for numbers of words ``(N, T)``."""
        states, _ = self.recurrent(self.dropout(self.embedding(x)))
        return self.head(self.dropout(states.mean(1)))


def convnet() -> nn.Sequential:
    body = [*block(1, 32), *block(32, 32), nn.MaxPool2d(2), *block(32, 64), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(64 * 9, 10))


def digits(seed: int) -> list[Part]:
    return digit_parts(seed, 1000, 300, 497)


def mnist(seed: int) -> list[Part]:
    data = load("mnist")
    return divided(data.x.view(len(data.x), -1) / data.x.max(), data.y, seed, 10_000, 1000, 3000)


def fashion(seed: int) -> list[Part]:
    data = load("fashion-mnist")
    x = functional.avg_pool2d(data.x.view(-1, 1, 28, 28), 2)
    return divided((x - x.mean()) / x.std(), data.y, seed, 5000, 1000, 2000)


def war_and_peace(seed: int) -> list[Part]:
    """Windows of 50 words, and which eighth of the book they are from; blocks of 20 windows are of one part."""
    data = load("text/war-and-peace")
    text = "".join(data.target_names[code] for code in data.x.tolist())
    words = re.findall(r"[a-z']+|[.,!?;]", text.lower())
    common = [word for word, _ in collections.Counter(words).most_common(2999)]
    numbers = {word: number for number, word in enumerate(common, 1)}
    coded = torch.tensor([numbers.get(word, 0) for word in words])
    windows = coded[: len(coded) // 50 * 50].view(-1, 50)
    label = torch.arange(len(windows)) * 8 // len(windows)
    blocks = torch.arange(len(windows) // 20 * 20).view(-1, 20)
    shares = [blocks[numbers].flatten() for numbers in divide(len(blocks), seed, 400, 50, 100)]
    return [(windows[rows], label[rows]) for rows in shares]


@dataclass(frozen=True)
class Task:
    """A network and its data, and how it is trained."""

    data: Callable[[int], list[Part]]
    network: Callable[[], nn.Module]
    epochs: int
    batch_size: int
    lr: float = 1e-3


TASKS = {
    "digits, MLP 64-128-128-10": Task(digits, partial(perceptron, 64, 128, 128, 10), 30, 32),
    "MNIST, MLP 784-400-400-10": Task(mnist, partial(perceptron, 784, 400, 400, 10), 10, 128),
    "Fashion-MNIST, CNN with BatchNorm": Task(fashion, convnet, 10, 64),
    "War and Peace, LSTM": Task(war_and_peace, partial(LSTM, 3000, 8), 8, 64, 2e-3),
}


def minibatches(data: Part, size: int, epochs: int) -> Iterator[Part]:
    for _ in range(epochs):
        yield from ((data[0][rows], data[1][rows]) for rows in torch.randperm(len(data[0])).split(size))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Part) -> None:
    optimizer.zero_grad()
    functional.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()


@dataclass
class Trained:
    """A network that Adam has trained, and its data."""

    task: Task
    model: nn.Module
    adam: torch.optim.Adam
    train: Part
    held_out: Part
    test: Part
    curvatures: dict[str, ba.posthoc.LaplaceApproximation] = field(default_factory=dict)

    @classmethod
    def new(cls, task: Task, seed: int) -> Trained:
        """Train."""
        torch.manual_seed(seed)
        model = task.network()
        adam = torch.optim.Adam(model.parameters(), lr=task.lr)
        train, held_out, test = task.data(seed)
        for batch in minibatches(train, task.batch_size, task.epochs):
            step(model, adam, batch)
        return cls(task, model.eval(), adam, train, held_out, test)

    def fitted(self, structure: str) -> ba.posthoc.LaplaceApproximation:
        """The curvature, found once."""
        if structure not in self.curvatures:
            self.curvatures[structure] = ba.posthoc.LaplaceApproximation(
                self.model, self.train, likelihood=LIKELIHOOD, structure=structure, progress=False
            )
        return self.curvatures[structure]

    def swag(self) -> tuple[nn.Module, ba.LowRankGaussian]:
        """A network of its own, whose batch norm has the statistics of SWAG's mean."""
        torch.manual_seed(0)
        model = copy.deepcopy(self.model).train()
        sgd, swag = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), ba.SWAG(model)
        each = math.ceil(len(self.train[0]) / self.task.batch_size) // 2
        for number, batch in enumerate(minibatches(self.train, self.task.batch_size, 10), 1):
            step(model, sgd, batch)
            if number % each == 0:
                swag.collect()
        return model.eval(), ba.predictive.with_batch_norm(model, swag.posterior(), self.train[0])


Found = tuple[nn.Module, Any, dict[str, Any]]
"""A network, its posterior, and further arguments of ``predict``; what was found is under "found"."""


def point(trained: Trained) -> Found:
    return trained.model, ba.DiagonalGaussian.point_mass(trained.model), {"method": "mean"}


def temperature_scaling(trained: Trained, model: nn.Module | None = None) -> Found:
    model = model or trained.model
    likelihood = ba.calibrate(model, trained.held_out, likelihood=LIKELIHOOD)
    found = {"temperature": float(likelihood.temperature)}
    return model, ba.DiagonalGaussian.point_mass(model), {"method": "mean", "likelihood": likelihood, "found": found}


def badam(trained: Trained, **options: Any) -> Found:
    q = ba.badam(trained.adam, trained.model, num_data=len(trained.train[0]), **options)
    return trained.model, q, {"found": {"scaled": q.hyperparameters.get("scaled", 1.0)}}


def laplace(trained: Trained, **options: Any) -> Found:
    q = ba.laplace(trained.model, trained.train, likelihood=LIKELIHOOD, **options)
    return trained.model, q, {"found": {"scaled": q.hyperparameters.get("scaled", 1.0)}}


def tuned(trained: Trained, model: nn.Module, q: Any, method: str) -> Found:
    result = ba.tune_posterior(
        q, model, trained.held_out, likelihood=LIKELIHOOD, train=trained.train, method=method, mc_samples=32
    )
    found = {**result.chosen, "scale": result.scale, "temperature": result.temperature}
    return model, result.posterior, {"method": method, "likelihood": result.likelihood, "found": found}


def tuned_laplace(trained: Trained, structure: str) -> Found:
    return tuned(trained, trained.model, trained.fitted(structure).posterior, "linearized")


def tuned_badam(trained: Trained) -> Found:
    make = partial(ba.badam, trained.adam, trained.model, num_data=len(trained.train[0]))
    return tuned(trained, trained.model, make, "monte_carlo")


def swag_mean(trained: Trained) -> Found:
    model, q = trained.swag()
    for name, parameter in model.named_parameters():
        parameter.data.copy_(q.mean[name])
    return temperature_scaling(trained, model)


def tuned_swag(trained: Trained) -> Found:
    return tuned(trained, *trained.swag(), "monte_carlo")


METHODS: dict[str, Callable[[Trained], Found]] = {
    "the network": point,
    "temperature scaling": temperature_scaling,
    "badam, prior precision 1": partial(badam, prior_precision=1.0),
    "badam": badam,
    "badam, with the training rows": lambda trained: badam(trained, data=trained.train, likelihood=LIKELIHOOD),
    "laplace, prior precision 1": lambda trained: (trained.model, trained.fitted("diagonal").posterior(1.0), {}),
    "laplace": laplace,
    "laplace, last layer": partial(laplace, structure="last_layer"),
    "badam, tuned": tuned_badam,
    "laplace, tuned": partial(tuned_laplace, structure="diagonal"),
    "laplace, last layer, tuned": partial(tuned_laplace, structure="last_layer"),
    "SWAG": lambda trained: (*trained.swag(), {}),
    "mean of SWAG, temperature scaling": swag_mean,
    "SWAG, tuned": tuned_swag,
}
REFERENCES = ("the network", "temperature scaling")
MEASURES = ("NLL", "accuracy", "ECE", "seconds")


def score(trained: Trained, method: Callable[[Trained], Found]) -> dict[str, Any]:
    torch.manual_seed(0)
    begin = time.perf_counter()
    model, q, options = method(trained)
    found = options.pop("found", {})
    seconds = time.perf_counter() - begin
    x, y = trained.test
    pred = ba.predict(model, q, x, **{"likelihood": LIKELIHOOD, "batch_size": 1000, **options})
    return {
        "NLL": ba.metrics.nll(pred, y),
        "accuracy": ba.metrics.accuracy(pred.probs, y),
        "ECE": ba.metrics.expected_calibration_error(pred.probs, y),
        "seconds": round(seconds, 1),
        **found,
    }


def summarized(results: dict[str, Any]) -> dict[str, Any]:
    """Means over the seeds for which a method is measured, and differences to the network and its temperature."""
    summary: dict[str, Any] = {}
    for name, rows in results.items():
        for method in METHODS:
            seeds = [scores for scores in rows.values() if {method, *REFERENCES} <= scores.keys()]
            if seeds:
                mean = {key: round(statistics.mean(scores[method][key] for scores in seeds), 4) for key in MEASURES}
                for other in REFERENCES:
                    pair = paired([scores[method]["NLL"] - scores[other]["NLL"] for scores in seeds])
                    mean[f"- {other}"] = [round(value, 4) for value in pair]
                summary.setdefault(name, {})[method] = {"seeds": len(seeds), **mean}
    return summary


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--task", default="", help="measure networks whose name contains this only")
    parser.add_argument("--method", nargs="+", choices=METHODS, default=METHODS, metavar="NAME", help="default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="default: %(default)s")
    options = parser.parse_args()
    results = earlier(options.output / "posthoc.json").get("results", {})
    warnings.filterwarnings("ignore", "There is a performance drop")  # torch's, of a mapped LSTM
    warnings.filterwarnings("ignore", "the posterior is too wide")  # which is what is shown
    torch.set_num_threads(1)
    for seed, name in itertools.product(options.seeds, TASKS):
        scores = results.setdefault(name, {}).setdefault(str(seed), {})
        missing = [method for method in options.method if method not in scores]
        if not missing or options.task.lower() not in name.lower():
            continue
        trained = Trained.new(TASKS[name], seed)
        for method in missing:
            scores[method] = score(trained, METHODS[method])
            print(f"{name}, seed {seed}, {method}: {scores[method]}", flush=True)
            report = {**conditions("torch", "bayesadam"), "summary": summarized(results), "results": results}
            save(options.output / "posthoc.json", report)


if __name__ == "__main__":
    main()
