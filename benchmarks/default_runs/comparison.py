"""Each of ours against Adam: differences paired by seed, and whether the targets are met."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from default_runs.journal import Key
from default_tasks import Task

Records = dict[Key, dict[str, Any]]
EXPECTED = {"bayesadam": (1 / 3, 3.0, 0.5), "bayesadam-curvature": (0.5, 2.0, 0.7), "ivon": (0.5, 2.0, 0.7)}
"""Where the median of variance times reference must lie, and the least correlation."""
MARGIN = 0.02
"""Nats by which NLL may be worse."""
SHARE = 0.8
"""Of the tasks on which NLL and AUROC must be better."""


def compare(task: Task, method: str, records: Records) -> dict[str, Any] | None:
    """Means over seeds of what an optimiser reached on a task, and of its differences from Adam; None if not run.

    Differences are ``[mean, standard error]``, positive where ours is worse. NLL, accuracy (or RMSE) and AUROC are
    compared with Adam's at its best rate, ECE with Adam's after temperature scaling.
    """
    own = {seed: record for (name, seed, by), record in records.items() if name == task.name and by == method}
    adam = {seed: record for (name, seed, by), record in records.items() if name == task.name and by == "adam"}
    if not own:
        return None
    if reasons := [record["unsupported"] for record in own.values() if "unsupported" in record]:
        return {"unsupported": reasons[0]}
    seeds = sorted(set(own) & set(adam))
    if not seeds:
        return None
    failed = [own[seed]["failed"] for seed in seeds if "failed" in own[seed]]
    if failed:
        return {"failed": failed[0], "seeds": len(seeds)}
    pairs = [(own[seed], adam[seed]) for seed in seeds]
    found: dict[str, Any] = {"seeds": len(seeds), "scores": mean_of([a["scores"] for a, _ in pairs])}
    for score, sign, against in (
        ("nll", 1, "scores"),
        ("accuracy", -1, "scores"),
        ("rmse", 1, "scores"),
        ("ece", 1, "scaled"),
        ("auroc", -1, "scores"),
    ):
        if score in pairs[0][0]["scores"]:
            differences = [sign * (a["scores"][score] - b[against][score]) for a, b in pairs]
            found.setdefault("worse", {})[score] = paired(differences)
    for name in ("sigma", "ratio", "correlation", "share_from_start", "seconds"):
        found[name] = mean_of([a[name] for a, _ in pairs])
    return found


def mean_of(values: Sequence[Any]) -> Any:
    """Of numbers, lists or dictionaries of them, element by element; None where one is missing."""
    if isinstance(values[0], dict):
        return {key: mean_of([value[key] for value in values]) for key in values[0]}
    if isinstance(values[0], list):
        return [mean_of(list(each)) for each in zip(*values, strict=True)]
    return None if None in values else sum(values) / len(values)


def paired(differences: Sequence[float]) -> list[float]:
    """Mean and its standard error, which one difference does not have (nan); not finite counts as infinitely worse."""
    if not all(map(math.isfinite, differences)):
        return [math.inf, 0.0]
    count, mean = len(differences), sum(differences) / len(differences)
    if count == 1:
        return [mean, math.nan]
    return [mean, math.sqrt(sum((d - mean) ** 2 for d in differences) / (count - 1) / count)]


def beyond(difference: Sequence[float], margin: float = 0.0) -> bool:
    """Worse by more than a margin and two standard errors; without an error, by the margin if there is one."""
    mean, error = difference
    if math.isnan(error):
        return margin > 0 and mean > margin
    return mean > margin and mean > 2 * error


def width_learned(method: str, found: dict[str, Any]) -> bool:
    """Whether the median, the correlation and the share of the start are as they must be; no share is no objection."""
    low, high, least = EXPECTED[method]
    share = found["share_from_start"]
    fine = low <= found["ratio"][1] <= high and found["correlation"] >= least
    return fine and (share is None or share < 0.1)


def verdict(method: str, found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """How many tasks meet what is asked of an optimiser; a training that failed meets nothing."""
    supported = {name: result for name, result in found.items() if "unsupported" not in result}
    ran = {name: result for name, result in supported.items() if "failed" not in result}

    def count(tests: Iterable[bool]) -> int:
        return sum(map(bool, tests))

    worse = {name: result["worse"] for name, result in ran.items()}
    lost = [name for name, w in worse.items() if beyond(w["nll"], MARGIN)]
    failed = [name for name in supported if name not in ran]
    quality = [name for name, w in worse.items() if any(beyond(w[s]) for s in ("accuracy", "rmse", "ece") if s in w)]
    outside = [w["auroc"][0] < 0 for w in worse.values() if "auroc" in w]
    won, above = count(w["nll"][0] < 0 for w in worse.values()), count(outside)
    unlearned = [name for name, result in ran.items() if not width_learned(method, result)] + failed
    total, single = len(supported), any(result["seeds"] == 1 for result in ran.values())
    return {
        "tasks": total,
        "unsupported": [name for name in found if name not in supported],
        "failed": failed,
        "nll_won": won,
        "nll_won_enough": total > 0 and won >= SHARE * total,
        "nll_lost": lost + failed,
        "never_much_worse": not lost and not failed,
        "accuracy_or_ece_worse": quality + failed,
        "accuracy_and_ece_kept": None if single else len(quality + failed) <= 1,
        "auroc_above": above,
        "with_outside": len(outside),
        "auroc_above_enough": bool(outside) and above >= SHARE * len(outside),
        "width_not_learned": unlearned,
        "width_learned": not unlearned,
    }
