"""The printed tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from default_runs.comparison import MARGIN, RATIO, Records, mean_of
from default_tasks import CHOSEN_ON, Task

HEADER = (
    f"{'task':<22}{'method':<21}{'NLL':>8} {'to Adam':>16}{'mean':>8}{'samples':>8}{'scaled':>8}{'tuned':>8}"
    f"{'acc/rmse':>9}{'ECE':>6}{'AUROC':>6}{'s':>6}  variance x reference"
)

LEGEND = """
to Adam: NLL less Adam's at its best rate, mean over seeds (standard error); mean, samples: of the network at the mean
and of posterior samples, the better of which by validation counts; scaled: with a temperature of the softmax that is
fitted on validation; tuned: also at the best of three temperatures of the training; variance x reference: median and
quartiles over the weights, 1 where the width is what data and prior say; *: defaults were not chosen on this task
"""


def rows(task: Task, compared: Mapping[str, dict[str, Any]], records: Records) -> Iterator[str]:
    """Lines of a task: Adam, with a temperature, as an ensemble, the peer and each of ours."""
    adam = [record for (name, _, by), record in records.items() if (name, by) == (task.name, "adam")]
    label = f"{task.name}{'' if task.name in CHOSEN_ON else ' *'}"
    for title, part in (("Adam", "scores"), ("  of 3", "ensemble")):
        with_part = [record for record in adam if part in record]
        if with_part:
            scores, base = mean_of([r[part] for r in with_part]), mean_of([r["scores"] for r in with_part])
            scaled = f"{mean_of([r['scaled']['nll'] for r in adam]):>8.4f}" if part == "scores" else " " * 8
            gap = "" if part == "scores" else f"{scores['nll'] - base['nll']:+.4f}".ljust(9)
            seconds = f"{mean_of([r['seconds'] for r in adam]):>6.1f}" if part == "scores" else ""
            nll = f"{scores['nll']:>8.4f} {gap:>16}"
            yield f"{label:<22}{title:<21}{nll}{'':>16}{scaled}{'':>8}{_quality(scores)}{seconds}"
            label = ""
    for method, found in compared.items():
        if "unsupported" in found or "failed" in found:
            kind = "unsupported" if "unsupported" in found else "failed"
            yield f"{label:<22}{method:<21}{kind}: {found[kind][:110]}"
            continue
        mean, error = found["worse"]["nll"]
        gap = f"{mean:+.4f} {'      ' if math.isnan(error) else f'({error:.4f})'[:8]}"
        parts = (found[part]["nll"] if part in found else math.nan for part in ("mean", "samples", "scaled", "tuned"))
        numbers = "".join(f"{nll:>8.4f}" if math.isfinite(nll) else f"{'-':>8}" for nll in parts)
        width = "  {1:.3g} [{0:.2g}, {2:.2g}]".format(*found["ratio"]) if "ratio" in found else ""
        yield (
            f"{label:<22}{method:<21}{found['scores']['nll']:>8.4f} {gap:>16}{numbers}{_quality(found['scores'])}"
            f"{found['seconds']:>6.1f}{width}"
        )


def _quality(scores: Mapping[str, float]) -> str:
    quality = scores.get("accuracy", scores.get("rmse", math.nan))
    ece, auroc = (f"{scores[name]:.3f}"[:5] if name in scores else "-" for name in ("ece", "auroc"))
    return f"{quality:>9.4f}{ece:>6}{auroc:>6}"


def lines(method: str, found: Mapping[str, Any]) -> Iterator[str]:
    """The verdict on one optimiser, one line for each question."""

    def share(name: str) -> str:
        return f"{found[name]['reached']} of {found[name]['of']}"

    yield f"{method}: {found['tasks']} tasks; not supported: {_names(found['unsupported'])}"
    yield f"  NLL (the better of mean network and samples, by validation) at most Adam's best of three: {share('nll')}"
    yield f"  worse by more than {MARGIN} nats and two standard errors: {_names(found['nll_lost'])}"
    yield f"  accuracy lower by more than a point: {_names(found['accuracy_lost'])}"
    yield f"  samples at least as good as the mean network: {share('samples')}"
    yield f"  best of three temperatures, scaled, at most temperature-scaled Adam's: {share('tuned')}"
    yield f"  at most ivon-opt's best of three: {share('peer')}"
    yield f"  AUROC for foreign inputs at least Adam's: {share('auroc')}"
    yield f"  median of variance x reference in [{RATIO[0]:.2g}, {RATIO[1]:.2g}]: {share('width_learned')}"


def _names(names: list[str]) -> str:
    return ", ".join(names) or "none"
