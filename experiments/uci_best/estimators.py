"""The estimators, which are fitted to a training split and return predictive distributions in the target's units."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import bayesadam as ba
from bayesadam import population
from bayesadam.optim import half_cosine
from bayesadam.predictive import GaussianPredictive
from bayesadam.predictive.result import Predictive
from experiments.data import load
from experiments.fawn_uci.gp import fit
from experiments.uci import Part

Array = NDArray[Any]
LEVELS = torch.arange(0.005, 1.0, 0.01, dtype=torch.float64)


def score(estimator: str, dataset: str, split: int, settings: Mapping[str, Any]) -> dict[str, float]:
    """Fit an estimator to a training split, and return its scores on the test rows."""
    data = load(f"uci/{dataset}", split=split)
    parts = [part.double().numpy() for part in (data.x_train, data.y_train[:, 0], data.x_test)]
    began, cpu = time.perf_counter(), time.process_time()
    pred: Any = FITS[estimator](*parts, split, settings)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    y = data.y_test[:, 0].double()
    return {**scores(pred, y), "seconds": seconds, "cpu_seconds": cpu_seconds}


def scores(pred: Any, y: Tensor) -> dict[str, float]:
    """Return pointwise log-likelihood, RMSE, CRPS by 100 quantiles, and the shares of rows in central intervals."""
    quantiles = pred.quantile(LEVELS)
    below = y - quantiles
    pinball = torch.maximum(LEVELS[:, None] * below, (LEVELS[:, None] - 1.0) * below)
    found = {
        "log_likelihood": ba.metrics.log_likelihood(pred, y),
        "rmse": ba.metrics.rmse(pred.mean, y),
        "crps": 2.0 * float(pinball.mean()),
    }
    for coverage in (0.5, 0.8, 0.95):
        low, high = pred.quantile([0.5 - 0.5 * coverage, 0.5 + 0.5 * coverage])
        found[f"covered_{coverage:.0%}"] = ba.metrics.coverage(low, high, y)
    return found


def bayesadam(x: Array, y: Array, new: Array, seed: int, settings: Mapping[str, Any]) -> Predictive:
    """Fit our estimator with its defaults; ``settings`` are only for shorter tests."""
    from bayesadam.sklearn import BayesianMLPRegressor

    pred: Predictive = BayesianMLPRegressor(random_state=seed, **settings).fit(x, y).predictive(new)
    return pred


class _BoundedVariance(ba.HeteroscedasticGaussian):
    """A Gaussian whose variance is the softplus of the second output plus 1e-6 (Lakshminarayanan et al. 2017)."""

    def mean_and_log_variance(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = super().mean_and_log_variance(outputs)
        return mean, (nn.functional.softplus(raw) + 1e-6).log()


def deep_ensemble(x: Array, y: Array, new: Array, seed: int, settings: Mapping[str, Any]) -> Predictive:
    """Fit a deep ensemble; its mixture is approximated by one Gaussian (Lakshminarayanan et al. 2017)."""
    part = _standardised(x, y, new)

    def make() -> nn.Module:
        hidden = settings["hidden"]
        return nn.Sequential(nn.Linear(x.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, 2))

    batches = math.ceil(len(x) / settings["batch_size"])
    nets = population.train(
        population.initialize(make, seeds=range(seed * 100, seed * 100 + settings["members"])),
        part.train,
        likelihood=_BoundedVariance(),
        method="adam",
        epochs=max(settings["least_epochs"], settings["steps"] // batches),
        batch_size=settings["batch_size"],
        lr=settings["lr"],
        lr_schedule=partial(half_cosine, flat=0.5),
        seed=seed,
        progress=False,
    )
    found: list[Any] = nets.predict([part.x] * settings["members"], method="mean")
    means = torch.stack([pred.mean for pred in found]).double()[..., 0]
    noise = torch.stack([pred.aleatoric for pred in found]).double()[..., 0].mean(0)
    return GaussianPredictive(means.mean(0), means.var(0, correction=0), noise).rescale(
        part.scaler.mean[0], part.scaler.std[0]
    )


def gaussian_process(x: Array, y: Array, new: Array, seed: int, settings: Mapping[str, Any]) -> Predictive:
    """Fit a Gaussian process by marginal likelihood, with the best of several starts."""
    found = fit(_standardised(x, y, new), settings["restarts"], seed)[0]
    return GaussianPredictive(found.mean[:, 0], found.epistemic[:, 0], found.aleatoric[:, 0])


def ngboost(x: Array, y: Array, new: Array, seed: int, settings: Mapping[str, Any]) -> Predictive:
    """Fit natural gradient boosting of a Gaussian's mean and log deviation, with early stopping."""
    from ngboost import NGBRegressor

    (x, y), stop = _divided(x, y, settings["held_out"], seed)
    model = NGBRegressor(n_estimators=settings["trees"], verbose=False, random_state=seed)
    found = model.fit(x, y, *stop, early_stopping_rounds=settings["patience"]).pred_dist(new).params
    return _gaussian(found["loc"], found["scale"])


def catboost(x: Array, y: Array, new: Array, seed: int, settings: Mapping[str, Any]) -> Predictive:
    """Fit boosting of a Gaussian's mean and variance, with early stopping and the best of a grid on held-out rows."""
    from catboost import CatBoostRegressor

    (x, y), stop = _divided(x, y, settings["held_out"], seed)
    grid = settings.get("grid", {})
    models = []
    for values in itertools.product(*grid.values()):
        model = CatBoostRegressor(
            loss_function="RMSEWithUncertainty",
            random_seed=seed,
            verbose=False,
            allow_writing_files=False,
            thread_count=1,
            iterations=2_000 if grid else 1_000,
            **dict(zip(grid, values, strict=True)),
        )
        models.append(model.fit(x, y, eval_set=stop, early_stopping_rounds=settings["patience"]))
    best = min(models, key=lambda model: model.get_best_score()["validation"]["RMSEWithUncertainty"])
    mean, variance = best.predict(new).T
    return _gaussian(mean, np.sqrt(variance))


FITS: dict[str, Callable[..., Predictive]] = {
    "bayesadam": bayesadam,
    "deep-ensemble": deep_ensemble,
    "gaussian-process": gaussian_process,
    "ngboost": ngboost,
    "catboost": catboost,
    "catboost-tuned": catboost,
}


def _standardised(x: Array, y: Array, new: Array) -> Part:
    """Return standardised training rows and new inputs. The targets of the new inputs are not known here."""
    return Part.of(
        (torch.from_numpy(x), torch.from_numpy(y)[:, None]), (torch.from_numpy(new), torch.zeros(len(new), 1))
    )


def _divided(x: Array, y: Array, share: float, seed: int) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    order = np.random.RandomState(seed).permutation(len(x))
    cut = len(x) - round(share * len(x))
    return (x[order[:cut]], y[order[:cut]]), (x[order[cut:]], y[order[cut:]])


def _gaussian(mean: Array, std: Array) -> GaussianPredictive:
    variance = torch.from_numpy(np.square(np.asarray(std, dtype=np.float64)))
    return GaussianPredictive(torch.from_numpy(np.array(mean, dtype=np.float64)), torch.zeros_like(variance), variance)
