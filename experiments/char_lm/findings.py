"""Sentences on the paper's claims from the finished trainings, which are compared seed by seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.char_lm.settings import LABELS
from experiments.results import Result
from experiments.tables import Number

Runs = Mapping[int, Mapping[str, Any]]


def trained(results: Mapping[str, Result], prefix: str, method: str) -> Runs:
    """Return the results of a method's finished trainings by seed, without those that diverged."""
    found: dict[int, Mapping[str, Any]] = {}
    for key, result in results.items():
        head, _, seed = key.rpartition("-")
        if head == f"{prefix}-{method}" and result.result["diverged"] is None:
            found[int(seed)] = result.result
    return dict(sorted(found.items()))


def differences(one: Runs, other: Runs, kind: str = "mean") -> list[float]:
    """Return one method's test losses minus those of another method's mean network, for the seeds that both have."""
    return [one[seed]["test"][kind]["nll"] - other[seed]["test"]["mean"]["nll"] for seed in one if seed in other]


def findings(results: Mapping[str, Result], paper: Mapping[str, float]) -> str:
    """Return the sentences in Markdown; the text is empty if no two methods can be compared yet."""
    lines = [*_vadagrad(results, paper), *_posteriors(results)]
    return "\n".join(["## What the finished trainings say", "", *lines, ""]) if lines else ""


def _vadagrad(results: Mapping[str, Result], paper: Mapping[str, float]) -> list[str]:
    lines = []
    for prefix, decay in (("lstm", "With the decay scaled to the epochs run"), ("constant", "Without decay")):
        ours = trained(results, prefix, "vadagrad")
        for name in ("sgd", "adagrad"):
            found = differences(ours, trained(results, prefix, name))
            if found:
                gap, published = Number.of(found, decimals=3), paper["vadagrad"] - paper[name]
                lines.append(
                    f"* {decay}, VadaGrad's test loss minus {LABELS[name]}'s after equal epochs is "
                    f"{_signed(gap)} nats per character ({_seeds(found)}); after 200 epochs the paper has "
                    f"{published:+.4f}. {_verdict(gap, 'That VadaGrad is ahead')}"
                )
    return lines


def _posteriors(results: Mapping[str, Result]) -> list[str]:
    lines = []
    for network, shown in (("lstm", "LSTM"), ("transformer", "transformer")):
        ours, other = trained(results, network, "ivon"), trained(results, network, "adamw")
        for kind in dict.fromkeys(kind for run in ours.values() for kind in run["test"]):
            found = differences(ours, other, kind)
            if found and kind != "mean":
                both = [seed for seed in ours if seed in other]
                gap = Number.of(found, decimals=4)
                low = Number.of((ours[seed]["test"][kind]["perplexity"] for seed in both), decimals=3)
                high = Number.of((other[seed]["test"]["mean"]["perplexity"] for seed in both), decimals=3)
                lines.append(
                    f"* {shown}: IVON's perplexity with {kind.partition('-')[2]} samples is {low}, AdamW's after as "
                    f"many steps {high}: {_signed(gap)} nats per character ({_seeds(found)}). "
                    f"{_verdict(gap, 'That it is lower')}"
                )
    return lines


def _signed(number: Number) -> str:
    return f"{'+' if (number.mean or 0.0) > 0 else ''}{number}"


def _seeds(found: list[float]) -> str:
    return "1 seed" if len(found) == 1 else f"{len(found)} seeds"


def _verdict(gap: Number, claim: str) -> str:
    """Return the verdict on a claim by two standard errors; a single seed has no standard error."""
    if gap.mean is None or gap.error is None:
        return f"{claim} is {'what' if (gap.mean or 0.0) < 0 else 'not what'} this one seed shows."
    if abs(gap.mean) <= 2 * gap.error:
        return f"{claim} is not decided: the difference is within two standard errors."
    return f"{claim} {'holds here' if gap.mean < 0 else '**does not hold here**'}."
