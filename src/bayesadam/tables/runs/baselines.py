"""Baselines from scikit-learn, which are trained and scored on the same rows, and their code."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from sklearn.preprocessing import StandardScaler

from bayesadam.predictive import ClassificationPredictive, GaussianPredictive, MixturePredictive
from bayesadam.tables.estimators import target_transform
from bayesadam.tables.estimators.named_likelihoods import COUNTS, made, minimise
from bayesadam.tables.estimators.threads import threads_for
from bayesadam.tables.runs.evaluation import CONSTANT, Arrays, predict_held_out
from bayesadam.tables.runs.prepare import Prepared

if TYPE_CHECKING:
    from bayesadam.functional.monotone import Monotone

MAX_ROWS, MAX_VALUES = 100_000, 20_000_000
"""Maximum number of training rows of a baseline, drawn at random, and of their values: more would take minutes and
change little.
"""
ITERATIONS = 500
"""Maximum number of iterations of a regression that has no closed form."""
PENALTY = 1e-3
"""Penalty of the Poisson regression, about as weak for 1,000 rows as that of the ridge regression."""
FEWEST = 10
"""Minimum number of training rows of every class for early stopping, which takes a tenth of each."""
_NAMES = ("linear model", "gradient boosting", CONSTANT)
_INVERSES = {"log": "exp", "log1p": "expm1", "sqrt": "square"}
_CALIBRATION = 0.2


def baseline_rows(prepared: Prepared) -> int:
    """Return the maximum number of training rows of a baseline."""
    return int(min(MAX_ROWS, max(MAX_VALUES // prepared.matrix.shape[1], 1_000)))


def baselines(prepared: Prepared, functions: Sequence[Monotone] = ()) -> dict[str, tuple[Arrays, float]]:
    """Return the predictions of the held-out rows and the seconds of the fit, by name of the model.

    The predictions of a regression model are Gaussian, with the same standard deviation for all rows; those of a model
    of counts are negative binomial, with the same dispersion. Either is that of the residuals on a fifth of the rows
    when the model is trained on the other rows, because residuals on training rows are too small. The model is then
    trained on all rows.

    Args:
        prepared: The table.
        functions: The transform of the target that is Gaussian, alone in a sequence, or none; scores are in the
            target's units.
    """
    split, classes, settings = prepared.split, len(prepared.target.classes), prepared.settings
    shuffled = np.random.default_rng(settings.seed).permutation(len(split.training))[: baseline_rows(prepared)]
    chosen = np.sort(shuffled)  # in their own order, in which the quoted code has them
    training = split.training[chosen]
    weight, weight_test = prepared.weights_of(training), prepared.weights_of(split.held_out)
    scaler = StandardScaler().fit(prepared.matrix[training], sample_weight=weight)
    x, x_test = (scaler.transform(prepared.matrix[rows]) for rows in (training, split.held_out))
    y, y_test = prepared.y[training], prepared.y[split.held_out]
    if functions:
        y = target_transform.transformed(functions, y[:, None].astype(np.float64))[:, 0]
    weight = None if weight is None else weight / weight.mean()
    apart = np.isin(chosen, shuffled[: max(round(_CALIBRATION * len(x)), 1)])
    weight_apart = None if weight is None else weight[apart]
    results: dict[str, tuple[Arrays, float]] = {}
    for name, model in _models(prepared).items():
        # One thread: on a busy machine, threads that wait for each other take minutes.
        with warnings.catch_warnings(), threads_for(1):
            warnings.simplefilter("ignore")  # a baseline that has not converged is still useful
            if not classes:
                model.fit(x[~apart], y[~apart], None if weight is None else weight[~apart])
                center = model.predict(x[apart]).astype(np.float64)
            begin = time.perf_counter()
            model.fit(x, y, weight)
            seconds = time.perf_counter() - begin
        if classes:
            probs = np.zeros((len(x_test), classes))
            probs[:, model.classes_] = model.predict_proba(x_test)
            pred: Any = categorical(probs)
        elif settings.likelihood in COUNTS:
            outputs = torch.from_numpy(model.predict(x_test).astype(np.float64)).log()
            pred = MixturePredictive(outputs[None], _negative_binomial(center, y[apart], weight_apart))
        else:
            error = float(np.average((y[apart] - center) ** 2, weights=weight_apart))
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
    start, end = f"make_pipeline(TableEncoder({', '.join(given)}), StandardScaler(), ", ")"
    if transform != "none":
        start += "TransformedTargetRegressor("
        end = f", func=np.{transform}, inverse_func=np.{_INVERSES[transform]}))"
    return {name: f"{start}{model!r}{end}" for name, model in _models(prepared).items() if name != CONSTANT}


def _models(prepared: Prepared) -> dict[str, Any]:
    """Return the models by name. Boosting by a log loss stops early if it can, as it soon is too sure of itself."""
    settings, models = prepared.settings, tuple[Any, ...]()
    if prepared.target.classes:
        stops = bool(np.bincount(prepared.y[prepared.split.training]).min() >= FEWEST)
        boosting = HistGradientBoostingClassifier(early_stopping=stops, random_state=settings.seed)
        models = LogisticRegression(max_iter=ITERATIONS), boosting, DummyClassifier(strategy="prior")
    elif settings.likelihood in COUNTS:
        boosting = HistGradientBoostingRegressor(loss="poisson", early_stopping=True, random_state=settings.seed)
        models = PoissonRegressor(alpha=PENALTY, max_iter=ITERATIONS), boosting, DummyRegressor()
    else:
        models = Ridge(), HistGradientBoostingRegressor(random_state=settings.seed), DummyRegressor()
    return dict(zip(_NAMES, models, strict=True))


def _negative_binomial(
    mean: NDArray[np.float64], counts: NDArray[np.float64], weight: NDArray[np.float64] | None
) -> Any:
    """Return the likelihood with the most probable dispersion of counts around their predicted means."""
    likelihood = made("negative_binomial", 1).double()
    outputs, targets = torch.from_numpy(mean).log(), torch.from_numpy(counts.astype(np.float64))
    share = torch.from_numpy(np.ones(len(counts)) if weight is None else weight) / len(counts)
    minimise(list(likelihood.parameters()), lambda: -(share * likelihood.log_density(outputs, targets)).sum())
    return likelihood.requires_grad_(False)


def gaussian(mean: NDArray[np.float64], std: float) -> GaussianPredictive:
    """Return the predictive distribution of a model with one standard deviation for all rows."""
    center = torch.from_numpy(mean)
    return GaussianPredictive(center, torch.zeros_like(center), torch.full_like(center, std**2))


def categorical(probs: NDArray[np.float64]) -> ClassificationPredictive:
    """Return the predictive distribution of a model that predicts probabilities, none of which counts as zero."""
    return ClassificationPredictive(torch.from_numpy(probs).clamp_min(np.finfo(np.float64).tiny).log()[None])
