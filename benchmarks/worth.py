"""What does the posterior buy, and what does it cost? Five ways on five tasks, in what people do with uncertainty.

    python benchmarks/worth.py        # a quarter of an hour; writes runs/benchmarks/worth.json after every unit
    python benchmarks/worth.py --ours # beside the networks of Adam in that file

Every task, of digits, clothes, concrete, a series and a text, is trained with seeds that nothing was chosen on. Adam
(AdamW for the text) has the best of three learning rates by validation, and is shown with the temperature that is best
on validation, too; BayesAdam and its ensemble by ``train_ensemble`` are untouched. Ensembles of Adam are networks from
other first weights at Adam's rate. Seconds are processor time of one training on one thread; those of Adam do not
count the two rates that were not taken.

``surest`` is the accuracy of the nine tenths of the test rows of which the method is surest, ``errors`` the AUROC with
which it tells its wrong predictions, ``foreign`` that of inputs from elsewhere, ``covered`` the share of the targets
in its 90% intervals.
"""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor, nn

import bayesadam as ba
from default_runs.comparison import paired
from default_runs.scores import calibrated, finite_nll, predict, score
from default_runs.training import RATES, Trained, adam, train, train_together, untouched
from default_tasks import TASKS, Data, Task
from record import arguments, conditions, earlier, save

SEEDS = (5, 6, 7, 8, 9)
HOURS, PAST, AHEAD = 24 * 80, 24, 10
SCORES = ("nll", "surest", "errors", "foreign", "covered", "seconds")


def load_of_a_network(seed: int, size: int | None) -> Data:
    """Windows of a day of an hourly series, and its ten next values. The parts follow each other in time; outside are
    the test windows with their hours in random order.
    """
    generator = Generator().manual_seed(seed)
    hours = torch.arange(HOURS, dtype=torch.float32)
    wander, steps = torch.zeros(HOURS), 0.2 * torch.randn(HOURS, generator=generator)
    for hour in range(1, HOURS):
        wander[hour] = 0.9 * wander[hour - 1] + steps[hour]
    series = torch.sin(hours * 2 * torch.pi / 24) + 0.4 * torch.cos(hours * 2 * torch.pi / 168) + wander
    windows = series.unfold(0, PAST + AHEAD, 1)

    def part(start: int, end: int) -> tuple[Tensor, Tensor]:
        chosen = windows[start : end - PAST - AHEAD]
        return chosen[:, :PAST, None].clone(), chosen[:, PAST:].clone()

    test = part(1_500, HOURS)
    order = torch.rand(test[0].shape, generator=generator).argsort(1)
    return Data(part(0, 1_200), part(1_200, 1_500), test, test[0].gather(1, order))


