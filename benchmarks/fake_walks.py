"""A walk through what the library offers, on tensors of a GPU that is not there; see :mod:`fake_gpu`."""

from __future__ import annotations

import fake_gpu  # before torch is imported

# isort: split
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import bayesadam as ba
from bayesadam.sklearn import BayesianMLPClassifier, BayesianMLPRegressor
from contenders import optimizer


def walks() -> dict[str, Any]:
    """What each part of the library dispatches on a GPU, on its second call."""
    found = {}
    for name, function in WALKS.items():
        with fake_gpu.fake(triton=True) as watch:
            with fake_gpu.CUDA:
                again = function()
            again()
            watch.clear()
            again()
            found[name] = watch.report()
    return found


def network() -> nn.Sequential:
    with fake_gpu.CUDA:
        return nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Dropout(0.1), nn.Linear(20, 4))


def data() -> tuple[Tensor, Tensor]:
    return torch.randn(16, 3), torch.zeros(16, dtype=torch.int64)


def training(name: str, mode: str, **options: Any) -> Callable[[], Any]:
    """One step, with forward and backward pass."""
    net, (x, y) = network(), data()
    opt = optimizer(name, net, **options)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = cross_entropy(net(x), y)
        loss.backward()
        return loss

    def step() -> None:
        if mode == "train":
            opt.train()
        if mode == "block":
            with opt.sampled_params():
                closure()
            opt.step()
        else:
            opt.step(closure)

    return step


def posterior() -> ba.DiagonalGaussian:
    net = network()
    mean = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    return ba.DiagonalGaussian(mean, {name: torch.ones_like(value) for name, value in mean.items()})


def sampling() -> Callable[[], Any]:
    net, write = network(), posterior().writer(0)
    return lambda: write(dict(net.named_parameters()), 3)


def predicting(method: str) -> Callable[[], Any]:
    net, q, (x, _) = network(), posterior(), data()
    return lambda: ba.predict(net, q, x, likelihood=ba.Categorical(), mc_samples=4, method=method)


def module(make: Callable[[nn.Module], Any]) -> Callable[[], Any]:
    """A step with a network whose weights are random."""
    net, (x, y) = make(nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 4))), data()
    opt = torch.optim.Adam(net.parameters())

    def step() -> None:
        opt.zero_grad()
        net.loss(x, y, likelihood=ba.Categorical(), num_data=50).backward()
        opt.step()

    return step


def laplace(structure: str) -> Callable[[], Any]:
    options: dict[str, Any] = {"structure": structure, "prior_precision": 1.0}
    return partial(ba.laplace, network(), data(), likelihood=ba.Categorical(), **options)


def dropout() -> Callable[[], Any]:
    net, (x, _) = network(), data()
    return lambda: ba.predict(net, ba.MCDropout(net), x, likelihood=ba.Categorical(), mc_samples=4)


def population() -> Callable[[], Any]:
    options: dict[str, Any] = {"epochs": 3, "batch_size": 8, "lr": 0.01, "progress": False}
    return partial(ba.population.train, [plain(), plain()], data(), likelihood=ba.Categorical(), **options)


def metrics() -> Callable[[], Any]:
    probs, target = torch.full((16, 4), 0.25), torch.zeros(16, dtype=torch.int64)
    names = ("accuracy", "brier_score", "expected_calibration_error")
    return lambda: [getattr(ba.metrics, name)(probs, target) for name in names]


def swag(method: str) -> Callable[[], Any]:
    found = ba.SWAG(network(), rank=2)
    for _ in range(3):
        found.collect()
    return getattr(found, method)


def anchored() -> Callable[[], Any]:
    options: dict[str, Any] = {"members": 2, "steps": 4, "batch_size": 8, "progress": False}
    return partial(ba.anchored_ensemble, plain, data(), likelihood=ba.Categorical(), **options)


def plain() -> nn.Sequential:
    """A network without dropout."""
    return network()[::3]


def badam(pair: bool) -> Callable[[], Any]:
    net, (x, y) = network(), data()
    opt = torch.optim.Adam(net.parameters())
    cross_entropy(net(x), y).backward()
    opt.step()
    options: dict[str, Any] = {"data": (x, y), "likelihood": ba.Categorical()} if pair else {}
    return partial(ba.badam, opt, net, num_data=50, **options)


