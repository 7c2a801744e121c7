"""What scikit-learn's linear model and gradient boosting make of the same rows: the measure of what is good."""

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
"""They are trained on this many rows at most, drawn at random: more would cost minutes and change little."""
_CALIBRATION = 0.2

Floats = NDArray[np.float32]


def baselines(
    x: Floats, y: NDArray[Any], x_test: Floats, y_test: NDArray[Any], *, task: str, classes: int, seed: int
) -> dict[str, tuple[Arrays, float]]:
    """Predictions of the held-out rows, and seconds of the fit, by name of the model.

    A regression model gets one Gaussian noise for all rows. Its width is that of the residuals of a fifth of the rows
    when trained on the others, as the residuals of the rows themselves are too small; then it is trained on all.

    Args:
        x: Inputs of the training rows, ``(N, D)``.
        y: Their targets, values or numbers of classes.
        x_test: Held-out rows.
        y_test: Their targets.
        task: "regression" or "classification".
        classes: How many.
        seed: Of the models and of the rows drawn.
    """
    order = np.random.default_rng(seed).permutation(len(x))[:MAX_ROWS]
    if len(x) > MAX_ROWS:
        x, y, order = x[order], y[order], np.arange(MAX_ROWS)
    found: dict[str, tuple[Arrays, float]] = {}
    for name, build in _models(task, seed).items():
        begin = time.perf_counter()
        # One thread: on a machine that has something else to do, threads that wait for each other take minutes.
        with warnings.catch_warnings(), threadpool_limits(1):
            warnings.simplefilter("ignore")  # a baseline that has not converged is still one
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