class Forecast(nn.Module):
    """A GRU, whose last state gives the next ten values."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(1, 32, batch_first=True), nn.Linear(32, AHEAD)

    def forward(self, x: Tensor) -> Tensor:
        """Windows ``(N, 24, 1)`` to ``(N, 10)``."""
        return self.head(self.gru(x)[0][:, -1])


def noise() -> ba.Gaussian:
    """One noise level for each step ahead."""
    return ba.Gaussian(torch.ones(AHEAD), learned=True)


SERIES = Task("series", load_of_a_network, lambda data: Forecast(), epochs=25, likelihood=noise)
CASES = [TASKS["digits"], TASKS["fashion-10k"], TASKS["uci-concrete"], SERIES, TASKS["characters"]]


def of_adam(task: Task, data: Data, seed: int) -> dict[str, tuple[Trained, bool]]:
    """One network and three, each with whether it has a posterior that is predicted with."""
    x, y = data.validation
    networks = {rate: train(task, data, adam(task, rate), seed) for rate in RATES}
    rate = min(RATES, key=lambda rate: finite_nll(predict(networks[rate], x, posterior=False), y))
    one = networks[rate]
    others = [train(task, data, adam(task, rate), seed + 1_000 * k) for k in (1, 2)]
    three = replace(
        one,
        posterior=ba.Mixture([network.posterior for network in (one, *others)]),
        likelihood=_average([network.likelihood for network in (one, *others)]),
        seconds=sum(network.seconds for network in (one, *others)),
    )
    return {"Adam": (one, False), "three Adam": (three, True)}


def ours(task: Task, data: Data, seed: int) -> dict[str, tuple[Trained, bool]]:
    """The same of BayesAdam."""
    known = data.training()
    one, five = train(task, known, untouched(), seed), train_together(task, known, seed)
    return {"BayesAdam": (one, True), "five BayesAdam together": (five, True)}


def _average(likelihoods: list[ba.likelihoods.Likelihood]) -> ba.likelihoods.Likelihood:
    """The likelihood whose learned numbers are the means of those of several."""
    average = copy.deepcopy(likelihoods[0])
    with torch.no_grad():
        for name, parameter in average.named_parameters():
            parameter.copy_(torch.stack([one.get_parameter(name) for one in likelihoods]).mean(0))
    return average


def with_scaled(found: dict[str, tuple[Trained, bool]], data: Data) -> dict[str, tuple[Trained, bool]]:
    """The same, and each with the temperature that is best for validation rows, if its likelihood has one."""
    every = dict(found)
    for name, (trained, has_posterior) in found.items():
        scaled = calibrated(trained, data.validation, posterior=has_posterior)
        if scaled is not None:
            every[f"{name}, scaled"] = scaled, has_posterior
    return every


def scores(trained: Trained, data: Data, *, posterior: bool) -> dict[str, float]:
    """Of the test part."""
    x, y = data.test
    prediction = predict(trained, x, posterior=posterior)
    found = score(prediction, y, predict(trained, data.outside, posterior=posterior))
    kept = {"nll": found["nll"], "foreign": found["auroc"], "seconds": trained.seconds}
    if isinstance(prediction, ba.predictive.ClassificationPredictive):
        unsure, right = prediction.entropy.flatten(), (prediction.class_probs.argmax(-1) == y).flatten().float()
        surest = unsure.argsort()[: round(0.9 * len(unsure))]
        return {**kept, "surest": float(right[surest].mean()), "errors": found["errors"]}
    low, high = prediction.quantile([0.05, 0.95])
    return {**kept, "covered": float(((low <= y) & (y <= high)).float().mean())}


def summary(runs: dict[str, dict[str, dict[str, float]]]) -> dict[str, dict[str, list[float]]]:
    """Mean and standard error of every score of every way, over the seeds."""
    ways = next(iter(runs.values()))
    return {
        way: {name: paired([one[way][name] for one in runs.values()]) for name in SCORES if name in ways[way]}
        for way in ways
    }


def main() -> None:
    parser = arguments(__doc__)
    names = [task.name for task in CASES]
    parser.add_argument("--task", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--ours", action="store_true", help="BayesAdam again, beside Adam of the earlier run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs: dict[str, Any] = earlier(options.output / "worth.json").get("runs", {})
    for task in CASES:
        for seed in SEEDS if task.name in options.task else ():
            done = runs.setdefault(task.name, {})
            if str(seed) in done and not options.ours:
                continue
            start, data = time.perf_counter(), task.load(seed)
            found = with_scaled({**({} if options.ours else of_adam(task, data, seed)), **ours(task, data, seed)}, data)
            scored = {way: scores(one, data, posterior=has) for way, (one, has) in found.items()}
            done[str(seed)] = {**done.get(str(seed), {}), **scored}
            told = {name: summary(of_seeds) for name, of_seeds in runs.items() if of_seeds}
            report = {**conditions("torch", "bayesadam"), "tasks": told, "runs": runs}
            save(options.output / "worth.json", report)
            nlls = ", ".join(f"{way} {one['nll']:.3f}" for way, one in done[str(seed)].items())
            print(f"{task.name} seed {seed}, {time.perf_counter() - start:.0f} s: {nlls}", flush=True)
    for name, ways in ((name, summary(of_seeds)) for name, of_seeds in runs.items() if of_seeds):
        print(f"\n{name:<32}" + "".join(f"{score:>18}" for score in SCORES))
        for way, values in ways.items():
            cells = [values.get(score) for score in SCORES]
            print(f"{way:<32}" + "".join(f"{'' if c is None else f'{c[0]:.3f} +- {c[1]:.3f}':>18}" for c in cells))


if __name__ == "__main__":
    main()