def held_out(function: Callable[..., Any], **options: Any) -> Callable[[], Any]:
    """A function of a model, a posterior and held-out data."""
    net, q = network(), posterior()
    both = {"model": net, "posterior": q, "held_out": data()}
    return partial(function, **both, likelihood=ba.Categorical(), mc_samples=4, **options)


def pruned() -> Callable[[], Any]:
    x, y = data()
    options: dict[str, Any] = {"likelihood": ba.Categorical(), "fractions": (0.0, 0.5), "progress": False}
    return partial(ba.pruning_curve, network(), posterior(), (x, y), **options)


def bound() -> Callable[[], Any]:
    return partial(ba.elbo, network(), posterior(), *data(), likelihood=ba.Categorical(), prior=1.0, mc_samples=4)


def ensemble(method: str) -> Callable[[], Any]:
    options: dict[str, Any] = {"epochs": 2, "batch_size": 8, "members": 2, "method": method, "progress": False}
    return partial(ba.train_ensemble, network, data(), likelihood=ba.Categorical(), **options)


def fitted(make: Callable[..., Any], *, predicts: bool) -> Callable[[], Any]:
    """An estimator of tables, whose data are on the host."""
    x = np.linspace(-1.0, 1.0, 60).reshape(30, 2)
    y = x[:, 0] if make is BayesianMLPRegressor else np.arange(30) % 3
    estimator = make(device="cuda", epochs=3, members=2, batch_size=8, early_stopping=False, calibrate=False)
    with torch.device("cpu"):
        return partial(estimator.fit(x, y).predict, x) if predicts else partial(estimator.fit, x, y)


WALKS: dict[str, Callable[[], Callable[[], Any]]] = {
    **{
        f"{name} {mode}": partial(training, name, mode)
        for name in ("Vadam", "IVON")
        for mode in ("train", "block", "closure")
    },
    "BayesAdam train": partial(training, "BayesAdam", "train", prior_precision=1.0),
    "VOGN train": partial(training, "VOGN", "train"),
    "Vadam closure, 2 samples": partial(training, "Vadam", "closure", mc_samples=2),
    "a posterior sample": sampling,
    "predict, Monte Carlo": partial(predicting, "monte_carlo"),
    "predict, mean": partial(predicting, "mean"),
    "predict, linearized": partial(predicting, "linearized"),
    "predict, moments": partial(predicting, "moments"),
    "predict, dropout": dropout,
    "Bayes by Backprop": partial(module, ba.variational),
    "FAWN": partial(module, ba.fawn),
    "Laplace, diagonal": partial(laplace, "diagonal"),
    "Laplace, Kronecker": partial(laplace, "kron"),
    "population, 6 steps": population,
    "metrics": metrics,
    "SWAG, collect": partial(swag, "collect"),
    "SWAG, posterior": partial(swag, "posterior"),
    "anchored_ensemble, 2 members of 4 steps": anchored,
    "badam": partial(badam, False),
    "badam, with data": partial(badam, True),
    "calibrate": partial(held_out, ba.calibrate),
    "compare": partial(held_out, ba.compare),
    "tune_posterior": partial(held_out, ba.tune_posterior),
    "pruning_curve": pruned,
    "elbo": bound,
    "train_ensemble, 2 members of 4 steps": partial(ensemble, "bayesadam"),
    "train_ensemble of Adam, 2 members of 4 steps": partial(ensemble, "adam"),
    "variational_last_layer": partial(module, ba.variational_last_layer),
    "regressor, fit": partial(fitted, BayesianMLPRegressor, predicts=False),
    "regressor, predict": partial(fitted, BayesianMLPRegressor, predicts=True),
    "classifier, fit": partial(fitted, BayesianMLPClassifier, predicts=False),
    "classifier, predict": partial(fitted, BayesianMLPClassifier, predicts=True),
}


def everything(*, quick: bool) -> dict[str, Any]:
    """Steps, and all walks."""
    return {"steps": fake_gpu.steps(quick=quick), "walks": walks()}
