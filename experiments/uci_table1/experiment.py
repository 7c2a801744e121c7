"""The units: one per data set and method. Bayesian optimisation tunes the precisions, and Vprop uses those of Vadam.

The score is the mean pointwise log-likelihood of validation data. On some data sets Vadam and BBVI are also tuned on
the joint one. That Vprop uses Vadam's precisions is as published. MC dropout has its own grid and validation part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bayesadam import population
from experiments.experiment import Context, Experiment, Report, Unit
from experiments.results import Result
from experiments.uci_table1 import dropout, ropd
from experiments.uci_table1.protocol import OnEpoch, Part, Precisions, fit, folds, scores, splits
from experiments.uci_table1.report import report

if TYPE_CHECKING:
    from bayesadam.tuning import Candidate

SMALL = {"batch_size": 32, "mc_samples": 10}
LARGE = {"batch_size": 128, "mc_samples": 5}
NARROW = {"log_noise": [1.0, 5.0], "log_prior": [-3.0, 4.0]}
WIDE = {"log_noise": [0.0, 5.0], "log_prior": [-4.0, 4.0]}
DATASETS: dict[str, tuple[dict[str, int], dict[str, list[float]], float]] = {
    "boston": (SMALL, WIDE, 1.0),
    "concrete": (SMALL, WIDE, 2.0),
    "energy": (SMALL, WIDE, 1.5),
    "kin8nm": (LARGE, WIDE, 5.0),
    "naval": (LARGE, NARROW, 8.5),
    "power": (LARGE, NARROW, 5.5),
    "wine": (LARGE, WIDE, 1.0),
    "yacht": (SMALL, WIDE, 0.7),
}
"""Settings, search space and relative cost of each data set."""

TUNED_ON_JOINT = {"vadam": ("concrete", "energy", "kin8nm", "wine"), "bbvi": ("yacht",)}
"""Data sets for which a method is also tuned on the joint log-likelihood, as in the paper, because tuning on the
pointwise log-likelihood reduces the joint one.
"""

PROTOCOL = {
    "splits": 20,
    "folds": 5,
    "fold_seed": 123,
    "rounds": 30,
    "startup": 5,
    "hidden": 50,
    "epochs": 40,
    "lr": 0.01,
    "betas": [0.9, 0.99],
    "evaluation_samples": 100,
    "seed": 123,
}

BBVI = {"method": "bbb", "initial_precision": 10.0}
"""Settings of BBVI. Standard deviations start at 1/sqrt(10), and there are twice as many samples as for Vadam."""

OURS: dict[str, dict[str, Any]] = {
    "vogn": {"method": "vogn", "lr": 0.1, "initial_hessian": 1.0},
    "ivon": {"method": "ivon", "lr": 0.01, "betas": [0.9, 0.999], "initial_hessian": 10.0},
    "ropd": {"method": "fawn-ropd", "mc_samples": 0, "initial_std": 0.05},
}
"""Methods without a published column. Their settings were chosen on folds of yacht and energy, for all data sets.

With learning rates of 0.02 and more, IVON diverges in the first epoch where the noise precision is large.
"""

FEWER_ROUNDS = 10
"""Number of rounds of tuning for the methods in ``OURS``."""


DROPOUT = {
    "method": "mc-dropout",
    "epochs": 400,
    "batch_size": 128,
    "lr": 0.001,
    "length_scale": 0.01,
    "rates": list(dropout.RATES),
    "validation_share": 0.2,
    "validation_samples": 500,
    "evaluation_samples": 10_000,
}
"""Settings of Gal's code of 2018, except for a tenth of its epochs, and 500 instead of 10,000 validation samples."""

LONG = {"epochs": 4_000}
"""The number of epochs of his stored results. These units run only if ``--only`` names them."""


class UCI(Experiment):
    """The whole experiment. The arguments shorten the protocol for tests; ``grid`` changes that of MC dropout."""

    name = "uci-table1"
    title = "Regression on eight UCI data sets"
    source = "Khan et al. 2018, Table 1 and Fig. 4"

    def __init__(
        self, datasets: Sequence[str] = tuple(DATASETS), grid: Mapping[str, Any] | None = None, **protocol: Any
    ) -> None:
        self._datasets = tuple(datasets)
        self._grid = dict(grid or {})
        self._protocol = {**PROTOCOL, **protocol}

    def units(self) -> list[Unit]:
        """Return one unit per data set and method."""
        found = []
        for dataset in self._datasets:
            settings, space, cost = DATASETS[dataset]
            config = {"dataset": dataset, **settings, **self._protocol}
            tuned = Unit(f"vadam-{dataset}", {**config, "method": "vadam", "space": space}, cost)
            found += [tuned, Unit(f"vprop-{dataset}", {**config, "method": "vprop"}, cost / 120, (tuned.key,))]
            own = {**tuned.config, **BBVI, "mc_samples": 2 * settings["mc_samples"]}
            bbvi = Unit(f"bbvi-{dataset}", own, 1.5 * cost)
            found.append(bbvi)
            for method, unit in (("vadam", tuned), ("bbvi", bbvi)):
                if dataset in TUNED_ON_JOINT[method]:
                    joint = {**unit.config, "tuned_on": "joint_log_likelihood"}
                    found.append(Unit(f"{method}-joint-{dataset}", joint, unit.cost))
            for method, own in OURS.items():
                rounds = min(FEWER_ROUNDS, self._protocol["rounds"])
                found.append(Unit(f"{method}-{dataset}", {**tuned.config, **own, "rounds": rounds}, 0.5 * cost))
            common = {name: self._protocol[name] for name in ("splits", "hidden", "seed")}
            precisions = list(dropout.NOISE_PRECISIONS[dataset])
            gal = {"dataset": dataset, **common, **DROPOUT, "noise_precisions": precisions, **self._grid}
            found.append(Unit(f"dropout-{dataset}", gal, 0.5 * cost))
            found.append(Unit(f"4000-epochs-{dataset}", {**gal, **LONG, **self._grid}, 5 * cost, optional=True))
        return found

    def run(self, unit: Unit, context: Context) -> Mapping[str, Any]:
        """Tune the precisions, or take those of another unit; then train on all training splits, and return scores."""
        config = dict(unit.config)
        if config["method"] == "mc-dropout":
            return dropout.run(config, context)
        if unit.needs:
            tuned = context.results[unit.needs[0]]["splits"]
            best = [Precisions(split["log_noise"], split["log_prior"]) for split in tuned]
            cv: list[float | None] = [None] * len(best)
        else:
            best, cv = _tune(config, context)
        return _final(config, best, cv)

    def report(self, results: Mapping[str, Result]) -> Report:
        """Return our numbers beside the paper's, and the learning curves."""
        return report(results, self._datasets)


