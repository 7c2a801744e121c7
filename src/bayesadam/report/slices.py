"""Coverage by values of the inputs, tested with a correction for the number of groups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy import stats

from bayesadam.report.curve import LEVEL
from bayesadam.report.regression import LEVEL as NOMINAL
from bayesadam.report.values import percent


@dataclass(frozen=True)
class Slice:
    """Rows with similar values of one input.

    Attributes:
        name: Name of the input.
        values: The values in words.
        rows: Number of rows.
        right: Number of rows inside their intervals, or in the predicted class.
        expected: Expected number of such rows.
        p: Probability of a difference at least this large by chance.
        chance: The range of ``right`` that chance allows, as shares.
    """

    name: str
    values: str
    rows: int
    right: int
    expected: float
    p: float
    chance: tuple[float, float]


def slices(parts: Sequence[Mapping[str, Any]]) -> list[Slice]:
    """Return the slices from the data of the report. Only slices of a classification have "expected" and "variance"."""
    found = []
    for part in parts:
        rows, right = int(part["rows"]), int(part["right"])
        if part.get("expected") is None:
            low, high = (float(bound) / rows for bound in stats.binom.interval(0.95, rows, NOMINAL))
            test = (NOMINAL * rows, float(stats.binomtest(right, rows, NOMINAL).pvalue), (low, high))
        else:
            expected, std = float(part["expected"]), math.sqrt(max(float(part["variance"]), 1e-4 * rows))
            ends = [(expected + side * 1.96 * std) / rows for side in (-1, 1)]
            test = (
                expected,
                2.0 * float(stats.norm.sf(abs(right - expected) / std)),
                (max(0.0, ends[0]), min(1.0, ends[1])),
            )
        found.append(Slice(str(part["name"]), str(part["values"]), rows, right, *test))
    return found


def holm(p_values: Sequence[float], level: float = LEVEL) -> list[bool]:
    """Return which of several hypotheses are rejected, if any true one may be rejected with a probability of ``level``.

    The procedure (Holm 1979) is valid for any dependence between the tests.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    rejected = [False] * len(p_values)
    for rank, i in enumerate(order):
        if p_values[i] > level / (len(p_values) - rank):
            break
        rejected[i] = True
    return rejected


def table(found: Sequence[Slice], task: str) -> dict[str, Any]:
    """Return the sentence and the rows of the page's table, the worst row first."""
    failed = holm([part.p for part in found])
    order = sorted(range(len(found)), key=lambda i: (not failed[i], found[i].p))
    return {
        "sentence": sentence(found, failed, task),
        "rows": [
            (
                found[i].name,
                found[i].values,
                f"{found[i].rows:,d}",
                percent(found[i].right / found[i].rows),
                percent(found[i].expected / found[i].rows),
                " to ".join(percent(share) for share in found[i].chance),
                failed[i],
            )
            for i in order
        ],
        "what": "inside" if task == "regression" else "right",
    }


def sentence(found: Sequence[Slice], failed: Sequence[bool], task: str) -> str:
    """Return a sentence on groups that differ by more than chance, or on the smallest difference that would show."""
    what = f"the {NOMINAL:.0%} intervals cover" if task == "regression" else "the predicted class is right in"
    worst = [part for part, out in sorted(zip(found, failed, strict=True), key=lambda pair: pair[0].p) if out]
    looked = f"{len(found)} groups of rows were compared with what the model promises"
    allowing = f"by more than chance, allowing for the number of comparisons (Holm's test at {LEVEL:.0%})"
    if worst:
        named = [
            f"{percent(part.right / part.rows)} of the {part.rows:,d} rows with {part.name} {part.values} "
            f"(promised: {percent(part.expected / part.rows)})"
            for part in worst[:3]
        ]
        more = f", and {len(worst) - 3} more" if len(worst) > 3 else ""
        return f"{looked}; {len(worst)} of them differ {allowing}: {what} {', '.join(named)}{more}."
    return f"{looked}; none of them differs {allowing}{_noticed(found, task)}."


def _noticed(found: Sequence[Slice], task: str) -> str:
    """Return the coverage at which the smallest group would have been noticed, as the end of a sentence."""
    if task != "regression":
        return ""
    rows = min(part.rows for part in found)
    most = int(stats.binom.ppf(0.5 * LEVEL / len(found), rows, NOMINAL)) - 1
    if most < 0:
        return ""
    return f". In a group of {rows:,d} rows, coverage of {percent(most / rows)} or less would have been noticed"
