"""Black-box minimisation beside CMA-ES, Nelder-Mead and random search, at equal evaluations.

    python benchmarks/minimize.py      # prints the table, writes runs/benchmarks/minimize.json

The peer is the package cma (``pip install cma scipy``). Ten functions in the box [-5, 5]^n, n of 2, 10 and 50, 300 n
evaluations. Every seed moves the minimum, which is 0, to a point drawn uniformly from [-4, 4]^n, and draws the start
from the box. The last three functions have noise with standard deviation 1 added to their values. All are given the
bounds and are otherwise untouched; CMA-ES, which has no default for it, is given the standard deviation that ours
takes from the bounds, a quarter of their distance, and Nelder-Mead tolerances of 1e-10, with which it goes on. Nobody
starts again where a tolerance ends the search.

The table has medians over seeds of the noise-free value at the point returned: of CMA-ES the better of the best point
and the mean, or under noise the mean, which is the better choice. "first" counts the seeds at which ours is the lower
of the two, with values below 1e-8 taken as equal and a tie as a half. Finished problems in the JSON are not done
again.
"""

from __future__ import annotations

import json
import os
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import bayesadam as ba
from record import arguments, conditions, save

Array = NDArray[np.float64]
BOX, PER_NUMBER, SOLVED = 5.0, 300, 1e-8
DIMENSIONS = (2, 10, 50)


def sphere(z: Array) -> Array:
    return np.square(z).sum(-1)


def ellipsoid(z: Array) -> Array:
    return (10.0 ** np.linspace(0.0, 6.0, z.shape[-1]) * z**2).sum(-1)


def rotated_ellipsoid(z: Array) -> Array:
    axes, _ = np.linalg.qr(np.random.default_rng(z.shape[-1]).standard_normal((z.shape[-1], z.shape[-1])))
    return ellipsoid(z @ axes)


def rosenbrock(z: Array) -> Array:
    first, second = z[..., :-1] + 1.0, z[..., 1:] + 1.0
    return (100.0 * (second - first**2) ** 2 + (1.0 - first) ** 2).sum(-1)


def rastrigin(z: Array) -> Array:
    return (10.0 + z**2 - 10.0 * np.cos(2.0 * np.pi * z)).sum(-1)


def ackley(z: Array) -> Array:
    bowl = -20.0 * np.exp(-0.2 * np.sqrt(np.square(z).mean(-1)))
    return bowl - np.exp(np.cos(2.0 * np.pi * z).mean(-1)) + 20.0 + np.e


def step(z: Array) -> Array:
    return np.square(np.floor(z + 0.5)).sum(-1)


def quartic(z: Array) -> Array:
    return (np.arange(1, z.shape[-1] + 1) * z**4).sum(-1)


FUNCTIONS: dict[str, tuple[Callable[[Array], Array], float]] = {
    "sphere": (sphere, 0.0),
    "ellipsoid": (ellipsoid, 0.0),
    "rotated ellipsoid": (rotated_ellipsoid, 0.0),
    "Rosenbrock": (rosenbrock, 0.0),
    "Rastrigin": (rastrigin, 0.0),
    "Ackley": (ackley, 0.0),
    "step": (step, 0.0),
    "noisy sphere": (sphere, 1.0),
    "noisy quartic": (quartic, 1.0),
    "noisy Rosenbrock": (rosenbrock, 1.0),
}
"""Name to function of the distance from the minimum, and standard deviation of the noise."""


class Problem:
    """A function, its minimum and its start; counts evaluations."""

    def __init__(self, name: str, size: int, seed: int) -> None:
        self.function, self.noise = FUNCTIONS[name]
        self.size, self.seed, self.budget, self.count = size, seed, PER_NUMBER * size, 0
        generator = np.random.default_rng([seed, size])
        self.minimum, self.start = generator.uniform(-4.0, 4.0, size), generator.uniform(-BOX, BOX, size)
        self.generator = generator

    def true(self, x: Array) -> float:
        """Without noise."""
        return float(self.function(x - self.minimum))

    def __call__(self, x: Array) -> Any:
        """At one point or many."""
        values = self.function(x - self.minimum)
        self.count += np.size(values)
        return values + self.noise * self.generator.standard_normal(np.shape(values))


