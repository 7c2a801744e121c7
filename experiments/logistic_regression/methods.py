"""The methods of Fig. 2, run by the population engine: one member per training set or seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import bayesadam as ba
from bayesadam import population
from bayesadam.core.rule import Hyper, Rule, State, Updated, average
from bayesadam.optim import PerturbedOptimizer
from experiments.framework import Context, Told, Unit
from experiments.logistic_regression import (
    Array,
    Gaussian,
    Problem,
    halves,
    log_loss,
    mf_exact,
    negative_elbo,
    symmetric_kl,
)

STEPS = 1000
"""Number of steps between two reports of the progress. The number of iterations is rounded up to a multiple of it."""
BIAS = 1e-5
"""Prior precision of the bias."""


def settings(
    method: str, batch_size: int, iterations: int, lr: float, rate: float, decay: float | None = None
) -> dict[str, Any]:
    """Return the settings of a method, as JSON.

    Args:
        method: ``"vadam"``, ``"vadam-matlab"``, ``"vogn"``.
        batch_size: Number of points per minibatch, which are drawn with replacement. If it is at least the number of
            data points, every step uses all of them.
        iterations: Number of steps.
        lr: Initial learning rate.
        rate: Initial value of ``1 - b2``.
        decay: Exponent with which both rates are divided by ``1 + t^decay`` (Khan et al. 2018, eq. 104); they are
            constant for ``None``.
    """
    found = {"method": method, "batch_size": batch_size, "iterations": iterations, "lr": lr, "rate": rate}
    return {**found, "momentum": 0.9, "decay": decay}


VON: dict[str, Any] = {
    "method": "von",
    "iterations": 20_000,
    "lr": 0.05,
    "rate": 0.05,
    "half_life": 1000,
    "averaged": 0.2,
}
"""Settings of VON with exact Hessians on full batches. Both rates are divided by ``1 + t / half_life``, and the results
are averaged over the last share ``averaged`` of the steps.
"""


class MatlabVadamRule(Rule):
    """Vadam as ``my_methods.m`` of the authors' code, which produced the published Fig. 2, has it::

        m     <- b1 m + (1 - b1) (g + lt mu)                  m_hat = m / (1 - b1^t)
        s     <- b2 s + (1 - b2) g^2                          s_hat = s / (1 - b2^t)
        mu    <- mu - lr m_hat / (sqrt(s_hat / N) + lt)
        1 / sigma^2 = N (s_hat + lt)

    It differs from Khan et al. 2018, Fig. 1, in three things:

    * The mean's step divides by ``sqrt(s / N)``, not by ``sqrt(s)``: the code takes the root of its ``S = N s``,
      although its gradient is the sum over the data.
    * The noise and the posterior take the bias-corrected ``s_hat``.
    * The correction is ``1 - b2^t`` with the *current* ``b2``, even if ``b2`` is scheduled: under the decay of
      eq. 104 the correction is too large, on USPS by 17% after all 120,312 steps.

    ``s`` starts at ``1 / N`` (the code's ``S = I``), so ``initial_precision`` is not used. There is no temperature.
    """

    state = ("exp_avg", "exp_avg_sq", "corrected")

    def init(self, mean: Tensor, hp: Hyper) -> dict[str, Tensor]:
        """Return the initial state: momentum 0 and curvature ``1 / N``."""
        start = torch.ones_like(mean) / hp.num_data
        return {"exp_avg": torch.zeros_like(mean), "exp_avg_sq": start, "corrected": start}

    def precision(self, state: State, hp: Hyper) -> Tensor:
        """Return the precision ``N (s_hat + lt)``."""
        precision: Tensor = hp.num_data * state["corrected"] + hp.prior_precision
        return precision

    def curvature(self, grad: Tensor, deviation: Tensor | None, state: State, hp: Hyper) -> Tensor:
        """Return the gradient's magnitude, ``g^2``."""
        return grad.square()

    def update(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> Updated:
        """Make one step, as described in the class."""
        assert curvature is not None
        damping = hp.prior_precision / hp.num_data
        m = average(state["exp_avg"], grad + damping * mean, hp.beta1)
        s = average(state["exp_avg_sq"], curvature, hp.beta2)
        corrected = s / (1.0 - hp.beta2**hp.step)
        denominator = (corrected / hp.num_data).sqrt() + damping
        mean = mean - (hp.lr / (1.0 - hp.beta1**hp.step)) * (m / denominator)
        return mean, {"exp_avg": m, "exp_avg_sq": s, "corrected": corrected}


class MatlabVadam(PerturbedOptimizer):
    """The optimiser with this rule, which is only for the experiments."""

    rule = MatlabVadamRule()


METHODS: dict[str, Any] = {"vadam": "vadam", "vadam-matlab": MatlabVadam, "vogn": "vogn", "von": "von"}
"""The engine's name or rule of each method."""


def fit(
    problems: Sequence[Problem],
    config: Mapping[str, Any],
    seeds: Sequence[int],
    *,
    start: float = 0.0,
    progress: Told | None = None,
) -> list[Gaussian]:
    """Return the posteriors at the end of a method's training, in float64.

    Args:
        problems: Problems of equal size, one per member, which all have the prior of the first.
        config: Settings from :func:`settings`, or :data:`VON`, possibly with changes.
        seeds: Seeds of the noise and of the minibatches, one per member.
        start: Initial value of all means. It must be 0 if the prior differs between the weights.
        progress: Function that is called regularly with the progress.
    """
    first, told = problems[0], progress or (lambda *_: None)
    data = _tensors(problems)
    size = first.x.shape[1] - first.bias, 1
    models = [nn.Linear(*size, bias=first.bias).double() for _ in problems]  # the bias replaces the column of ones
    for model in models:
        for parameter in model.parameters():
            nn.init.constant_(parameter, start)
    decay: Callable[[int], float] | None = None
    if config["method"] == "von":
        epochs, momentum = config["iterations"], 0.0
        own: dict[str, Any] = {"batch_size": max(len(x) for x, _ in data), "options": {"hessian": "exact"}}
        decay = partial(harmonic, float(config["half_life"]))
    else:
        steps, momentum = min(STEPS, config["iterations"]), config["momentum"]
        epochs = math.ceil(config["iterations"] / steps)
        own = {"steps_per_epoch": steps, "batch_size": config["batch_size"]}
        if config["decay"] is not None:
            decay = ba.optim.polynomial_decay(config["decay"])
    total = epochs * own.get("steps_per_epoch", 1)
    schedule = None if decay is None else lambda done: decay(round(done * total))
    begin = epochs - math.ceil(config.get("averaged", 0.0) * epochs)
    totals: dict[str, Any] = {"mean": 0.0, "precision": 0.0}

    def keep(epoch: int, members: list[int], nets: population.Population) -> None:
        if epoch >= begin:
            totals["mean"] += _rows(nets.mean)
            totals["precision"] += 1.0 / _rows(nets.variance)
        told(epoch + 1, epochs)

    nets = population.train(
        models,
        data,
        likelihood=ba.Bernoulli(),
        method=METHODS[config["method"]],
        epochs=epochs,
        lr=config["lr"],
        betas=(momentum, 1.0 - config["rate"]),
        lr_schedule=schedule,
        beta_schedule=schedule,
        seed=list(seeds),
        chunk=len(problems),
        progress=False,
        on_epoch=keep,
        **own,
        **_prior(first),
    )
    if begin == epochs:
        return [Gaussian(m, np.sqrt(v)) for m, v in zip(_rows(nets.mean), _rows(nets.variance), strict=True)]
    count = epochs - begin
    return [Gaussian(m / count, (p / count) ** -0.5) for m, p in zip(*totals.values(), strict=True)]


def harmonic(half_life: float, step: int) -> float:
    """Return the factor of both rates of VON."""
    return 1.0 / (1.0 + step / half_life)


def _prior(problem: Problem) -> dict[str, Any]:
    """Return the prior, and an initial precision of 1 plus the largest one of the prior (``S = I`` in the MATLAB code).

    A prior that differs between the weights is passed as a posterior to continue from, so that its mean 0 is also the
    initial mean.
    """
    largest = float(problem.prior.max())
    if not problem.bias:
        return {"prior_precision": largest, "initial_precision": 1.0 + largest}
    variance = torch.from_numpy(1.0 / problem.prior)
    split = {"weight": variance[1:][None], "bias": variance[:1]}
    prior = ba.DiagonalGaussian({name: torch.zeros_like(part) for name, part in split.items()}, split)
    return {"prior": prior, "initial_precision": 1.0 + largest}


def _tensors(problems: Sequence[Problem]) -> list[tuple[Tensor, Tensor]]:
    """Return inputs without the column of ones, and targets ``(N, 1)``, once for problems that are the same object."""
    found: dict[int, tuple[Tensor, Tensor]] = {}
    for problem in problems:
        pair = torch.from_numpy(problem.x[:, int(problem.bias) :].copy()), torch.from_numpy(problem.y).unsqueeze(1)
        found.setdefault(id(problem), pair)
    return [found[id(problem)] for problem in problems]


def _rows(tensors: Mapping[str, Tensor]) -> Array:
    """Return the weights as rows, ``(P, D)``, with the bias first."""
    return torch.cat([tensors[name].flatten(1) for name in ("bias", "weight") if name in tensors], dim=1).numpy()


def units_of(dataset: str, prior: float, splits: Sequence[int], methods: Mapping[str, Mapping[str, Any]]) -> list[Unit]:
    """Return one unit per method, which fits all splits, or all seeds, at once.

    Args:
        dataset: Name of the data set.
        prior: Prior precision of the weights.
        splits: Number of the split that each run uses. The seed of a run is its index. A method may have its own
            splits.
        methods: Settings of every method but MF-Exact by the unit's key.
    """
    shared = {"dataset": dataset, "prior": prior, "bias_prior": BIAS, "splits": list(splits)}
    every: dict[str, Mapping[str, Any]] = {"mf-exact": {"method": "mf-exact"}, **methods}
    return [Unit(key, {**shared, **method}) for key, method in every.items()]


def compare(unit: Unit, context: Context) -> dict[str, Any]:
    """Fit all runs of a method, and return their scores in comparison with MF-Exact."""
    config = unit.config
    known = {s: halves(config["dataset"], s, config["prior"], config["bias_prior"]) for s in config["splits"]}
    found = {split: mf_exact(problem.x, problem.y, problem.prior) for split, problem in known.items()}
    problems, optima = [known[split] for split in config["splits"]], [found[split] for split in config["splits"]]
    posteriors = optima
    if config["method"] != "mf-exact":
        seeds = range(len(problems))
        posteriors = fit(problems, config, seeds, progress=context.progress)
    return {"runs": [_scores(*run) for run in zip(posteriors, problems, optima, strict=True)]}


def _scores(q: Gaussian, problem: Problem, optimum: Gaussian) -> dict[str, float]:
    """Return scores in nats; the negative evidence lower bound and the log-loss are per data point."""
    found = {
        "negative_elbo": negative_elbo(q, problem.x, problem.y, problem.prior) / len(problem.y),
        "log_loss": log_loss(q, problem.x_test, problem.y_test),
        "symmetric_kl": symmetric_kl(q, optimum),
    }
    return {name: float(f"{value:.6g}") for name, value in found.items()}
