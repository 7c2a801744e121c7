"""A covariance with Kronecker structure: how near to the full posterior, how good on images, and at what cost.

    python benchmarks/kronecker.py                        # everything: prints, writes runs/benchmarks/kronecker.json
    python benchmarks/kronecker.py --part logistic cost   # of logistic, images, cost
    python benchmarks/kronecker.py --part images --task mnist --method IVON EVON --seeds 1

``logistic``: the two problems of the experiments ``logreg-breast-cancer`` and ``logreg-usps``, split 0. Every method's
posterior is compared with the Gaussian that maximises the evidence lower bound over all covariances, by the symmetric
KL divergence in nats. ``MF-Exact`` maximises it over all diagonal ones: what a mean-field method can reach. VON takes
exact Hessians of all data, the others minibatches of 64.

``images``: tasks of ``defaults.py``, in its loop and with its scores; optimisers have their default settings.

``cost``: a drop-in iteration of the two networks of ``images``, methods in turns, as CPU time of one thread. EVON's has
its shares of collecting factors (every 10th iteration) and of refreshing the bases (every 200th).

Finished units are kept in the file: a run that was interrupted continues, ``--again`` does its units again.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

import bayesadam as ba
from default_runs import training
from default_runs.scores import predict_all, score, validation_nll
from default_tasks import ALL
from default_tasks.images import convolutional, perceptron
from record import arguments, conditions, save

sys.path.insert(0, str(Path(__file__).parents[1]))  # the problems and optima of the experiments
from experiments.logistic_regression.mf_exact import mf_exact
from experiments.logistic_regression.problem import Problem, halves
from experiments.logistic_regression.quadrature import expectations

Array = NDArray[np.float64]
Gaussian = tuple[Array, Array]
"""Mean and precision."""

PROBLEMS = {"breast-cancer": ("libsvm/breast-cancer", 1.0), "usps": ("usps/3-vs-5", 25.0)}
"""Data set, and prior precision of all weights but the bias, which has ``BIAS``."""
BIAS, STEPS, BATCH, RATE, FULL_STEPS = 1e-5, 3_000, 64, 0.1, 100
TASKS = ("mnist", "fashion-5k")
METHODS = ("IVON", "VOGN", "EVON")
EVERY = {"rank": 1024, "collect_every": 1, "refresh_every": 100}
"""Of EVON in logistic regression: complete bases from all gradients, which cost nothing there."""
WARM, COLLECT, REFRESH = 4, 10, 200
"""Iterations before the first that counts, and EVON's defaults."""


def full_exact(problem: Problem) -> Gaussian:
    """The Gaussian that maximises the evidence lower bound, by Newton's method; expectations are exact.

    Raises:
        RuntimeError: It did not converge.
    """
    x, y, prior = problem.x, problem.y, problem.prior
    mean, precision = np.zeros(x.shape[1]), np.diag(prior) + 0.25 * x.T @ x
    for _ in range(200):
        deviation = np.sqrt(np.einsum("ni,ni->n", x @ np.linalg.inv(precision), x))
        found = expectations(x @ mean, deviation)
        after = (x.T * found.slope) @ x + np.diag(prior)
        step = np.linalg.solve(after, x.T @ (found.sigmoid - y) + prior * mean)
        change = max(np.abs(step).max(), np.abs(after - precision).max() / np.abs(after).max())
        mean, precision = mean - step, after
        if change < 1e-10:
            return mean, precision
    raise RuntimeError(f"the full posterior must converge, got a last change of {change:.1e}")


def symmetric_kl(one: Gaussian, other: Gaussian) -> float:
    """``(KL(one || other) + KL(other || one)) / 2`` in nats."""
    (mean, precision), (center, there) = one, other
    traces = np.trace(np.linalg.solve(precision, there)) + np.trace(np.linalg.solve(there, precision))
    shift = mean - center
    return float(0.25 * (traces - 2 * len(mean) + shift @ (precision + there) @ shift))


