"""The estimators with their defaults beside scikit-learn's: a Gaussian process, and its neural network.

    python benchmarks/estimators.py                # prints the tables, writes runs/benchmarks/estimators.json
    python benchmarks/estimators.py yacht wine     # these data sets only; the others keep what they have there

Five random 90/10 splits, ``RandomState(seed).permutation``, the last tenth held out, seeds 0 to 4. The Gaussian process
has a linear and a squared exponential kernel with a length for every input, and noise, on standardised data, with two
restarts: without, it stays at its starting point on some splits. NLL in nats per row, in the units of the targets.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, WhiteKernel
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bayesadam.data import load
from bayesadam.metrics import expected_calibration_error
from bayesadam.sklearn import BayesianMLPClassifier, BayesianMLPRegressor
from record import arguments, conditions, save

SEEDS = range(5)
REGRESSION = ("yacht", "boston", "energy", "concrete")
CLASSIFICATION = {"breast cancer": load_breast_cancer, "digits": load_digits, "wine": load_wine}
Scores = dict[str, list[float]]
Parts = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]


def split(x: NDArray[Any], y: NDArray[Any], seed: int) -> Parts:
    order = np.random.RandomState(seed).permutation(len(x))
    cut = len(x) - round(0.1 * len(x))
    return x[order[:cut]], y[order[:cut]], x[order[cut:]], y[order[cut:]]


def gaussian_process(seed: int) -> Callable[..., Any]:
    def fit_predict(x: NDArray[Any], y: NDArray[Any], new: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        inputs = StandardScaler().fit(x)
        kernel = ConstantKernel() * DotProduct() + ConstantKernel() * RBF(np.ones(x.shape[1])) + WhiteKernel(0.1)
        model = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=2, random_state=seed)
        return model.fit(inputs.transform(x), y).predict(inputs.transform(new), return_std=True)

    return fit_predict


def ours(seed: int) -> Callable[..., Any]:
    def fit_predict(x: NDArray[Any], y: NDArray[Any], new: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        return BayesianMLPRegressor(random_state=seed).fit(x, y).predict(new, return_std=True)

    return fit_predict


def regression(name: str) -> dict[str, Scores]:
    data = load(f"uci/{name}")
    x, y = data.x.double().numpy(), data.y[:, 0].double().numpy()
    found: dict[str, Scores] = {}
    for seed in SEEDS:
        x_train, y_train, x_test, y_test = split(x, y, seed)
        for model, make in (("ours", ours), ("gaussian process", gaussian_process)):
            begin = time.perf_counter()
            mean, std = make(seed)(x_train, y_train, x_test)
            seconds = time.perf_counter() - begin
            z = (y_test - mean) / std
            row = {
                "NLL": float(np.mean(0.5 * z**2 + np.log(std)) + 0.5 * math.log(2 * math.pi)),
                "RMSE": float(np.sqrt(np.mean((y_test - mean) ** 2))),
                "covered": float((np.abs(z) <= 1.959964).sum()),
                "rows": float(len(z)),
                "seconds": seconds,
            }
            for key, value in row.items():
                found.setdefault(model, {}).setdefault(key, []).append(value)
    return found


def classification(name: str) -> dict[str, Scores]:
    x, y = CLASSIFICATION[name](return_X_y=True)
    found: dict[str, Scores] = {}
    for seed in SEEDS:
        x_train, y_train, x_test, y_test = split(x, y, seed)
        models = {
            "ours": BayesianMLPClassifier(random_state=seed),
            "MLPClassifier": MLPClassifier(random_state=seed),
            "MLPClassifier, scaled": make_pipeline(StandardScaler(), MLPClassifier(random_state=seed)),
        }
        for model, estimator in models.items():
            begin = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                estimator.fit(x_train, y_train)
            seconds = time.perf_counter() - begin
            probs = estimator.predict_proba(x_test)
            row = {
                "NLL": float(-np.log(np.maximum(probs[np.arange(len(y_test)), y_test], 1e-15)).mean()),
                "accuracy": float((probs.argmax(1) == y_test).mean()),
                "seconds": seconds,
            }
            for key, value in row.items():
                found.setdefault(model, {}).setdefault(key, []).append(value)
            found[model].setdefault("pooled", []).append([probs.tolist(), y_test.tolist()])  # type: ignore[arg-type]
    for scores in found.values():
        pooled = scores.pop("pooled")
        probs, labels = (torch.tensor(np.concatenate(part)) for part in zip(*pooled, strict=True))
        scores["ECE, splits pooled"] = [float(expected_calibration_error(probs, labels))]
    return found


def show(name: str, found: dict[str, Scores]) -> None:
    print(name)
    for model, scores in found.items():
        means = {key: np.mean(values) for key, values in scores.items() if key not in ("covered", "rows")}
        if "covered" in scores:
            means["coverage 95%"] = sum(scores["covered"]) / sum(scores["rows"])
        print(f"  {model:24}" + "  ".join(f"{key} {value:.4g}" for key, value in means.items()), flush=True)
    peers = [model for model in found if model != "ours"]
    for peer in peers:
        gap = np.array(found["ours"]["NLL"]) - np.array(found[peer]["NLL"])
        error = gap.std(ddof=1) / math.sqrt(len(gap))
        print(f"  NLL less that of {peer}: {gap.mean():.3f} +- {error:.3f}", flush=True)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("data", nargs="*")
    options = parser.parse_args()
    chosen = options.data or [*REGRESSION, *CLASSIFICATION]
    path = options.output / "estimators.json"
    known = json.loads(path.read_text()) if options.data and path.exists() else {}
    report: dict[str, Any] = known | conditions("torch", "scikit-learn", "bayesadam")
    for name in chosen:
        found = regression(name) if name in REGRESSION else classification(name)
        show(name, found)
        report[name] = {
            model: {k: [round(v, 5) for v in values] for k, values in scores.items()} for model, scores in found.items()
        }
    save(options.output / "estimators.json", report)


if __name__ == "__main__":
    main()
