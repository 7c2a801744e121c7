"""The printed tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from default_runs.comparison import EXPECTED, MARGIN, Records, mean_of
from default_tasks import Task

HEADER = (
    f"{'task':<22}{'method':<20}{'NLL':>8} {'to Adam':>16}{'acc/rmse':>10}{'ECE':>7}{'AUROC':>7}{'s':>7}"
    f"  {'variance x reference':<21}{'corr':>5}{'start':>7}"
)


def rows(task: Task, compared: Mapping[str, dict[str, Any]], records: Records) -> Iterator[str]:
    """Lines of a task: Adam, with a temperature, as an ensemble, and each of ours."""
    adam = [record for (name, _, by), record in records.items() if (name, by) == (task.name, "adam")]
    label = task.name
    for title, part in (("Adam", "scores"), ("  scaled", "scaled"), ("  of 3", "ensemble")):
        with_part = [record for record in adam if part in record]
        if with_part:
            scores, base = mean_of([r[part] for r in with_part]), mean_of([r["scores"] for r in with_part])
            gain = "" if part == "scores" else f"{scores['nll'] - base['nll']:+.4f}".ljust(8 + 1)
            seconds = mean_of([r["seconds"] for r in adam]) if part == "scores" else None
            yield f"{label:<22}{title:<20}{_scores(scores, gain)}{'' if seconds is None else f'{seconds:>7.1f}'}"
            label = ""
    for method, found in compared.items():
        if "unsupported" in found or "failed" in found:
            kind = "unsupported" if "unsupported" in found else "failed"
            yield f"{label:<22}{method:<20}{kind}: {found[kind][:110]}"
            continue
        mean, error = found["worse"]["nll"]
        gain = f"{mean:+.4f} {'      ' if math.isnan(error) else f'({error:.4f})'[:8]}"
        low, middle, high = found["ratio"]
        share = found["share_from_start"]
        yield (
            f"{label:<22}{method:<20}{_scores(found['scores'], gain)}{found['seconds']:>7.1f}"
            f"  {f'{middle:.3g} [{low:.2g}, {high:.2g}]':<21}{found['correlation']:>5.2f}"
            f"{'-' if share is None else f'{share:.2f}':>7}"
        )


def _scores(scores: Mapping[str, float], gain: str) -> str:
    quality = scores.get("accuracy", scores.get("rmse", math.nan))
    ece, auroc = (f"{scores[name]:.3f}" if name in scores else "-" for name in ("ece", "auroc"))
    return f"{scores['nll']:>8.4f} {gain:>16}{quality:>10.4f}{ece:>7}{auroc:>7}"


def lines(method: str, found: Mapping[str, Any]) -> Iterator[str]:
    """The verdict on one optimiser, one line for each target; "?" where a single seed has no errors."""

    def line(fine: bool | None, text: str) -> str:
        return f"  {'?' if fine is None else 'yes' if fine else 'NO':<4} {text}"

    total, low_high = found["tasks"], EXPECTED[method]
    yield f"{method}: {total} tasks; not supported: {_names(found['unsupported'])}"
    yield line(found["nll_won_enough"], f"NLL below best-of-three Adam's on {found['nll_won']} of {total} (>= 80%)")
    yield line(found["never_much_worse"], f"worse by more than {MARGIN} nats and 2 errors: {_names(found['nll_lost'])}")
    yield line(
        found["accuracy_and_ece_kept"],
        f"accuracy or ECE worse by more than 2 errors (at most one): {_names(found['accuracy_or_ece_worse'])}",
    )
    yield line(
        found["auroc_above_enough"], f"AUROC above Adam's on {found['auroc_above']} of {found['with_outside']} (>= 80%)"
    )
    yield line(
        found["width_learned"],
        f"width learned (median in {low_high[0]:.2g} to {low_high[1]:.2g}, correlation >= {low_high[2]}, "
        f"share of the start < 0.1), but for: {_names(found['width_not_learned'])}",
    )


def _names(names: list[str]) -> str:
    return ", ".join(names) or "none"
