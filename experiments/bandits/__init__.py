"""Kessler et al. 2018, Table 1: contextual bandits, and the wheel of Riquelme et al. 2018."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.bandits.agents import play
from experiments.bandits.problems import LENGTHS
from experiments.framework import Context, Report, Unit
from experiments.tables import Number, frame, published

TITLE = "Contextual bandits: cumulative reward over that of the optimal policy"
SOURCE = "Kessler et al. 2018, Table 1; problems, neural-linear and the wheel of Riquelme et al. 2018"


PRECISIONS = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
"""Prior precisions, of which one is chosen for Badam as in the paper, and one for Vadam."""
WEAK = 10.0
"""Prior precision of these algorithms for comparison, at the published number of rounds."""
TUNED_ON, TUNING_ROUNDS, TUNING_RUNS, TUNING_SEED = ("statlog", "covertype"), 2_000, 3, 100
"""Problems, rounds and runs of this choice, and the seed of its first run, so that its seeds are not the table's."""


def _neural(method: str, **options: Any) -> dict[str, Any]:
    return {"belief": "neural", "options": {"method": method, **options}}


def _published(method: str, **options: Any) -> dict[str, Any]:
    return {**_neural(method, data_weight=512.0, **options), "published_settings": True}


ALGORITHMS: dict[str, dict[str, Any]] = {
    "vadam": {**_published("vadam"), "prior_precisions": list(PRECISIONS)},
    "bayesadam": _neural("bayesadam", data_weight=512.0, prior_precision=10.0),
    "badam": _neural("badam", data_weight=512.0, prior_precision=3000.0),
    "badam-mle": {**_published("badam-mle"), "prior_precisions": list(PRECISIONS)},
    "dropout": _neural("dropout"),
    "bbb": _neural("bbb", data_weight=512.0, prior_precision=10.0),
    "last-layer": _neural("last-layer", prior_precision=10.0),
    "neural-linear": _neural("neural-linear", prior_precision=0.25),
    "linear": {"belief": "linear", "options": {}},
    "epsilon-greedy": {**_neural("adam"), "policy": "epsilon-greedy"},
    "greedy": {**_neural("adam"), "policy": "greedy"},
    "uniform": {"belief": "linear", "options": {}, "policy": "uniform"},
    "all-rewards": {**_neural("adam", data_weight=512.0, prior_precision=3000.0), "policy": "greedy", "told": "all"},
}
"""The arguments of ``play`` by algorithm, the same for all problems; the page says how they were chosen."""
TOLD = ("adult", "covertype")
"""Problems of the agent that is told all rewards, which shows how much a network of this size can earn."""
LABELS = {
    "vadam": "Vadam",
    "bayesadam": "BayesAdam, temperature 1",
    "badam": "Badam (prior in the loss)",
    "badam-mle": "Badam (prior added after)",
    "dropout": "MC dropout",
    "bbb": "Bayes by Backprop",
    "last-layer": "last-layer Laplace",
    "neural-linear": "neural-linear",
    "linear": "linear-Gaussian, exact",
    "epsilon-greedy": "epsilon-greedy, 5%",
    "greedy": "greedy",
    "uniform": "uniform",
    "all-rewards": "no bandit: greedy, told the rewards of all actions",
}
PUBLISHED = {
    "vadam": "Vadam",
    "badam": "Badam",
    "badam-mle": "Badam",
    "dropout": "MC dropout",
    "bbb": "BBB",
    "greedy": "Greedy",
    "uniform": "Uniform",
}
"""Names of the algorithms in the paper."""
LONG = ("badam", "linear", "neural-linear", "uniform")
"""Algorithms that play the published number of rounds. The other algorithms stop after ``SHORT`` rounds."""
RUNS, SHORT = 10, 10_000
WHEEL = {
    "vadam": _neural("vadam", data_weight=512.0, prior_precision=10.0),
    **{name: ALGORITHMS[name] for name in ("bayesadam", "neural-linear", "linear", "greedy", "uniform")},
}
DELTAS = (0.5, 0.7, 0.9, 0.95, 0.99)
WHEEL_ROUNDS, WHEEL_RUNS = 4_000, 5
FIFTH = 4
"""Action of Statlog's third most frequent class, which is right in 5.7% of the rounds, and two others in 93.9%."""
FIRST, POINTS = 20, 50
"""Number of rounds before the first point of a curve, and number of points."""
Results = Mapping[str, Mapping[str, Any]]


