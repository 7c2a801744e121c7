"""The methods of 40 epochs: training of all splits and candidates together, scores, and Bayesian optimisation."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch
from optuna.storages.journal import JournalFileBackend
from sklearn.model_selection import KFold
from torch import Tensor, nn

import bayesadam as ba
from bayesadam import population
from bayesadam.predictive.result import Predictive
from experiments.data import load
from experiments.framework import pick
from experiments.uci import Part

OnEpoch = Callable[[int, list[int], population.Population], None]


@dataclass(frozen=True)
class Precisions:
    """Tuned parameters: natural logarithms of the noise precision, in standardised units, and prior precision."""

    log_noise: float
    log_prior: float


def folds(name: str, count: int, parts: int, seed: int) -> list[list[Part]]:
    """Divide the training part of every split into training and validation rows in ``parts`` ways."""
    found = []
    for split in range(count):
        data = load(f"uci/{name}", split=split)
        x, y = data.x_train, data.y_train
        divide = KFold(parts, shuffle=True, random_state=seed).split(np.arange(len(x)))
        found.append([Part.of((x[a], y[a]), (x[b], y[b])) for a, b in divide])
    return found


def fit(
    parts: Sequence[Part],
    candidates: Sequence[Precisions],
    seeds: Sequence[int],
    config: dict[str, Any],
    on_epoch: OnEpoch | None = None,
) -> population.Population:
    """Train one network per part and candidate.

    Args:
        parts: Parts, of which the training rows are used.
        candidates: One candidate per part.
        seeds: Seeds of weights, noise and order, one per part.
        config: hidden, method, epochs, batch_size, lr, betas, mc_samples. The precision of the posterior starts at that
            of the prior, or at ``initial_precision``, or at that of the prior plus ``initial_hessian`` for every data
            point.
        on_epoch: Function that is called after every epoch, as in :func:`bayesadam.population.train`.
    """
    noise, prior = ([math.exp(v) for v in values] for values in zip(*map(astuple, candidates), strict=True))
    sizes = [len(part.train[0]) for part in parts]
    make: Callable[[], nn.Module] = partial(network, parts[0], config["hidden"])
    if config["method"] == "fawn-ropd":
        make = partial(density_network, parts[0], config)
        objective = [Density(*own) for own in zip(noise, prior, sizes, strict=True)]
        own: dict[str, Any] = {"method": "adam", "objective": objective}
    else:
        hessian, start = config.get("initial_hessian", 0.0), config.get("initial_precision")
        starts = [p + hessian * size if start is None else start for p, size in zip(prior, sizes, strict=True)]
        own = {"likelihood": [ba.Gaussian(n) for n in noise], "prior_precision": prior, "initial_precision": starts}
        own |= pick(config, "method", "mc_samples")
    return population.train(
        population.initialize(make, seeds=seeds),
        [part.train for part in parts],
        seed=list(seeds),
        betas=tuple(config["betas"]),
        nonfinite="skip",
        progress=False,
        on_epoch=on_epoch,
        **pick(config, "epochs", "batch_size", "lr"),
        **own,
    )


def network(part: Part, hidden: int) -> nn.Sequential:
    """Create a network with one hidden layer of ReLU. Weights and biases are uniform in +-1/sqrt(fan_in)."""
    return nn.Sequential(nn.Linear(part.x.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, 1))


def scores(nets: population.Population, parts: Sequence[Part], config: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the test scores of every member by metric; see :func:`score`."""
    if config["method"] == "fawn-ropd":
        predictions = propagated(nets, parts)
    else:
        inputs = [part.x for part in parts]
        predictions = nets.predict(inputs, mc_samples=config["evaluation_samples"], seed=config["seed"])
    found = [score(prediction, part) for prediction, part in zip(predictions, parts, strict=True)]
    return {metric: [own[metric] for own in found] for metric in found[0]}


def score(prediction: Predictive, part: Part) -> dict[str, float]:
    """Return the RMSE of the mean, and the mean log-likelihood, pointwise and joint, in original units.

    The joint log-likelihood is left out if the predictive distribution does not describe the dependence between data
    points.
    """
    assert isinstance(prediction, ba.predictive.RegressionPredictive)
    scaled = prediction.rescale(part.scaler.mean, part.scaler.std)
    found = {
        "rmse": float((scaled.mean - part.y).double().square().mean().sqrt()),
        "log_likelihood": float(scaled.log_prob(part.y).double().mean()),
    }
    if not isinstance(scaled, ba.predictive.GaussianPredictive):
        found["joint_log_likelihood"] = float(scaled.joint_log_likelihood(part.y)) / len(part.y)
    return found


