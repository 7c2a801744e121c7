"""Prices whose noise grows: intervals of three models, and of the true distribution."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesadam.demo.effort import Advance, Effort, Part, Rows, differences, mean_rows, seed_of

Array = NDArray[Any]
Interval = tuple[Array, Array]
"""Lower and upper ends."""

COVERAGE = 0.95
NORMAL = 1.959963984540054
"""The 97.5% quantile of a standard normal."""
NEW_ROWS = 2000
COLUMNS = ("area", "rooms", "year", "km_to_centre", "floor")
OURS, LINEAR, QUANTILES, TRUTH = "BayesianMLPRegressor", "linear model", "quantile boosting", "the truth"
SIZES = {"max_iter": [50, 100], "max_leaf_nodes": [6, 31]}
"""Sizes of quantile boosting, from which cross-validation chooses."""
SMALL, LARGE = 60.0, 170.0
"""Areas, in square metres, below and above which are the smallest and the largest fifth of the flats."""


def generate(rows: int, generator: np.random.Generator) -> dict[str, Array]:
    """Generate flats and their prices, whose noise grows with the square of the area.

    Returns:
        ``"inputs"`` ``(rows, 5)`` in the order of ``COLUMNS``; ``"price"`` in thousands, its ``"mean"`` and its
        ``"deviation"``.
    """
    area = generator.uniform(30.0, 200.0, rows)
    rooms = np.clip(np.round(area / 28.0 + generator.normal(0.0, 0.8, rows)), 1, 8)
    year = np.floor(generator.uniform(1900, 2021, rows))
    distance = generator.gamma(2.0, 4.0, rows)
    floor = np.floor(generator.uniform(0, 8, rows))
    mean = area * (1.5 + 3.5 * np.exp(-distance / 6.0) + 0.01 * np.maximum(year - 1970, 0)) + 8.0 * rooms + 3.0 * floor
    deviation = 5.0 + 0.0022 * area**2
    price = mean + deviation * generator.standard_normal(rows)
    inputs = np.stack([area, rooms, year, distance, floor], axis=1)
    return {"inputs": inputs, "price": price, "mean": mean, "deviation": deviation}


def write_table(path: Path, data: dict[str, Array]) -> None:
    """Write flats with their prices as CSV."""
    table = np.column_stack([data["inputs"], data["price"]])
    np.savetxt(path, table, "%.2f", delimiter=",", header=",".join((*COLUMNS, "price")), comments="")


def interval_score(lower: Array, upper: Array, target: Array) -> float:
    """Return the interval score: width plus ``2 / (1 - coverage)`` times the distance of a target outside.

    Lower is better (Gneiting and Raftery 2007, eq. 43).
    """
    outside = np.maximum(lower - target, 0.0) + np.maximum(target - upper, 0.0)
    return float(np.mean(upper - lower + 2.0 / (1.0 - COVERAGE) * outside))


def compare_prices(effort: Effort, *, seed: int, advance: Advance) -> Part:
    """Compare intervals for new flats, from several tables of training rows."""
    repetitions: list[Rows] = []
    first: dict[str, Any] = {}
    for table in range(effort.tables):
        generator = np.random.default_rng(seed_of(seed, 0, table))
        training, new = generate(effort.price_rows, generator), generate(NEW_ROWS, generator)
        inputs, price = training["inputs"], training["price"]

        def on_epoch(status: Any, table: int = table) -> None:
            advance("prices", table * status.epochs + status.epoch, effort.tables * status.epochs)

        intervals = {
            LINEAR: _linear(inputs, price, new["inputs"]),
            QUANTILES: _boosting(inputs, price, new["inputs"]),
            OURS: _ours(inputs, price, new["inputs"], effort, seed_of(seed, 1, table), on_epoch),
            TRUTH: (new["mean"] - NORMAL * new["deviation"], new["mean"] + NORMAL * new["deviation"]),
        }
        repetitions.append({name: _scores(*interval, new) for name, interval in intervals.items()})
        first = first or {"training": training, "new": new, "intervals": intervals}
    advance("prices", 1, 1)
    numbers = {
        "rows": mean_rows(repetitions),
        "differences": {other: differences(repetitions, OURS, other) for other in (LINEAR, QUANTILES)},
    }
    return Part(numbers, first)


def _scores(lower: Array, upper: Array, new: dict[str, Array]) -> dict[str, float]:
    inside = (lower <= new["price"]) & (new["price"] <= upper)
    area = new["inputs"][:, 0]
    return {
        "score": interval_score(lower, upper, new["price"]),
        "covered": float(inside.mean()),
        "small": float(inside[area < SMALL].mean()),
        "large": float(inside[area > LARGE].mean()),
        "width": float((upper - lower).mean()),
    }


def _linear(inputs: Array, price: Array, new: Array) -> Interval:
    """Fit by least squares, with a normal error of one standard deviation for all rows."""
    from sklearn.linear_model import LinearRegression

    model = LinearRegression().fit(inputs, price)
    freedom = len(price) - inputs.shape[1] - 1
    half = NORMAL * np.sqrt(np.square(price - model.predict(inputs)).sum() / freedom)
    center = model.predict(new)
    return center - half, center + half


def _boosting(inputs: Array, price: Array, new: Array) -> Interval:
    """Fit two quantiles by gradient boosting, whose size is chosen by cross-validation."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.metrics import make_scorer, mean_pinball_loss
    from sklearn.model_selection import GridSearchCV

    def end(level: float) -> Array:
        search = GridSearchCV(
            HistGradientBoostingRegressor(loss="quantile", quantile=level, random_state=0),
            SIZES,
            scoring=make_scorer(mean_pinball_loss, greater_is_better=False, alpha=level),
            cv=3,
        )
        predicted: Array = search.fit(inputs, price).predict(new)
        return predicted

    return end(0.5 - 0.5 * COVERAGE), end(0.5 + 0.5 * COVERAGE)


def _ours(
    inputs: Array, price: Array, new: Array, effort: Effort, seed: int, on_epoch: Callable[[Any], None]
) -> Interval:
    from bayesadam.sklearn import BayesianMLPRegressor

    options: dict[str, Any] = dict(effort.estimator)
    model = BayesianMLPRegressor(random_state=seed, **options)
    interval = model.fit(inputs, price, on_epoch=on_epoch).predict_interval(new, COVERAGE)
    return interval[:, 0], interval[:, 1]