def units() -> list[Unit]:
    """Return the choice of prior precisions, one unit per problem and algorithm with all runs, and those of the wheel.

    Optional are census, whose data must be downloaded, the published numbers of rounds for the algorithms that stop
    earlier, and the algorithms whose prior precision is chosen with another one.
    """
    found = []
    for name, own in ALGORITHMS.items():
        for problem in TUNED_ON if "prior_precisions" in own else ():
            for precision in PRECISIONS:
                tried = {**own, "prior_precisions": [precision], "first_seed": TUNING_SEED}
                found.append(_unit(_prior(problem, name, precision), problem, tried, TUNING_ROUNDS, TUNING_RUNS))
    for problem, length in LENGTHS.items():
        for name, own in ALGORITHMS.items():
            if name != "all-rewards" or problem in TOLD:
                rounds = length if name in LONG else min(SHORT, length)
                optional = problem == "census"
                found.append(_unit(f"table-{problem}-{name}", problem, own, rounds, RUNS, optional=optional, phase=1))
                if "prior_precisions" in own:
                    weak = _published(name, prior_precision=WEAK)
                    found.append(_unit(f"weak-{problem}-{name}", problem, weak, length, RUNS, optional=True))
                if rounds < length:
                    found.append(_unit(f"whole-{problem}-{name}", problem, own, length, RUNS, optional=True, phase=1))
    for delta in DELTAS:
        for name, own in WHEEL.items():
            found.append(_unit(f"wheel-{delta}-{name}", f"wheel-{delta}", own, WHEEL_ROUNDS, WHEEL_RUNS))
    return found


def _unit(key: str, problem: str, own: Mapping[str, Any], rounds: int, runs: int, **options: Any) -> Unit:
    return Unit(key, {"problem": problem, "rounds": rounds, "runs": runs, **own}, **options)


def _prior(problem: str, name: str, precision: float) -> str:
    return f"prior-{problem}-{name}-{precision:g}"


def _chosen(results: Results, name: str, precisions: Sequence[float]) -> float:
    """Return the prior precision with the largest mean reward over the problems of the choice, relative to the optimal
    policy.
    """

    def earned(precision: float) -> float:
        return float(np.mean([results[_prior(problem, name, precision)]["ratio"] for problem in TUNED_ON]))

    return precisions[0] if len(precisions) == 1 else max(precisions, key=earned)


def run(unit: Unit, context: Context) -> dict[str, Any]:
    """Play one problem with one algorithm in all runs, which differ in their seeds.

    Returns:
        ``"ratio"``: the cumulative reward of every run, divided by that of the optimal policy. ``"second_half"``: the
        same ratio for the second half of the rounds. ``"curve"``: the cumulative ratio of all runs together after each
        number of rounds in ``"rounds"``. ``"pulls"``: how often each action was chosen, by run. ``"prior_precision"``
        of an algorithm for which it is chosen.
    """
    config, precision = dict(unit.config), {}
    if precisions := config.pop("prior_precisions", None):
        precision = {"prior_precision": _chosen(context.results, config["options"]["method"], precisions)}
        config["options"] = {**config["options"], **precision}
    rounds, runs, first = config["rounds"], config["runs"], config.pop("first_seed", 0)
    cached = context.memory.cache(play, ignore=["progress"])
    found = []
    for seed in range(runs):
        found.append(
            cached(config, first + seed, lambda done, seed=seed: context.progress(seed * rounds + done, runs * rounds))
        )
    return {**scores(*map(np.stack, zip(*found, strict=True))), **precision}