class Density(population.Objective):
    """The loss ``-log N(y | mean, variance + 1 / noise precision)`` and the divergence from
    ``N(0, 1 / prior precision)``.

    Args:
        noise: Noise precision in standardised units.
        prior: Prior precision.
        num_data: Number of the member's training data points.
    """

    def __init__(self, noise: float, prior: float, num_data: int) -> None:
        super().__init__()
        self.likelihood = ba.Gaussian(noise)
        self.prior: Tensor
        self.num_data: Tensor
        self.register_buffer("prior", torch.tensor(prior, dtype=torch.float64))
        self.register_buffer("num_data", torch.tensor(float(num_data), dtype=torch.float64))

    def losses(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Return the negative log-density of every target (Bayer et al. 2015, section 3.4)."""
        output = model(x)
        return -self.likelihood.log_expected_density(output.mean, output.spread(), y, None)

    def penalty(self, model: nn.Module) -> Tensor:
        """Return the divergence in closed form, per data point."""
        assert isinstance(model, ba.moments.MomentModule)
        total = torch.zeros((), dtype=torch.float64)
        for weight in model.weights.moments().values():
            assert weight.variance is not None
            ratio = weight.variance.double() * self.prior
            total = total + 0.5 * (weight.mean.double().square() * self.prior + ratio - 1.0 - ratio.log()).sum()
        return total / self.num_data


def density_network(part: Part, config: Mapping[str, Any]) -> nn.Module:
    """Create the network that propagates moments."""
    return ba.fawn(network(part, config["hidden"]), prior=1.0, initial_std=config["initial_std"])


@torch.no_grad()
def propagated(nets: population.Population, parts: Sequence[Part]) -> list[Predictive]:
    """Return the predictions of every member by propagated moments."""
    found = []
    model = network(parts[0], nets.mean["weights.model.0.weight"].shape[1])
    for member, (objective, part) in enumerate(zip(nets.objectives, parts, strict=True)):
        own = {name.removeprefix("weights."): value[member] for name, value in nets.mean.items()}
        mean = {name.removeprefix("model."): value for name, value in own.items() if name.startswith("model.")}
        spread = [value.exp() for name, value in own.items() if name.startswith("log_variance.")]
        posterior = ba.DiagonalGaussian(mean, dict(zip(mean, spread, strict=True)))
        assert isinstance(objective, Density)
        found.append(ba.predict(model, posterior, part.x, likelihood=objective.likelihood, method="moments"))
    return found


Objective = Callable[[int, dict[int, Precisions]], list[float]]
Tuned = tuple[list[Precisions], list[float]]


def tune(objective: Objective, names: Sequence[str], config: Mapping[str, Any], path: Path) -> Tuned:
    """Return the best precisions of every study, and their values, by Optuna's Gaussian process.

    A stopped search resumes from the journal. A candidate depends on the study's earlier trials and on the seed only,
    so that the result is that of an uninterrupted search.

    Args:
        objective: Function from the number of the round, and a candidate for each study by its position, to values. A
            value that is not finite counts as the worst so far of its study.
        names: Names of the studies, one per split.
        config: space, rounds, startup, seed.
        path: File of the journal.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
    options: dict[str, Any] = {"storage": storage, "direction": "maximize", "load_if_exists": True}
    studies = [optuna.create_study(study_name=name, **options) for name in names]
    space: dict[str, Any] = {name: optuna.distributions.FloatDistribution(*v) for name, v in config["space"].items()}
    for study in studies:
        for lost in study.get_trials(states=[optuna.trial.TrialState.RUNNING]):  # when the process was killed
            study.tell(lost.number, state=optuna.trial.TrialState.FAIL)
    for number in range(config["rounds"]):
        asked = {}
        for position, study in enumerate(studies):
            if len(_values(study)) == number:
                seed = int(np.random.SeedSequence(config["seed"], spawn_key=(position, number)).generate_state(1)[0])
                study.sampler = _sampler(seed, config["startup"])
                asked[position] = study.ask(space)
        if asked:
            values = objective(number, {position: Precisions(**trial.params) for position, trial in asked.items()})
            for (position, trial), value in zip(asked.items(), values, strict=True):
                worst = min(_values(studies[position]), default=-1e3)
                studies[position].tell(trial, value if math.isfinite(value) else worst)
    return [Precisions(**study.best_params) for study in studies], [study.best_value for study in studies]


def _values(study: optuna.Study) -> list[float]:
    trials = study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE])
    return [trial.value for trial in trials if trial.value is not None]


def _sampler(seed: int, startup: int) -> optuna.samplers.BaseSampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.GPSampler(seed=seed, n_startup_trials=startup, warn_independent_sampling=False)
