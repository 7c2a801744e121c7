"""A method against Adam: tables of validation losses, and paired differences of test losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from default_runs.journal import Records
from default_runs.scores import WAYS

WORSE = 0.01
"""Nats by which a task counts as clearly worse, if that is also two standard errors."""


def table(names: Sequence[str], adam: Records, records: Records, seeds: Sequence[int]) -> list[str]:
    """Validation NLLs, means over the seeds that a task has of both methods, and a summary.

    The difference is that of the better of mean and samples from Adam at its best rate; a training that failed is
    infinitely worse. Seconds are those of a unit with its predictions, and of one training by Adam.
    """
    columns = ("mean", "samples", "Adam", "difference", "three Adam", "seconds", "Adam's")
    lines = [f"{'task':<24}" + "".join(f"{column:>12}" for column in columns)]
    differences, seconds = {}, 0.0
    for name in names:
        common = [(name, seed) for seed in seeds if (name, seed) in records and (name, seed) in adam]
        if common:
            mean, samples = (fmean(records[key].get(way, math.inf) for key in common) for way in WAYS)
            reference, three, adams = (
                fmean(adam[key][part] for key in common) for part in ("mean", "three", "seconds")
            )
            differences[name] = min(mean, samples) - reference
            lasted = fmean(records[key]["total_seconds"] for key in common)
            values = "".join(f"{value:>12.4f}" for value in (mean, samples, reference, differences[name], three))
            lines.append(f"{name:<24}{values}{lasted:>12.1f}{adams:>12.1f}")
            seconds += lasted * len(common)
    reached = sum(difference <= 0.0 for difference in differences.values())
    worst = max(differences, key=lambda name: differences[name], default="none")
    lines.append(
        f"at most Adam on {reached} of {len(differences)} tasks, {seconds:.0f} processor seconds; worst: {worst}"
    )
    return lines


def compare(name: str, adam: Records, records: Records, together: Records, seeds: Sequence[int]) -> dict[str, Any]:
    """Means over seeds of the test scores of a task, and differences from Adam.

    ``chosen`` is the mean network or the samples, whichever is better on the seed's validation rows. Differences are
    ``[mean, standard error]``, positive where the method is worse: ``nll`` of what was chosen from Adam, ``samples``
    from the mean network, ``three`` from three Adam networks, ``five`` of five networks together from three Adam
    networks, ``errors`` and ``auroc`` of what was chosen from Adam.
    """
    pairs = [(records[name, seed], adam[name, seed]) for seed in seeds]
    fives = [(together[name, seed], adam[name, seed]) for seed in seeds if (name, seed) in together]
    failed = [own["failed"] for own, _ in (*pairs, *fives) if "failed" in own]
    if failed:
        return {"failed": failed[0]}
    tests = [(own["test"], one["test"], min(WAYS, key=lambda way: own[way])) for own, one in pairs]
    worse = {
        "nll": paired([own[way]["nll"] - one["mean"]["nll"] for own, one, way in tests]),
        "samples": paired([own["samples"]["nll"] - own["mean"]["nll"] for own, _, _ in tests]),
        "three": paired([own[way]["nll"] - one["three"]["nll"] for own, one, way in tests]),
    }
    for score in ("errors", "auroc"):
        if all(score in own[way] and score in one["mean"] for own, one, way in tests):
            worse[score] = paired([one["mean"][score] - own[way][score] for own, one, way in tests])
    ensemble: dict[str, Any] = {}
    if fives:
        worse["five"] = paired([five["test"]["samples"]["nll"] - one["test"]["three"]["nll"] for five, one in fives])
        ensemble["five"] = mean_of([five["test"]["samples"] for five, _ in fives])
        ensemble["five_seconds"] = fmean(five["seconds"] for five, _ in fives)
    return {
        "chosen": [way for _, _, way in tests],
        **{way: mean_of([own[way] for own, _, _ in tests]) for way in WAYS},
        "adam": mean_of([one["mean"] for _, one, _ in tests]),
        "three_adam": mean_of([one["three"] for _, one, _ in tests]),
        **ensemble,
        "seconds": fmean(own["seconds"] for own, _ in pairs),
        "adam_seconds": fmean(one["seconds"] for _, one in pairs),
        "three_adam_seconds": fmean(one["three_seconds"] for _, one in pairs),
        "worse": worse,
    }


def verdict(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """On how many tasks a method is no worse, by score; a training that failed is worse in all."""
    failed = [name for name, result in results.items() if "failed" in result]
    worse = {name: result["worse"] for name, result in results.items() if "failed" not in result}

    def count(score: str) -> dict[str, int]:
        means = [differences[score][0] for differences in worse.values() if score in differences]
        return {"reached": sum(mean <= 0.0 for mean in means), "of": len(means) + len(failed)}

    clearly = [name for name, one in worse.items() if one["nll"][0] > max(WORSE, 2.0 * one["nll"][1])]
    return {
        "clearly_worse": clearly + failed,
        **{score: count(score) for score in ("nll", "samples", "three", "five", "errors", "auroc")},
    }


def mean_of(values: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of the numbers that all have."""
    return {key: fmean(one[key] for one in values) for key in values[0] if all(key in one for one in values)}


def paired(differences: Sequence[float]) -> list[float]:
    """Mean and its standard error, which one difference does not have (nan); not finite counts as infinitely worse."""
    if not all(map(math.isfinite, differences)):
        return [math.inf, 0.0]
    count, mean = len(differences), sum(differences) / len(differences)
    if count == 1:
        return [mean, math.nan]
    return [mean, math.sqrt(sum((d - mean) ** 2 for d in differences) / (count - 1) / count)]