def scores(earned: NDArray[Any], optimal: NDArray[Any], pulls: NDArray[Any]) -> dict[str, Any]:
    """Return the result of a unit from the rewards of its runs and of the optimal policy, ``(R, T)``, and the number of
    times that each action was chosen, ``(R, A)``.
    """
    rounds = earned.shape[1]
    shown = np.unique(np.linspace(min(FIRST, rounds), rounds, POINTS).round().astype(int))
    # The ratio is that of the sums over all runs, because the optimal reward of a single run may be 0 for some rounds.
    curve = earned.sum(0).cumsum()[shown - 1] / optimal.sum(0).cumsum()[shown - 1]
    half = rounds // 2
    return {
        "ratio": earned.sum(1) / optimal.sum(1),
        "second_half": earned[:, half:].sum(1) / optimal[:, half:].sum(1),
        "rounds": shown,
        "curve": curve.round(4),
        "pulls": pulls,
    }


def report(results: Results) -> Report:
    """Return our table beside the published one, and the wheel."""
    tried = {
        (name, problem): [results.get(_prior(problem, name, precision)) for precision in PRECISIONS]
        for name, own in ALGORITHMS.items()
        for problem in TUNED_ON
        if "prior_precisions" in own
    }
    wheel = {name: [results.get(f"wheel-{delta}-{name}") for delta in DELTAS] for name in WHEEL}
    tables = {
        f"Mean and standard error over {RUNS} runs; published: mean and standard deviation": _table(results, "table"),
        f"The prior precision: over {TUNING_RUNS} runs of the first {TUNING_ROUNDS:,} rounds": frame(
            ["algorithm", "problem", *(f"{precision:g}" for precision in PRECISIONS)],
            [[LABELS[name], problem.capitalize(), *map(_ratio, runs)] for (name, problem), runs in tried.items()],
        ),
        f"The wheel: mean and standard error over {WHEEL_RUNS} runs of {WHEEL_ROUNDS:,} rounds, by delta": frame(
            ["algorithm", *map(str, DELTAS)],
            [[LABELS[name], *map(_ratio, runs)] for name, runs in wheel.items() if any(runs)],
        ),
        "Statlog: the second half of runs that choose the fifth action in over 1% of rounds, and of others": _explored(
            results
        ),
    }
    if any(key.startswith("weak-") for key in results):
        tables[f"Badam as in the paper, and Vadam, with the prior precision {WEAK:g}"] = _table(results, "weak")
    return Report(tables)


def _ratio(result: Mapping[str, Any] | None) -> Number | None:
    return None if result is None else Number.of(result["ratio"], decimals=3)


def _explored(results: Results) -> pd.DataFrame:
    """Return how many runs of Statlog learn to choose its fifth action, and what these and the others earn."""
    rows = []
    for kind in ("table", "whole"):
        for name, label in LABELS.items():
            result = results.get(f"{kind}-statlog-{name}", {})
            if "pulls" in result:
                rounds, earned = result["rounds"][-1], np.array(result["second_half"])
                chosen = np.array(result["pulls"])[:, FIFTH] > 0.01 * rounds
                for which, of in (("with it", chosen), ("without it", ~chosen)):
                    mean = Number.of(earned[of], decimals=3) if of.any() else None
                    rows.append([label, f"{rounds:,}", which, str(of.sum()), mean])
    return frame(["algorithm", "rounds", "runs", "number", "reward"], rows)


def _paper() -> dict[tuple[str, str], Number]:
    numbers = published(Path(__file__).with_name("paper.csv"))
    return {(problem.lower(), method): value for (problem, method, _), value in numbers.items()}


def _table(results: Results, kind: str) -> pd.DataFrame:
    paper = _paper()
    rows = []
    for name, label in LABELS.items():
        own = [results.get(f"{kind}-{problem}-{name}") for problem in LENGTHS]
        if kind == "table":
            own = [results.get(f"whole-{problem}-{name}", one) for problem, one in zip(LENGTHS, own, strict=True)]
        if not any(own):
            continue
        whole = LENGTHS.values()
        short = any(one and one["rounds"][-1] < length for one, length in zip(own, whole, strict=True))
        rows.append([f"{label} (at most {SHORT:,} rounds)" if short else label, *map(_ratio, own)])
        if name in PUBLISHED:
            theirs = [paper.get((problem, PUBLISHED[name])) for problem in LENGTHS]
            rows.append([f"published: {PUBLISHED[name]}", *theirs])
    return frame(["algorithm", *(problem.capitalize() for problem in LENGTHS)], rows)