def logistic(problem: Problem, method: str, seed: int) -> Gaussian:
    """Train a linear layer, whose prior is that of the problem."""
    x, y = torch.from_numpy(problem.x), torch.from_numpy(problem.y)
    model = nn.Linear(x.shape[1], 1, bias=False).double()
    nn.init.zeros_(model.weight)
    variance = torch.from_numpy(1.0 / problem.prior)[None]
    shared: dict[str, Any] = {
        "num_data": len(x),
        "prior": ba.DiagonalGaussian({"weight": torch.zeros_like(variance)}, {"weight": variance}),
        "initial_precision": 1.0 + float(problem.prior.max()),
        "seed": seed,
    }
    named = model.named_parameters()
    if method.startswith("VON"):
        structure = method.split()[1]
        newton = ba.VON(named, 1.0, betas=(0.0, 0.0), hessian="exact", covariance=structure, **shared)
        schedules = (
            torch.optim.lr_scheduler.LambdaLR(newton, lambda step: 2.0 / (step + 3.0)),
            ba.BetaScheduler(newton, lambda step: 2.0 / (step + 3.0)),
        )
        for _ in range(FULL_STEPS):
            newton.step(lambda: functional.binary_cross_entropy_with_logits(model(x)[:, 0], y))
            for schedule in schedules:
                schedule.step()
        return gaussian(newton.posterior())
    shared |= {"temperature": 1.0, "total_steps": STEPS, "recipe": "learned"}
    if method == "VOGN":
        optimizer: Any = ba.VOGN(named, RATE, curvature=ba.PerExampleSquares(model), **shared)
    else:
        own = EVERY if method == "EVON" else {}
        optimizer = getattr(ba, method)(named, RATE, rescale_lr=False, **shared, **own)
    generator = torch.Generator().manual_seed(seed)
    optimizer.train()
    for _ in range(STEPS):
        rows = torch.randint(len(x), (BATCH,), generator=generator)
        optimizer.zero_grad()
        functional.binary_cross_entropy_with_logits(model(x[rows])[:, 0], y[rows]).backward()
        optimizer.step()
    optimizer.eval()
    return gaussian(optimizer.posterior())


def gaussian(q: Any) -> Gaussian:
    """Mean and precision of a posterior over one weight ``(1, D)``."""
    mean = q.mean["weight"].flatten().numpy()
    if isinstance(q, ba.KroneckerGaussian):
        basis = q.right["weight"].numpy()
        return mean, (basis / q.eigenvalues["weight"].flatten().numpy()) @ basis.T
    if isinstance(q, ba.DenseGaussian):
        return mean, np.linalg.inv(q.covariance.double().numpy())
    return mean, np.diag(1.0 / q.variance["weight"].flatten().numpy())


def logistic_part(options: Any, units: dict[str, Any], keep: Callable[[], None]) -> None:
    """Symmetric KL divergences to the full posterior."""
    for name, (data, prior) in PROBLEMS.items():
        problem = halves(data, 0, prior, BIAS)
        truth = full_exact(problem)
        exact = mf_exact(problem.x, problem.y, problem.prior).posterior
        for method in ("MF-Exact", "VON diagonal", "VON full", *METHODS):
            key = f"logistic/{name}/{method}"
            if key in units and not options.again:
                continue
            start = time.process_time()
            mean_field = method == "MF-Exact"
            found = (exact.mean, np.diag(exact.deviation**-2)) if mean_field else logistic(problem, method, 0)
            distance = float(f"{symmetric_kl(found, truth):.4g}")
            units[key] = {"symmetric_kl": distance, "seconds": round(time.process_time() - start, 2)}
            print(f"{key:<40}{distance:>10.3f} nats", flush=True)
            keep()


def images_part(options: Any, units: dict[str, Any], keep: Callable[[], None]) -> None:
    """Scores of default settings."""
    training.OURS["evon"] = ba.EVON
    for name in options.task:
        task = ALL[name]
        for seed in range(options.seeds):
            data = task.load(seed)
            for method in options.method:
                if method == "VOGN" and name.startswith("fashion"):
                    continue  # has no squared gradients of examples over BatchNorm
                key = f"images/{name}/{method}/{seed}"
                if key in units and not options.again:
                    continue
                made, squares = training.untouched(method.lower()), method == "VOGN"
                trained = training.train(task, data, made, seed, sums_positions=squares)
                predicted = predict_all(trained, data, posterior=True)
                found = {**score(predicted, data), "validation": validation_nll(predicted, data)}
                units[key] = {k: round(v, 5) for k, v in found.items()} | {"seconds": round(trained.seconds, 1)}
                print(f"{key:<30}{units[key]}", flush=True)
                keep()


