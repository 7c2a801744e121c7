"""Baselines on the same rows: a linear model and gradient boosting by scikit-learn."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from bayesadam.runs.held_out import Arrays
from bayesadam.runs.scores import categorical, gaussian

MAX_ROWS = 100_000
"""Maximum number of training rows, which are drawn at random: more rows would take minutes and change little."""
_CALIBRATION = 0.2

Floats = NDArray[np.float32]


def baselines(
    x: Floats, y: NDArray[Any], x_test: Floats, y_test: NDArray[Any], *, task: str, classes: int, seed: int
) -> dict[str, tuple[Arrays, float]]:
    """Return the predictions of the held-out rows and the seconds of the fit, by name of the model.

    The predictions of a regression model are Gaussian, with the same standard deviation for all rows. It is that of the
    residuals on a fifth of the rows when the model is trained on the other rows, because residuals on training rows are
    too small. The model is then trained on all rows.

    Args:
        x: Inputs of the training rows, ``(N, D)``.
        y: Targets of the training rows: values or indices of classes.
        x_test: Inputs of the held-out rows.
        y_test: Targets of the held-out rows.
        task: "regression" or "classification".
        classes: Number of classes.
        seed: Seed of the models and of the choice of rows.
    """
    order = np.random.default_rng(seed).permutation(len(x))[:MAX_ROWS]
    if len(x) > MAX_ROWS:
        x, y, order = x[order], y[order], np.arange(MAX_ROWS)
    found: dict[str, tuple[Arrays, float]] = {}
    for name, build in _models(task, seed).items():
        begin = time.perf_counter()
        # One thread: on a busy machine, threads that wait for each other take minutes.
        with warnings.catch_warnings(), threadpool_limits(1):
            warnings.simplefilter("ignore")  # a baseline that has not converged is still useful
            model = build().fit(x, y)
            seconds = time.perf_counter() - begin
            if task == "regression":
                calibration, rest = np.split(order, [max(round(_CALIBRATION * len(x)), 1)])
                residuals = y[calibration] - build().fit(x[rest], y[rest]).predict(x[calibration])
                std = max(float(np.sqrt(np.mean(residuals**2))), 1e-6 * float(y.std()))
                predictions = gaussian(y_test, model.predict(x_test).astype(np.float64), std)
            else:
                probs = np.zeros((len(x_test), classes))
                probs[:, model.classes_] = model.predict_proba(x_test)
                predictions = categorical(y_test, probs)
        found[name] = predictions, seconds
    return found


def _models(task: str, seed: int) -> dict[str, Callable[[], Any]]:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if task == "regression":
        return {
            "linear model": lambda: make_pipeline(StandardScaler(), Ridge()),
            "gradient boosting": lambda: HistGradientBoostingRegressor(random_state=seed),
        }
    return {
        "linear model": lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)),
        "gradient boosting": lambda: HistGradientBoostingClassifier(random_state=seed),
    }
