"""Comparison of methods with MF-Exact on halves of a data set, for Fig. 2b and 2c."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments.experiment import Context, Experiment, Unit
from experiments.results import Result

if TYPE_CHECKING:
    from experiments.logistic_regression.mf_exact import Gaussian, Optimum
    from experiments.logistic_regression.problem import Problem


class Comparison(Experiment):
    """An experiment with one unit per method. A unit runs its method on all splits, or with all seeds, at once.

    Attributes:
        dataset: Name of the data set in the library.
        prior: Prior precision of the weights.
        step: Duration of a step in seconds, for the cost of the units.
        methods: Settings of every method by the unit's key, see :mod:`.protocol`; ``None`` for MF-Exact.
        splits: Number of the split that each run uses. The seed of a run is its index. A method may have its own
            splits.
    """

    BIAS = 1e-5
    """Prior precision of the bias."""

    dataset: str
    prior: float
    step: float
    methods: Mapping[str, Mapping[str, Any] | None]
    splits: list[int]

    def units(self) -> list[Unit]:
        """Return one unit per method."""
        shared = {"dataset": self.dataset, "prior": self.prior, "bias_prior": self.BIAS, "splits": self.splits}
        return [
            Unit(key, {**shared, **(method or {"method": "mf-exact"})}, cost(method or {}, self.step))
            for key, method in self.methods.items()
        ]

    def run(self, unit: Unit, context: Context) -> Mapping[str, Any]:
        """Fit all runs of a method, and return their scores."""
        from experiments.logistic_regression.methods import fit
        from experiments.logistic_regression.mf_exact import mf_exact
        from experiments.logistic_regression.problem import halves

        config = unit.config
        known = {s: halves(config["dataset"], s, config["prior"], config["bias_prior"]) for s in config["splits"]}
        found = {split: mf_exact(problem.x, problem.y, problem.prior) for split, problem in known.items()}
        problems, optima = [known[split] for split in config["splits"]], [found[split] for split in config["splits"]]
        if config["method"] == "mf-exact":
            posteriors = [optimum.posterior for optimum in optima]
        else:
            seeds = range(len(problems))
            posteriors = fit(problems, config, seeds, checkpoint=context.folder, progress=context.progress)
        return {"runs": [_scores(*run) for run in zip(posteriors, problems, optima, strict=True)]}


def cost(method: Mapping[str, Any], step: float) -> float:
    """Return the approximate duration of a method in seconds, on the machine of the committed results.

    Args:
        method: Settings of the method.
        step: Duration of a step with minibatches, in seconds. A step on all data with second derivatives takes longer.
    """
    return 1.0 + step * float(method.get("iterations", 0)) * (1.0 if "batch_size" in method else 5.0)


def values(result: Result, metric: str) -> list[float]:
    """Return the values of a metric for all runs of a unit."""
    return [run[metric] for run in result.result["runs"]]


def quantiles(numbers: Sequence[float]) -> tuple[float, float, float]:
    """Return the first quartile, the median and the third quartile."""
    import numpy as np

    low, median, high = np.quantile(list(numbers), [0.25, 0.5, 0.75])
    return float(low), float(median), float(high)


def _scores(q: Gaussian, problem: Problem, optimum: Optimum) -> dict[str, float]:
    """Return scores in nats; the negative evidence lower bound and the log-loss are per data point."""
    from experiments.logistic_regression.metrics import log_loss, symmetric_kl
    from experiments.logistic_regression.mf_exact import negative_elbo

    found = {
        "negative_elbo": negative_elbo(q, problem.x, problem.y, problem.prior) / len(problem.y),
        "log_loss": log_loss(q, problem.x_test, problem.y_test),
        "symmetric_kl": symmetric_kl(q, optimum.posterior),
    }
    return {name: float(f"{value:.6g}") for name, value in found.items()}