def _seeds(split: int, fold: int) -> int:
    """Return the seed of weights, noise and order. As all rounds share it, candidates differ only in precisions."""
    return 1000 * split + fold


def _fit(
    parts: Sequence[Part],
    candidates: Sequence[Precisions],
    seeds: Sequence[int],
    config: dict[str, Any],
    on_epoch: OnEpoch | None = None,
) -> population.Population:
    train = ropd.fit if config["method"] == "fawn-ropd" else fit
    return train(parts, candidates, seeds, config, on_epoch)


def _scores(nets: population.Population, parts: Sequence[Part], config: dict[str, Any]) -> dict[str, list[float]]:
    if config["method"] == "fawn-ropd":
        return ropd.scores(nets, parts)
    return scores(nets, parts, config["evaluation_samples"], config["seed"])


def _tune(config: dict[str, Any], context: Context) -> tuple[list[Precisions], list[float | None]]:
    """Return the best precisions of every split by the mean validation score of its folds, and this score."""
    from optuna.distributions import FloatDistribution

    from bayesadam.tuning import tune

    divided = folds(config["dataset"], config["splits"], config["folds"], config["fold_seed"])

    def objective(candidates: list[Candidate]) -> list[float]:
        parts: list[Part] = []
        asked: list[Precisions] = []
        seeds: list[int] = []
        for candidate in candidates:
            parts += divided[candidate.study]
            asked += [Precisions(**candidate.params)] * config["folds"]
            seeds += [_seeds(candidate.study, 1 + fold) for fold in range(config["folds"])]
        context.progress(candidates[0].number, config["rounds"] + 1, f"round {candidates[0].number + 1}")
        found = _scores(_fit(parts, asked, seeds, config), parts, config)
        values = found[config.get("tuned_on", "log_likelihood")]
        size = config["folds"]
        return [sum(values[i : i + size]) / size for i in range(0, len(values), size)]

    studies = tune(
        objective,
        {name: FloatDistribution(*bounds) for name, bounds in config["space"].items()},
        studies=[f"{config['dataset']}-{split}" for split in range(config["splits"])],
        rounds=config["rounds"],
        startup=config["startup"],
        storage=context.folder / "studies.log",
        seed=config["seed"],
        progress=False,
    )
    context.progress(config["rounds"], config["rounds"] + 1, "test")
    return [Precisions(**study.best_params) for study in studies], [study.best_value for study in studies]


def _final(config: dict[str, Any], best: list[Precisions], cv: list[float | None]) -> dict[str, Any]:
    """Train on the whole training splits, and return test scores after every epoch."""
    parts = splits(config["dataset"], config["splits"])
    curves: dict[str, list[list[float]]] = {}

    def test(epoch: int, members: list[int], nets: population.Population) -> None:
        found = _scores(nets, [parts[member] for member in members], config)
        for metric, values in found.items():
            table = curves.setdefault(metric, [[float("nan")] * len(parts) for _ in range(config["epochs"])])
            for member, value in zip(members, values, strict=True):
                table[epoch][member] = value

    nets = _fit(parts, best, [_seeds(split, 0) for split in range(len(parts))], config, test)
    return {
        "splits": [
            {
                "log_noise": precisions.log_noise,
                "log_prior": precisions.log_prior,
                "validation_log_likelihood": value,
                **{metric: table[-1][split] for metric, table in curves.items()},
                "stopped": nets.stopped[split],
            }
            for split, (precisions, value) in enumerate(zip(best, cv, strict=True))
        ],
        "curves": {metric: [sum(row) / len(row) for row in table] for metric, table in curves.items()},
        "curves_standard_error": {metric: [_standard_error(row) for row in table] for metric, table in curves.items()},
    }


def _standard_error(values: Sequence[float]) -> float:
    """Return the population standard deviation divided by the root of the number, as in the authors' code."""
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values)) / len(values)


EXPERIMENT = UCI()