def ours(problem: Problem) -> float:
    found = ba.minimize(
        problem,
        problem.start,
        bounds=[(-BOX, BOX)] * problem.size,
        maxfev=problem.budget,
        vectorized=True,
        seed=problem.seed,
    )
    return problem.true(found.x)


def cma_es(problem: Problem) -> float:
    import cma

    options = {"bounds": [-BOX, BOX], "maxfevals": problem.budget, "seed": problem.seed + 1, "verbose": -9}
    search = cma.CMAEvolutionStrategy(problem.start, BOX / 2, options)
    while not search.stop():
        points = search.ask()
        search.tell(points, list(problem(np.array(points))))
    mean = problem.true(np.asarray(search.result.xfavorite))
    return mean if problem.noise else min(mean, problem.true(np.asarray(search.result.xbest)))


def nelder_mead(problem: Problem) -> float:
    from scipy.optimize import minimize

    options = {"maxfev": problem.budget, "maxiter": problem.budget, "xatol": 1e-10, "fatol": 1e-10}
    bounds = [(-BOX, BOX)] * problem.size
    found = minimize(problem, problem.start, method="Nelder-Mead", bounds=bounds, options=options)
    return problem.true(found.x)


def random_search(problem: Problem) -> float:
    points = np.random.default_rng([problem.seed, 1]).uniform(-BOX, BOX, (problem.budget, problem.size))
    return problem.true(points[np.argmin(problem(points))])


METHODS = {"ours": ours, "cma": cma_es, "Nelder-Mead": nelder_mead, "random": random_search}


def compare(name: str, size: int, seeds: int) -> dict[str, Any]:
    """Median, seeds at which ours is first, evaluations and seconds of every method."""
    values: dict[str, list[float]] = {method: [] for method in METHODS}
    counts: dict[str, list[int]] = {method: [] for method in METHODS}
    seconds = dict.fromkeys(METHODS, 0.0)
    for seed in range(seeds):
        for method, run in METHODS.items():
            problem, begin = Problem(name, size, seed), time.perf_counter()
            values[method].append(run(problem))
            seconds[method] += time.perf_counter() - begin
            counts[method].append(problem.count)
    own = values["ours"]
    return {
        method: {
            "median": float(f"{statistics.median(values[method]):.3g}"),
            "first": sum(_first(a, b) for a, b in zip(own, values[method], strict=True)),
            "evaluations": statistics.median(counts[method]),
            "seconds": round(seconds[method] / seeds, 3),
        }
        for method in METHODS
    }


def _first(own: float, other: float) -> float:
    own, other = max(own, SOLVED), max(other, SOLVED)
    return 0.5 if own == other else float(own < other)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    path = options.output / "minimize.json"
    known = json.loads(path.read_text())["problems"] if path.exists() else {}
    report: dict[str, Any] = {**conditions("torch", "bayesadam", "cma", "scipy"), "seeds": options.seeds}
    report |= {"evaluations per number": PER_NUMBER, "problems": known}
    print(f"{'':22}{'medians':>40}{'ours first of ' + str(options.seeds):>36}")
    print(f"{'function':18}{'n':>4}" + "".join(f"{m:>12}" for m in [*METHODS, *list(METHODS)[1:]]))
    for size in DIMENSIONS:
        for name in FUNCTIONS:
            key = f"{name} {size}"
            if key not in known:
                known[key] = compare(name, size, options.seeds)
                report["load_averages"].append(os.getloadavg())
                save(options.output / "minimize.json", report)
            found = known[key]
            medians = "".join(f"{found[m]['median']:>12.2g}" for m in METHODS)
            firsts = "".join(f"{found[m]['first']:>12g}" for m in list(METHODS)[1:])
            print(f"{name:18}{size:>4}{medians}{firsts}", flush=True)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
