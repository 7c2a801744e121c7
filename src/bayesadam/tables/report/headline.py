"""The result in words: the error, the width of the intervals, their coverage, and the comparison with other models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from sklearn.metrics import precision_recall_curve, precision_recall_fscore_support, roc_auc_score

from bayesadam.tables.report.numbers import number, percent
from bayesadam.tables.report.predicted import (
    FEW,
    LEVEL,
    OURS,
    Predicted,
    PredictedClasses,
    PredictedNumbers,
    counted,
    weight_of,
)
from bayesadam.tables.report.verdict import verdict
from bayesadam.tables.report.weighted import mean_and_error, quantile

_BY_NLL = " (negative log-likelihood of the held-out rows)"
RARE = 0.3
"""Share of the rows below which recall and precision of the rarest class are shown."""


def headline(
    held_out: Predicted | None,
    unseen: Predicted | None,
    margins: Mapping[str, Any],
    *,
    gains: Mapping[str, Any] | None = None,
    recipes: Mapping[str, str] | None = None,
    cautions: Sequence[str] = (),
    time: str | None = None,
    kept: bool = False,
    classes: Sequence[str] = (),
    unit: str = "",
) -> list[Markup]:
    """Return the sentences for the top of the page, cautions and a verdict first.

    Their values are escaped and in ``<strong>``.

    Args:
        held_out: Held-out rows, for the error.
        unseen: All rows that the networks have not seen, for the verdict on uncertainty. Unless they are the same
            object as the held-out rows, the scale of the uncertainty was fitted to most of them.
        margins: NLL of each other model minus ours, and the standard error of the difference, by name of the model.
        gains: NLL of a constant minus that of every model, and the standard error of the difference.
        recipes: Code of the other models, by name.
        cautions: Notes on the target that come before everything else.
        time: Column by which the last rows are held out.
        kept: Whether this column is an input.
        classes: Names of the classes.
        unit: Unit of the target.
    """
    if held_out is None or unseen is None:
        return [Markup("No prediction of a held-out row is finite, so nothing is known about new data.")]
    rare = Markup("") if isinstance(unseen, PredictedNumbers) else _rare(unseen, classes)
    how = {model: _how(recipe, held_out.weight is not None) for model, recipe in (recipes or {}).items()}
    sentences = (
        *(_fill("<strong>Look at the target first:</strong> {}.", caution) for caution in cautions),
        _advice(margins, gains or {}, _remedy(time, kept), how),
        _error(held_out, unit),
        rare,
        _promise(unseen, fitted=unseen is not held_out),
        _knows(unseen, unit),
    )
    return [sentence for sentence in sentences if sentence]


def _advice(margins: Mapping[str, Any], gains: Mapping[str, Any], remedy: Markup, how: Mapping[str, Markup]) -> Markup:
    """Say which model to use by the NLL: one that is clearly better than ours, or else one as good, or else ours.

    A difference is clear if it is more than two of its standard errors. Models that are not clearly better than a
    constant are not advised; if there is no other, say so, and if ours is the only other, too.
    """
    comparable = {model: margin for model, margin in margins.items() if margin is not None}
    useless = [model for model, gain in gains.items() if gain is not None and not gain[0] > 2.0 * gain[1]]
    if useless and all(gain is None or model in useless for model, gain in gains.items()):
        text = "<strong>Whether any model is better than a constant cannot be told from these rows</strong>{}. {}"
        if all(gain is None or gain[0] <= 0.0 for gain in gains.values()):
            text = "<strong>No model is better than a constant here</strong>{}. {}"
        return _fill(text, _BY_NLL, remedy)
    clear = {model: above for model, (above, error) in comparable.items() if abs(above) > 2.0 * error}
    alike = [model for model in comparable if model not in clear and model not in useless]
    better = [model for model, above in clear.items() if above < 0 and model not in useless]
    if better:
        text = "<strong>The {} is better here: use it.</strong> The difference is beyond chance{}.{}"
        best = min(better, key=lambda model: clear[model])
        return _fill(text, best, _BY_NLL, how.get(best, ""))
    if alike:
        text = (
            "<strong>The {} is as good here: use it, as it is simpler.</strong> The difference between it and {} may "
            "be chance{}.{}"
        )
        return _fill(text, alike[0], OURS, _BY_NLL, how.get(alike[0], ""))
    close = " and the ".join(model for model in comparable if model not in clear)
    doubt = Markup(" But its difference from the {} may be chance.").format(close) if close else Markup("")
    worse = [model for model, above in clear.items() if above > 0]
    if worse:
        text = "<strong>Use this model:</strong> it is better than the {}, beyond chance{}.{}"
        return _fill(text, " and the ".join(worse), _BY_NLL, doubt)
    if useless and OURS in gains and OURS not in useless:
        text = "<strong>Use this model:</strong> no other one is better than a constant, beyond chance{}.{}"
        return _fill(text, _BY_NLL, doubt)
    return Markup("")


def _remedy(time: str | None, kept: bool) -> Markup:
    """Say what to do if no model is better than a constant."""
    if time is None:
        text = "More held-out rows would show smaller differences; otherwise add inputs that tell more of the target."
        return Markup(text)
    text = (
        "The held-out rows are the last ones by {}, and may differ from those before: look for what has changed, and "
        "add inputs that tell it{}."
    )
    return _fill(text, time, "" if kept else Markup(", such as {} itself").format(time))


def _how(recipe: str, weighted: bool) -> Markup:
    """Say how to get a model of scikit-learn for the columns of the table."""
    text = (
        " It is <code>{}</code>{}, with <code>from bayesadam.sklearn import TableEncoder</code> and the rest from "
        "scikit-learn."
    )
    if "TransformedTarget" in recipe:
        text += " It predicts medians, the scores are of means."
    weights = " (<code>sample_weight=w / w.mean()</code> in its last two steps)" if weighted else ""
    return _fill(text, recipe, Markup(weights))


def _rare(rows: PredictedClasses, classes: Sequence[str]) -> Markup:
    """Return AUROC, recall and precision of the rarest class, as predicted and with the threshold of the largest F1."""
    counts = np.bincount(rows.label, rows.weight, minlength=len(classes))
    rarest = int(np.where(counts > 0, counts, np.inf).argmin())
    share = float(counts[rarest] / counts.sum())
    if len(rows) < FEW or share >= RARE or not classes:
        return Markup("")
    right, given = rows.label == rarest, rows.predicted == rarest
    precision, recall, _, _ = precision_recall_fscore_support(
        right, given, average="binary", sample_weight=rows.weight, zero_division=np.nan
    )
    precisions, recalls, thresholds = precision_recall_curve(right, rows.probs[:, rarest], sample_weight=rows.weight)
    best = int((precisions * recalls / np.maximum(precisions + recalls, 1e-12))[:-1].argmax())
    area = roc_auc_score(right, rows.probs[:, rarest], sample_weight=rows.weight)
    text = (
        "Of {}, {} are <strong>{}</strong> (AUROC {}). If the most probable class is predicted, {} of them are found "
        "(recall), and {}. If this class is predicted from a probability "
        "of <strong>{}</strong> on, the recall is {} and the precision {}; this threshold was chosen on these rows, so "
        "expect less of both for new rows."
    )
    shares = recall, precision, thresholds[best], recalls[best], precisions[best]
    where = counted(rows, "row", " that its networks had not seen")
    found, sure, *rest = (percent(float(value)) for value in shares)
    sure = (
        f"{sure} of the rows predicted as this class are right (precision)" if given.any() else "no row is so predicted"
    )
    return _fill(text, where, percent(share, 1), classes[rarest], f"{area:.2f}", found, sure, *rest)


def _error(rows: Predicted, unit: str) -> Markup:
    where = counted(rows, "held-out row")
    if isinstance(rows, PredictedNumbers):
        text = (
            "On {}, the typical error of {} (root mean square) is <strong>{}</strong>, and its {} intervals are "
            "typically <strong>{}</strong> wide ({} if they ignored the inputs)."
        )
        error = np.sqrt(np.average(rows.errors[0], weights=rows.weight))
        width = quantile(rows.upper - rows.lower, 0.5, rows.weight)
        alone = np.ptp(quantile(rows.y, [0.5 - 0.5 * LEVEL, 0.5 + 0.5 * LEVEL], rows.weight))
        error, width, alone = (_with_unit(float(value), unit) for value in (error, width, alone))
        return _fill(text, where, OURS, error, percent(LEVEL), width, alone)
    counts = np.bincount(rows.label, rows.weight)
    right, usual = float(np.average(rows.right, weights=rows.weight)), float(counts.max() / counts.sum())
    text = "On {}, {} is right in <strong>{}</strong> ({} if it always named the most frequent class)."
    return _fill(text, where, OURS, percent(right, 1), percent(usual, 1))


def _promise(rows: Predicted, *, fitted: bool) -> Markup:
    """Return the verdict on the intervals or on the probabilities, to most of whose rows the scale may be fitted."""
    if len(rows) < FEW:
        return Markup("")
    where = counted(rows, "row", " that its networks had not seen")
    where += " (most of them also determine the scale of its uncertainty)" * fitted
    if isinstance(rows, PredictedNumbers):
        text = "Of {}, the intervals cover <strong>{}</strong>, {}."
        return _fill(text, where, percent(float(np.average(rows.inside, weights=rows.weight))), verdict(rows))
    means = (float(np.average(values, weights=rows.weight)) for values in (rows.confidence, rows.right))
    sure, right = (percent(mean, 1) for mean in means)
    text = "On {}, it is <strong>{}</strong> sure on average, and right in {}, {}."
    return _fill(text, where, sure, right, verdict(rows))


def _knows(rows: Predicted, unit: str) -> Markup:
    """Compare the errors of the more certain half of the rows with those of the other half, and test the difference."""
    actual, expected = rows.errors
    if len(actual) < FEW or not np.isfinite(expected).all():
        return Markup("")
    parts = np.array_split(np.argsort(expected, kind="stable"), 2)
    (sure, one), (unsure, other) = (mean_and_error(actual[part], weight_of(rows, part)) for part in parts)
    wider = unsure - sure > 2.0 * math.hypot(one, other)
    regression = isinstance(rows, PredictedNumbers)
    halves = [_with_unit(math.sqrt(mean), unit) if regression else percent(mean, 1) for mean in (sure, unsure)]
    return _fill(
        "{}: the {} is <strong>{}</strong> on the half it is surest of, <strong>{}</strong> on the other half.",
        "It knows when it is wrong" if wider else "Whether it knows when it is wrong cannot be told from these rows",
        "error" if regression else "share of errors",
        *halves,
    )


def _with_unit(value: float, unit: str) -> str:
    return f"{number(value)}\N{NO-BREAK SPACE}{unit}".strip()


def _fill(text: str, *values: Any) -> Markup:
    return Markup(text).format(*values)
