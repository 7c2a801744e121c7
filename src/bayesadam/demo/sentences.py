"""Three sentences on the results, which are computed from the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayesadam.demo import curve, digits, prices

PRUNED = "95%"
"""The level of pruning in the sentences."""


def summary(record: Mapping[str, Any]) -> list[str]:
    """Return sentences on prices, digits and the posterior, in which only significant differences count."""
    return [_prices(record["prices"]), _digits(record["digits"]), _knows(record["curve"], record["digits"])]


def compared(difference: Mapping[str, float], *, lower_is_better: bool = False) -> str:
    """Return ``"better than"`` or ``"worse than"`` if the difference is significant, else ``"level with"``."""
    t = -difference["t"] if lower_is_better else difference["t"]
    return "better than" if t > 1 else "worse than" if t < -1 else "level with"


def _prices(numbers: Mapping[str, Any]) -> str:
    rows = numbers["rows"]
    words = {name: compared(found["score"], lower_is_better=True) for name, found in numbers["differences"].items()}
    score = {name: row["score"] for name, row in rows.items()}
    return (
        f"Prices whose noise grows: the 95% intervals of {prices.OURS} score {score[prices.OURS]:.0f}, "
        f"{words[prices.LINEAR]} the linear model's {score[prices.LINEAR]:.0f} and {words[prices.QUANTILES]} "
        f"quantile boosting's {score[prices.QUANTILES]:.0f}, and hold {rows[prices.OURS]['covered']:.1%} of new prices."
    )


def _digits(numbers: Mapping[str, Any]) -> str:
    ours, other = (numbers["rows"][name] for name in (digits.OURS, digits.SCALED))
    difference = numbers["differences"][digits.SCALED]
    outside = digits.PHOTOGRAPHS
    accuracy, nll, auroc = (
        compared(difference[name], lower_is_better=name == "NLL") for name in ("accuracy", "NLL", outside)
    )
    return (
        f"Digits: untouched, IVON is {accuracy} Adam at its best rate and temperature in accuracy "
        f"({ours['accuracy']:.1%} and {other['accuracy']:.1%}), {nll} it in NLL ({ours['NLL']:.3f} and "
        f"{other['NLL']:.3f}), and {auroc} it at telling photographs from digits (AUROC {ours[outside]:.2f} and "
        f"{other[outside]:.2f})."
    )


def _knows(bands: Mapping[str, Any], numbers: Mapping[str, Any]) -> str:
    band, one = (bands["rows"][name] for name in (curve.ESTIMATOR, curve.OPTIMIZER))
    ratio = band["deviation"][curve.GAP] / band["deviation"][curve.DATA]
    inside, inside_one = (row["true curve inside"][curve.GAP] for row in (band, one))
    kept = {name: row["accuracy"] for name, row in numbers["pruned"][PRUNED].items()}
    chance = compared(numbers["pruned differences"][PRUNED]["accuracy"]) == "level with"
    share = numbers["report"]["total"]["start_share"]
    return (
        f"What is not known: in a gap of the data the estimator's band is {ratio:.1f} times as wide as at the data and "
        f"holds {inside:.0%} of the true curve (IVON's, of one network, {inside_one:.0%}); of IVON's precision "
        f"{share:.1%} is still the initial one, and without {PRUNED} of its weights its accuracy is "
        f"{kept[digits.SIGNAL_TO_NOISE]:.1%} if they are chosen by signal-to-noise, {kept[digits.MAGNITUDE]:.1%} if by "
        f"magnitude ({'within' if chance else 'beyond'} chance)."
    )
