"""How often intervals and sets hold what they promise where the model is wrong, and how wide they are.

    python benchmarks/conformal.py                  # prints the tables, writes runs/benchmarks/conformal.json

Each repetition draws 300 rows and 1,000 new rows. ``"bayes"`` and ``"cross"`` are those of a model that is fitted to
all 300 rows; ``"split"`` and ``"adaptive"`` have a model that is fitted to 200 of them, and calibrate by the other
100. The regressions have noise that no Gaussian describes, and a model that is made wrong: no transform of the
targets. The classification has labels of which a fifth are random. Coverages and widths are means over the
repetitions, with standard errors of the coverage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bayesadam.sklearn import BayesianMLPClassifier, BayesianMLPRegressor
from record import arguments, conditions, save

ROWS, FITTED, NEW = 300, 200, 1_000
COVERAGES = (0.5, 0.8, 0.95)
SMALL: dict[str, Any] = {"members": 8, "epochs": 200}


def curve(generator: np.random.Generator, rows: int) -> tuple[Any, Any]:
    """Inputs ``(rows, 2)`` and the mean of the target."""
    x = generator.uniform(-2.0, 2.0, (rows, 2))
    return x, np.sin(2.0 * x[:, 0]) + x[:, 1]


def heavy_tails(generator: np.random.Generator, rows: int) -> tuple[Any, Any]:
    """Noise of Student's t with 2 degrees of freedom, whose variance is infinite."""
    x, mean = curve(generator, rows)
    return x, mean + 0.3 * generator.standard_t(2, rows)


def skewed(generator: np.random.Generator, rows: int) -> tuple[Any, Any]:
    """Log-normal noise."""
    x, mean = curve(generator, rows)
    return x, mean + 0.3 * np.exp(1.2 * generator.standard_normal(rows))


def labels(generator: np.random.Generator, rows: int) -> tuple[Any, Any]:
    """Four classes, a quadrant of the inputs each; a fifth of the labels are drawn at random."""
    x = generator.uniform(-2.0, 2.0, (rows, 2))
    y = 2 * (x[:, 0] > 0) + (x[:, 1] > 0)
    return x, np.where(generator.random(rows) < 0.2, generator.integers(0, 4, rows), y)


def regression(draw: Callable[..., tuple[Any, Any]], seed: int) -> dict[str, list[tuple[float, float]]]:
    """Coverage and mean width by method, for each of ``COVERAGES``."""
    generator = np.random.default_rng(seed)
    (x, y), (new, target) = draw(generator, ROWS), draw(generator, NEW)
    options = SMALL | {"target_transform": "none", "random_state": seed}
    whole = BayesianMLPRegressor(**options).fit(x, y)
    part = BayesianMLPRegressor(**options).fit(x[:FITTED], y[:FITTED]).conformalize(x[FITTED:], y[FITTED:])
    found: dict[str, list[tuple[float, float]]] = {}
    for method in ("bayes", "split", "adaptive", "cross"):
        model = part if method in ("split", "adaptive") else whole
        ends = [model.predict_interval(new, coverage, method=method).T for coverage in COVERAGES]
        found[method] = [(float(((a <= target) & (target <= b)).mean()), float((b - a).mean())) for a, b in ends]
    return found


def classification(draw: Callable[..., tuple[Any, Any]], seed: int) -> dict[str, list[tuple[float, float]]]:
    """Coverage and mean size of the sets by method, for each of ``COVERAGES``."""
    generator = np.random.default_rng(seed)
    (x, y), (new, target) = draw(generator, ROWS), draw(generator, NEW)
    options = SMALL | {"random_state": seed}
    whole = BayesianMLPClassifier(**options).fit(x, y)
    part = BayesianMLPClassifier(**options).fit(x[:FITTED], y[:FITTED]).conformalize(x[FITTED:], y[FITTED:])
    found: dict[str, list[tuple[float, float]]] = {}
    for method in ("bayes", "split", "split, randomized", "cross", "cross, randomized"):
        name, _, randomized = method.partition(", ")
        model = part if name == "split" else whole
        drawn = {"method": name, "randomized": bool(randomized), "random_state": seed}
        sets = [model.predict_set(new, coverage=coverage, **drawn) for coverage in COVERAGES]
        found[method] = [(float(s[np.arange(NEW), target].mean()), float(s.sum(1).mean())) for s in sets]
    return found


TASKS: dict[str, Callable[[int], dict[str, list[tuple[float, float]]]]] = {
    "heavy tails": lambda seed: regression(heavy_tails, seed),
    "skewed": lambda seed: regression(skewed, seed),
    "labels": lambda seed: classification(labels, seed),
}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--repetitions", type=int, default=20, help="of each task; default: %(default)s")
    options = parser.parse_args()
    report: dict[str, Any] = {"conditions": conditions("bayesadam", "torch", "numpy"), "coverages": COVERAGES}
    report |= {"repetitions": options.repetitions, "tasks": {}}
    for task, measure in TASKS.items():
        runs = [measure(seed) for seed in range(options.repetitions)]
        print(task)
        report["tasks"][task] = {}
        for method in runs[0]:
            values = np.array([run[method] for run in runs])
            mean, error = values.mean(0), values.std(0, ddof=1) / np.sqrt(len(values))
            told = {"coverage": mean[:, 0].tolist(), "error": error[:, 0].tolist(), "width": mean[:, 1].tolist()}
            report["tasks"][task][method] = told
            shares = "  ".join(f"{m:.3f} ± {e:.3f}" for m, e in zip(told["coverage"], told["error"], strict=True))
            print(f"  {method:<18} {shares}   {'  '.join(f'{w:.2f}' for w in told['width'])}", flush=True)
        save(options.output / "conformal.json", report)


if __name__ == "__main__":
    main()
