"""BayesAdam and ivon-opt against Adam: differences paired by seed, and whether the targets are met."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from default_runs.journal import Key
from default_runs.training import PEER
from default_tasks import Task

Records = dict[Key, dict[str, Any]]
RATIO = (1 / 3, 3.0)
"""Where the median of variance times reference must lie."""
POINT = 0.01
"""By how much accuracy may be lower."""


def compare(task: Task, method: str, records: Records) -> dict[str, Any] | None:
    """Means over seeds of what an optimiser reached on a task, and of its differences from Adam; None if not run.

    Differences are ``[mean, standard error]``, positive where it is worse than Adam. NLL, accuracy (or RMSE) and AUROC
    are compared with Adam's at its best rate, ECE and ``"tuned"``, the NLL at the best of three temperatures and with a
    temperature of the softmax, with Adam's after temperature scaling; ``"samples"`` are compared with the mean network,
    and ``"peer"`` is the difference from ivon-opt.
    """
    by_method: dict[str, dict[int, dict[str, Any]]] = {}
    for (name, seed, by), record in records.items():
        if name == task.name:
            by_method.setdefault(by, {})[seed] = record
    own, adam = by_method.get(method, {}), by_method.get("adam", {})
    seeds = sorted(set(own) & set(adam))
    if not seeds:
        return None
    failed = [own[seed]["failed"] for seed in seeds if "failed" in own[seed]]
    if failed:
        return {"failed": failed[0], "seeds": len(seeds)}
    pairs = [(own[seed], adam[seed]) for seed in seeds]
    found: dict[str, Any] = {"seeds": len(seeds)}
    for part in ("scores", "mean", "samples", "scaled"):
        found[part] = mean_of([a[part] for a, _ in pairs])
    worse: dict[str, list[float]] = {}
    for score, sign, against in (
        ("nll", 1, "scores"),
        ("accuracy", -1, "scores"),
        ("rmse", 1, "scores"),
        ("ece", 1, "scaled"),
        ("auroc", -1, "scores"),
    ):
        if score in pairs[0][0]["scores"]:
            worse[score] = paired([sign * (a["scores"][score] - b[against][score]) for a, b in pairs])
    worse["samples"] = paired([a["samples"]["nll"] - a["mean"]["nll"] for a, _ in pairs])
    if all("tuned" in a for a, _ in pairs):
        worse["tuned"] = paired([a["tuned"]["scaled"]["nll"] - b["scaled"]["nll"] for a, b in pairs])
        found["tuned"] = mean_of([a["tuned"]["scaled"] for a, _ in pairs])
    peers = by_method.get(PEER, {})
    if method != PEER and (common := [seed for seed in seeds if "scores" in peers.get(seed, {})]):
        worse["peer"] = paired([own[seed]["scores"]["nll"] - peers[seed]["scores"]["nll"] for seed in common])
    found["worse"] = worse
    for name in ("sigma", "ratio", "correlation", "share_from_start", "seconds"):
        if name in pairs[0][0]:
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


def verdict(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """On how many tasks an optimiser reaches what is asked of it; a training that failed reaches nothing."""
    ran = {name: result for name, result in found.items() if "failed" not in result}
    failed = [name for name in found if name not in ran]
    worse = {name: result["worse"] for name, result in ran.items()}

    def count(score: str) -> dict[str, int]:
        """Tasks on which it is no worse, of those that have the score."""
        means = [differences[score][0] for differences in worse.values() if score in differences]
        return {"reached": sum(mean <= 0 for mean in means), "of": len(means) + len(failed)}

    widths = [result["ratio"][1] for result in ran.values() if "ratio" in result]
    lower = [name for name, differences in worse.items() if differences.get("accuracy", [0.0])[0] > POINT]
    return {
        "tasks": len(found),
        "failed": failed,
        "accuracy_lost": lower + failed,
        **{score: count(score) for score in ("nll", "samples", "tuned", "peer", "auroc")},
        "width_learned": {"reached": sum(RATIO[0] <= ratio <= RATIO[1] for ratio in widths), "of": len(widths)},
    }
