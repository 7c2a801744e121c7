"""The evaluation on held-out rows: predictions of every row, scores, and baselines from scikit-learn."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler

from bayesadam import metrics
from bayesadam.predictive import ClassificationPredictive, GaussianPredictive, MixturePredictive
from bayesadam.tables.estimators import target_transform
from bayesadam.tables.estimators.threads import threads_for
from bayesadam.tables.report.predicted import LEVEL, OURS
from bayesadam.tables.report.weighted import mean_and_error
from bayesadam.tables.runs.predict_table import means
from bayesadam.tables.runs.prepare import Prepared

if TYPE_CHECKING:
    from bayesadam.functional.monotone import Monotone

MAX_ROWS, MAX_VALUES = 100_000, 20_000_000
"""Maximum number of training rows of a baseline, drawn at random, and of their values: more would take minutes and
change little.
"""
ITERATIONS = 500
"""Maximum number of iterations of a logistic regression."""
CONSTANT = "constant"
"""Name of the baseline that ignores the inputs."""
_NAMES = ("linear model", "gradient boosting", CONSTANT)
_INVERSES = {"log": "exp", "log1p": "expm1", "sqrt": "square"}
_CALIBRATION = 0.2

Arrays = dict[str, NDArray[np.float64]]
Scores = dict[str, float | None]


def predict_held_out(pred: Any, y: NDArray[Any], weight: NDArray[np.float64] | None = None) -> Arrays:
    """Return the values of each row that scores and charts need, by name.

    Args:
        pred: Predictive distribution of the rows.
        y: ``(N,)``, values or indices of classes.
        weight: Weights of the rows, ``(N,)``, which are returned as "weight"; with ``None`` they are equal.

    Returns:
        Regression: "y", "mean", "std", "epistemic_std", "lower", "upper", "pit", "nll", "crps". If a target has a
        probability of its own, as counts do, a random part of it is subtracted in "pit" (Czado et al. 2009), which is
        then uniform for a right model.
        Classification: "label", "probs" (``(N, C)``), "entropy", "mutual_information", "nll".
    """
    if hasattr(pred, "probs"):
        values = {
            "label": y,
            "probs": pred.probs,
            "entropy": pred.entropy,
            "mutual_information": pred.mutual_information,
            "nll": -pred.log_prob(torch.as_tensor(y, device=pred.device)),
        }
    else:
        tail = 0.5 * (1.0 - LEVEL)
        target = torch.as_tensor(y, dtype=pred.mean.dtype, device=pred.device)
        lower, upper = pred.quantile([tail, 1.0 - tail])
        nll, below = -pred.log_prob(target), pred.cdf(target)
        discrete = isinstance(pred, MixturePredictive) and pred.likelihood.discrete
        # Quantiles are limited for targets that are never negative: 0 then has the probability of what is below it.
        mass = (-nll).exp() if discrete else below.where(target == lower, 0.0)
        part = torch.rand(len(y), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        values = {
            "y": y,
            "mean": means(pred),
            "std": pred.variance.sqrt(),
            "epistemic_std": pred.epistemic.sqrt(),
            "lower": lower,
            "upper": upper,
            "pit": below - mass * part.to(pred.device),
            "nll": nll,
            "crps": metrics.predictive_crps(pred, target),
        }
    if weight is not None:
        values["weight"] = weight
    return {name: np.asarray(torch.as_tensor(value).detach().cpu(), dtype=np.float64) for name, value in values.items()}


def scores(held_out: Arrays, seconds: float) -> Scores:
    """Return the scores of predictions from :func:`predict_held_out`.

    The NLL is in nats, RMSE and CRPS are in the units of the target. Rows count by their weights.

    Args:
        held_out: Predictions and targets.
        seconds: Duration of the fit.
    """
    weight = held_out.get("weight")

    def mean(numbers: Any) -> float:
        return float(np.average(numbers, weights=weight))

    values: dict[str, float] = {"NLL": mean(held_out["nll"])}
    if "probs" in held_out:
        labels, probs = held_out["label"].astype(np.int64), held_out["probs"]
        rows = torch.from_numpy(probs), torch.from_numpy(labels)
        values["accuracy"] = mean(probs.argmax(1) == labels)
        values["ECE"] = metrics.expected_calibration_error(
            *rows, weight=None if weight is None else torch.from_numpy(weight)
        )
        values["Brier"] = mean(((probs - np.eye(probs.shape[1])[labels]) ** 2).sum(1))
    else:
        y = held_out["y"]
        with np.errstate(invalid="ignore"):
            values["RMSE"] = math.sqrt(mean((held_out["mean"] - y) ** 2))
        values["CRPS"] = mean(held_out["crps"])
        values["coverage 95%"] = mean((held_out["lower"] <= y) & (y <= held_out["upper"]))
    values["fit seconds"] = seconds
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def margin(ours: Arrays, other: Arrays) -> list[float] | None:
    """Return the NLL of another model minus ours on the same rows, and the standard error of the difference.

    The result is ``None`` for a single row, or if a number is not finite.
    """
    above = other["nll"] - ours["nll"]
    if len(above) < 2 or not np.isfinite(above).all():
        return None
    return list(mean_and_error(above, ours.get("weight")))


def compared(ours: Arrays, others: Mapping[str, Arrays]) -> dict[str, dict[str, Any]]:
    """Return "margins" of the other models but the constant, by :func:`margin`, and "gains": those of the constant over
    every model, which are positive if the model is better.
    """
    if CONSTANT not in others:
        return {"margins": {}, "gains": {}}
    models = {OURS: ours, **{name: rows for name, rows in others.items() if name != CONSTANT}}
    return {
        "margins": {name: margin(ours, rows) for name, rows in models.items() if name != OURS},
        "gains": {name: margin(rows, others[CONSTANT]) for name, rows in models.items()},
    }


def baseline_rows(prepared: Prepared) -> int:
    """Return the maximum number of training rows of a baseline."""
    return int(min(MAX_ROWS, max(MAX_VALUES // prepared.matrix.shape[1], 1_000)))


def baselines(prepared: Prepared, functions: Sequence[Monotone] = ()) -> dict[str, tuple[Arrays, float]]:
    """Return the predictions of the held-out rows and the seconds of the fit, by name of the model.

    The predictions of a regression model are Gaussian, with the same standard deviation for all rows. It is that of the
    residuals on a fifth of the rows when the model is trained on the other rows, because residuals on training rows are
    too small. The model is then trained on all rows.

    Args:
        prepared: The table.
        functions: The transform of the target that is Gaussian, alone in a sequence, or none; scores are in the
            target's units.
    """
    split, classes, seed = prepared.split, len(prepared.target.classes), prepared.settings.seed
    order = np.random.default_rng(seed).permutation(len(split.training))[: baseline_rows(prepared)]
    training = split.training[order]
    weight, weight_test = prepared.weights_of(training), prepared.weights_of(split.held_out)
    scaler = StandardScaler().fit(prepared.matrix[training], sample_weight=weight)
    x, x_test = (scaler.transform(prepared.matrix[rows]) for rows in (training, split.held_out))
    y, y_test = prepared.y[training], prepared.y[split.held_out]
    if functions:
        y = target_transform.transformed(functions, y[:, None].astype(np.float64))[:, 0]
    weight = None if weight is None else weight / weight.mean()
    few = max(round(_CALIBRATION * len(x)), 1)
    results: dict[str, tuple[Arrays, float]] = {}
    for name, model in _models(classes > 0, seed).items():
        # One thread: on a busy machine, threads that wait for each other take minutes.
        with warnings.catch_warnings(), threads_for(1):
            warnings.simplefilter("ignore")  # a baseline that has not converged is still useful
            if not classes:
                model.fit(x[few:], y[few:], None if weight is None else weight[few:])
                residuals = y[:few] - model.predict(x[:few])
            begin = time.perf_counter()
            model.fit(x, y, weight)
            seconds = time.perf_counter() - begin
        if classes:
            probs = np.zeros((len(x_test), classes))
            probs[:, model.classes_] = model.predict_proba(x_test)
            pred: Any = categorical(probs)
        else:
            error = float(np.average(residuals**2, weights=None if weight is None else weight[:few]))
            std = max(math.sqrt(error), 1e-6 * float(y.std()))
            pred = gaussian(model.predict(x_test).astype(np.float64), std)
            pred = target_transform.in_units(pred, functions) if functions else pred
        results[name] = predict_held_out(pred, y_test, weight_test), seconds
    return results


def recipes(prepared: Prepared, transform: str = "none") -> dict[str, str]:
    """Return each baseline but the constant as code: a pipeline for a data frame of all columns but the target.

    The code names the arguments of the encoder that are not defaults, and drops the columns that are no inputs because
    they have the weights, groups or times of the rows. There is no code for transforms of the target without a name in
    NumPy.
    """
    if transform not in ("none", *_INVERSES):
        return {}
    encoder, inputs = prepared.encoder, [*prepared.encoder.feature_names_in_, prepared.settings.target]
    special = [name for name in prepared.file.table.column_names if name not in inputs]
    options, defaults = encoder.get_params() | {"drop": (*encoder.drop, *special)}, type(encoder)().get_params()
    given = [
        f"{name}={list(value) if isinstance(value, tuple) else value!r}"
        for name, value in options.items()
        if value != defaults[name]
    ]
    models = _models(len(prepared.target.classes) > 0, prepared.settings.seed)
    start, end = f"make_pipeline(TableEncoder({', '.join(given)}), StandardScaler(), ", ")"
    if transform != "none":
        start += "TransformedTargetRegressor("
        end = f", func=np.{transform}, inverse_func=np.{_INVERSES[transform]}))"
    return {name: f"{start}{model!r}{end}" for name, model in models.items() if name != CONSTANT}


def _models(classification: bool, seed: int) -> dict[str, Any]:
    if classification:
        models = LogisticRegression(max_iter=ITERATIONS), HistGradientBoostingClassifier(random_state=seed)
        return dict(zip(_NAMES, (*models, DummyClassifier(strategy="prior")), strict=True))
    return dict(zip(_NAMES, (Ridge(), HistGradientBoostingRegressor(random_state=seed), DummyRegressor()), strict=True))


def gaussian(mean: NDArray[np.float64], std: float) -> GaussianPredictive:
    """Return the predictive distribution of a model with one standard deviation for all rows."""
    center = torch.from_numpy(mean)
    return GaussianPredictive(center, torch.zeros_like(center), torch.full_like(center, std**2))


def categorical(probs: NDArray[np.float64]) -> ClassificationPredictive:
    """Return the predictive distribution of a model that predicts probabilities, none of which counts as zero."""
    return ClassificationPredictive(torch.from_numpy(probs).clamp_min(np.finfo(np.float64).tiny).log()[None])
