"""Curves of the finished trainings, differences between methods with errors over seeds, and conclusions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from experiments.half_cheetah.experiment import METHODS
from experiments.results import Result
from experiments.tables import Number, published

Curves = Mapping[str, Mapping[int, npt.NDArray[np.float64]]]
"""The mean return of the test episodes of each evaluation, by method and seed."""

NAMES = {
    "vadam": "Vadam",
    "vadagrad": "VadaGrad",
    "adam-explore": "Adam-Explore",
    "adam-plain": "Adam-Plain",
    "sgd-explore": "SGD-Explore",
    "sgd-plain": "SGD-Plain",
}
"""Names of the methods in the paper."""
RUNS = {"run1(HalfCheetah-v1": "paper, run 1", "run2(HalfCheetah-v1_2nd": "paper, run 2"}
"""Prefixes of the names of the authors' two stored runs, and their names here. The paper shows the first run."""
STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
"""97.5% quantiles of Student's t by degrees of freedom."""


def episodes_of(results: Mapping[str, Result]) -> list[int]:
    """Return the numbers, counted from 0, of the episodes after which the mean was evaluated."""
    return list(next(iter(results.values())).result["episodes"])


def curves_of(results: Mapping[str, Result]) -> Curves:
    """Return the curves from the results of the finished units."""
    found: dict[str, dict[int, npt.NDArray[np.float64]]] = {method: {} for method in METHODS}
    for result in results.values():
        returns = np.array(result.result["returns"], float).mean(1)
        found[result.config["method"]][result.config["seed"]] = returns
    return {method: seeds for method, seeds in found.items() if seeds}


def paper() -> dict[str, dict[str, dict[int, Number]]]:
    """Return the means over 5 seeds, with their errors, after some episodes, by run and method."""
    found: dict[str, dict[str, dict[int, Number]]] = {name: {key: {} for key in NAMES} for name in RUNS.values()}
    keys = {name: key for key, name in NAMES.items()}
    for (run, method, metric), row in published(Path(__file__).with_name("paper.csv")).items():
        episode = re.fullmatch(r"test_return@episode(\d+)", metric)
        if episode:
            name = next(name for start, name in RUNS.items() if run.startswith(start))
            found[name][keys[method]][int(episode[1])] = row.value
    return found


def difference(curves: Curves, one: str, other: str) -> tuple[Number, float, int] | None:
    """Return the difference ``one`` minus ``other``, averaged over the evaluations after the first and paired by seed.

    Methods with the same seed share the initial weights, the starts of episodes and the places of minibatches.

    Returns:
        The mean with its standard error, half the width of the 95% interval by Student's t, and the number of seeds;
        ``None`` for fewer than two seeds.
    """
    seeds = sorted(curves.get(one, {}).keys() & curves.get(other, {}).keys())
    if len(seeds) < 2:
        return None
    each = [float((curves[one][seed][1:] - curves[other][seed][1:]).mean()) for seed in seeds]
    found = Number.of(each, decimals=0)
    assert found.error is not None
    return found, STUDENT[len(seeds) - 1] * found.error, len(seeds)


def conclusion(curves: Curves, episodes: Sequence[int]) -> str:
    """Return two sentences: the differences of Vadam that exceed their 95% intervals, and the conclusion."""
    known: dict[str, tuple[Number, float, int]] = {}
    for method in METHODS:
        found = difference(curves, "vadam", method) if method != "vadam" else None
        if found is not None:
            known[method] = found
    if not known:
        return "No method has two seeds beside Vadam yet, so nothing can be concluded."
    better: list[str] = []
    worse: list[str] = []
    open_: list[str] = []
    for method, (number, half, _) in known.items():
        assert number.mean is not None
        place = better if number.mean > half else worse if number.mean < -half else open_
        place.append(f"{NAMES[method]} ({number.mean:+.0f} ± {half:.0f})")
    said = [
        f"{verb} {_listed(names)}" for verb, names in (("better than", better), ("worse than", worse)) if names
    ] or ["neither better nor worse than any other method"]
    seeds = sorted({count for *_, count in known.values()})
    first = (
        f"Averaged over the evaluations after episodes {episodes[1]} to {episodes[-1]}, and with 95% intervals of the "
        f"differences over {' or '.join(map(str, seeds))} seeds, Vadam is {' and '.join(said)}"
    )
    if open_ and (better or worse):
        one = "difference to {} is within its interval"
        is_within = one if len(open_) == 1 else "differences to {} are within theirs"
        first += f"; the {is_within.format(_listed(open_))}"
    elif open_:
        first += f": the differences are those to {_listed(open_)}"
    adam = [method for method in ("adam-explore", "adam-plain") if method in known]
    ahead = [method for method in adam if any(entry.startswith(f"{NAMES[method]} ") for entry in better)]
    if adam and len(ahead) == len(adam) == 2:
        second = (
            "So noise in the weights by Vadam does learn faster here than Adam with constant noise and without any, as "
            "the paper says of its run 1 and as its authors' run 2 does not show"
        )
    else:
        second = (
            "So that Vadam learns faster than Adam with constant noise or without any, as the paper says of its run 1, "
            "cannot be concluded from so few seeds, and the authors' run 2 does not show it either"
        )
    return f"{first}. {second}."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