def iteration(model: nn.Module, inputs: tuple[int, ...], method: str, batch: int) -> Callable[[], None]:
    """A drop-in iteration."""
    x, y = torch.randn(batch, *inputs), torch.randint(0, 10, (batch,))
    extra: dict[str, Any] = {"curvature": ba.PerExampleSquares(model)} if method == "VOGN" else {}
    optimizer = getattr(ba, method)(model.named_parameters(), num_data=60_000, batch_size=batch, **extra)
    optimizer.train()

    def iterate() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return iterate


def amortised(times: list[float]) -> dict[str, float]:
    """Milliseconds of an iteration of EVON: an ordinary one, and its shares of those that collect and refresh.

    At its default settings bases are refreshed at powers of two before the step 200.
    """
    kinds: dict[str, list[float]] = {"ordinary": [], "collecting": [], "refreshing": []}
    for step, seconds in enumerate(times, WARM + 1):
        refreshes, collects = step & (step - 1) == 0, step % COLLECT == 1
        kinds["refreshing" if refreshes else "collecting" if collects else "ordinary"].append(1e3 * seconds)
    ordinary, collecting, refreshing = (statistics.median(kind) for kind in kinds.values())
    mean = ordinary + (collecting - ordinary) / COLLECT + (refreshing - ordinary) / REFRESH
    found = {"milliseconds": mean, "ordinary": ordinary, "collecting": collecting, "refreshing": refreshing}
    return {name: round(value, 3) for name, value in found.items()}


def cost_part(options: Any, units: dict[str, Any], keep: Callable[[], None]) -> None:
    """Milliseconds of an iteration, and the ratio to IVON's."""
    networks: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
        "mnist": (lambda: perceptron(784, 400, 400, 10), (1, 28, 28)),
        "fashion": (lambda: convolutional(None), (1, 14, 14)),  # type: ignore[arg-type]
    }
    for name, (make, inputs) in networks.items():
        for batch in (128, 1024):
            key = f"cost/{name}/{batch}"
            if key in units and not options.again:
                continue
            torch.manual_seed(0)
            methods = [method for method in METHODS if method != "VOGN" or name == "mnist"]  # not over BatchNorm
            contenders = {method: iteration(make(), inputs, method, batch) for method in methods}
            times: dict[str, list[float]] = {method: [] for method in methods}
            for number in range(WARM + options.iterations):
                for method, iterate in contenders.items():
                    start = time.process_time()
                    iterate()
                    if number >= WARM:
                        times[method].append(time.process_time() - start)
            units[key] = found = {m: {"milliseconds": round(1e3 * statistics.median(t), 3)} for m, t in times.items()}
            found["EVON"] |= amortised(times["EVON"])
            for entry in found.values():
                entry["ratio"] = round(entry["milliseconds"] / found["IVON"]["milliseconds"], 2)
            print(f"{key:<30}{ {m: e['ratio'] for m, e in found.items()} }", flush=True)
            keep()


PARTS = {"logistic": logistic_part, "images": images_part, "cost": cost_part}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--part", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--task", nargs="+", choices=list(ALL), default=list(TASKS), metavar="NAME", help="of images")
    parser.add_argument("--method", nargs="+", choices=METHODS, default=list(METHODS), help="of images")
    parser.add_argument("--seeds", type=int, default=1, metavar="K", help="of images")
    parser.add_argument("--iterations", type=int, default=36, metavar="K", help="of cost, for every method in turn")
    parser.add_argument("--again", action="store_true", help="do finished units again")
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = options.output / "kronecker.json"
    report = conditions("torch", "bayesadam", "numpy", "scipy")

    def known() -> dict[str, Any]:
        return dict(json.loads(path.read_text())["units"]) if path.exists() else {}

    units, before = known(), known()

    def keep() -> None:  # with what others have written since
        new = {key: unit for key, unit in units.items() if unit != before.get(key)}
        save(options.output / "kronecker.json", {**report, "units": dict(sorted({**known(), **new}.items()))})

    for part in options.part:
        PARTS[part](options, units, keep)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
