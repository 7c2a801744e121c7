"""How close to the exact posterior do the methods come, where the data are and away from them?

    python benchmarks/truth.py --references FOLDER      # writes runs/benchmarks/truth.json

The folder has posterior predictives of three small networks by long runs of Hamiltonian Monte Carlo (NUTS): for every
problem its definition as JSON, and arrays as NPZ with the split, and mean and variance of the function at the test
inputs. Prior and noise are known, and every method is told them; settings are the same for all problems.

A method's predictive is compared by two measures. ``kl``: the mean over the test inputs of KL(truth || method) in nats,
both as Gaussians with the mean and the variance of the noisy target, in units of the standardised targets (of the toy
inside the data alone). ``far`` and ``typical``: the geometric mean of the method's standard deviation of the function
over the truth's, at the tenth of the test inputs with the largest Mahalanobis distance from the training inputs, and at
the others (of the toy outside and inside of the data). Cost is CPU time of training and of the posterior.

Finished units are kept in the file: a run that was interrupted continues, ``--again`` does the named methods again.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import bayesadam as ba
from bayesadam import population
from bayesadam.optim import half_cosine
from bayesadam.sklearn import BayesianMLPRegressor
from public_data import load
from record import arguments, conditions, earlier, save

PROBLEMS = {"yacht": "p3_yacht_tanh10", "concrete": "p5_concrete300_relu50", "toy": "p7_toy_tanh50"}
ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}
PRIOR = 1.0
STEPS, LR = 5_000, 0.01
"""Of Adam on all data, with a rate that falls to zero by half a cosine: for what is built on trained networks."""
BATCH = 32
NOISY_STEPS, SAMPLES = 10_000, 4
"""Of methods with noisy gradients, on minibatches."""
MC_SAMPLES = 500
RATE = 0.1
"""Of dropout."""

Found = tuple[nn.Module, ba.posterior.NetworkDistribution] | BayesianMLPRegressor
"""A network and what is random about it, as ``predict`` takes them, or a fitted estimator."""


@dataclass(frozen=True)
class Problem:
    """A network, its data in standardised units, and the truth at the test inputs."""

    inputs: int
    hidden: int
    activation: str
    noise_precision: float
    train: tuple[Tensor, Tensor]
    test: Tensor
    mean: Tensor
    variance: Tensor
    far: Tensor
    inside_only: bool

    @property
    def likelihood(self) -> ba.Gaussian:
        """The known one."""
        return ba.Gaussian(self.noise_precision)

    def network(self, rate: float = 0.0) -> nn.Sequential:
        """With PyTorch's first weights."""
        hidden = [nn.Linear(self.inputs, self.hidden), ACTIVATIONS[self.activation]()]
        return nn.Sequential(*hidden, *([nn.Dropout(rate)] if rate else []), nn.Linear(self.hidden, 1))

    def compare(self, mean: Tensor, variance: Tensor) -> dict[str, float]:
        """The measures, of mean and variance of the function."""
        true, noise = self.variance, 1.0 / self.noise_precision
        ratio = (true + noise) / (variance + noise)
        kl = 0.5 * (ratio - 1.0 - ratio.log() + (self.mean - mean).square() / (variance + noise))
        log_ratio = 0.5 * (variance / true).log()
        return {
            "kl": kl[~self.far].mean().item() if self.inside_only else kl.mean().item(),
            "typical": log_ratio[~self.far].mean().exp().item(),
            "far": log_ratio[self.far].mean().exp().item(),
        }


def problem(folder: Path, name: str) -> Problem:
    """From the files of the references."""
    definition = json.loads((folder / f"{name}.json").read_text())["definition"]
    with np.load(folder / f"{name}.npz") as file:
        arrays = {key: torch.from_numpy(file[key]) for key in file.files if file[key].dtype.kind in "if"}
    toy = "x_train" in arrays
    if toy:
        x, y, test = (arrays[key].reshape(-1, 1) for key in ("x_train", "y_train", "x_test"))
        far = ((test < 0.0) | (test > 0.5))[:, 0]
    else:
        data = load("uci/" + name.split("_")[1].rstrip("0123456789"), split=None, standardize=False)
        whole_x, whole_y = data.x.double(), data.y.double().reshape(-1, 1)
        inputs = (whole_x - arrays["x_mean"]) / arrays["x_std"]
        targets = (whole_y - arrays["y_mean"]) / arrays["y_std"]
        train, rows = arrays["train_index"].long(), arrays["test_index"].long()
        torch.testing.assert_close(targets[rows, 0], arrays["y_test_model_units"].flatten(), rtol=1e-5, atol=1e-5)
        x, y, test = inputs[train], targets[train], inputs[rows]
        away = test - x.mean(0)
        distance = (away @ torch.linalg.inv(x.T.cov()) * away).sum(1)
        far = distance >= distance.sort().values[-round(len(test) / 10)]
    return Problem(
        x.shape[1],
        definition["hidden"],
        definition["activation"],
        definition["noise_precision"],
        (x.float(), y.float()),
        test.float(),
        arrays["f_mean"].flatten(),
        arrays["f_var"].flatten(),
        far,
        toy,
    )


def trained(task: Problem, models: list[nn.Module], method: str, steps: int, batch_size: int, **options: Any) -> Any:
    """A population, with a rate that falls to zero by half a cosine."""
    epochs = math.ceil(steps / math.ceil(len(task.train[0]) / batch_size))
    options |= {"epochs": epochs, "batch_size": batch_size, "lr": LR, "lr_schedule": half_cosine, "progress": False}
    return population.train(models, task.train, likelihood=task.likelihood, method=method, **options)


def modes(task: Problem, count: int) -> list[nn.Module]:
    """Networks at posterior modes, from other first weights each."""
    models = population.initialize(task.network, seeds=range(count))
    prior = ba.DiagonalGaussian(
        {name: torch.zeros_like(p) for name, p in models[0].named_parameters()},
        {name: torch.full_like(p, 1.0 / PRIOR) for name, p in models[0].named_parameters()},
    )
    nets = trained(task, models, "adam", STEPS, len(task.train[0]), prior=prior)
    for number, model in enumerate(models):
        nn.utils.vector_to_parameters(
            nn.utils.parameters_to_vector([value[number] for value in nets.mean.values()]), model.parameters()
        )
    return models


def point(task: Problem) -> Found:
    """A posterior mode."""
    (model,) = modes(task, 1)
    return model, ba.ensemble([model])


def deep_ensemble(task: Problem) -> Found:
    """Five modes."""
    models = modes(task, 5)
    return models[0], ba.ensemble(models)


def laplace(task: Problem, structure: str, count: int = 1) -> Found:
    """Around modes."""
    models = modes(task, count)
    parts: list[Any] = [
        ba.posthoc.LaplaceApproximation(model, task.train, likelihood=task.likelihood, structure=structure).posterior(
            PRIOR
        )
        for model in models
    ]
    return models[0], parts[0] if count == 1 else ba.Mixture(parts)


def anchored(task: Problem, last_layer: bool, seed: int = 0) -> Found:
    """The defaults of the library."""
    q = ba.anchored_ensemble(
        task.network,
        task.train,
        likelihood=task.likelihood,
        prior_precision=PRIOR,
        last_layer=last_layer,
        seed=seed,
        progress=False,
    )
    return task.network(), q


def noisy(task: Problem, method: str) -> Found:
    """An optimiser that samples weights, untempered."""
    models = population.initialize(task.network, seeds=range(1))
    nets = trained(task, models, method, NOISY_STEPS, BATCH, prior_precision=PRIOR, mc_samples=SAMPLES)
    return models[0], nets.posteriors[0]


def bayesadam(task: Problem, temperature: float | None) -> Found:
    """Trained at temperature 1, with a posterior that is read at a temperature, by default its own."""
    torch.manual_seed(0)
    model, count = task.network(), len(task.train[0])
    plan = {"num_data": count, "batch_size": BATCH, "total_steps": NOISY_STEPS}
    optimizer = ba.BayesAdam(model.named_parameters(), LR, **plan, prior_precision=PRIOR, temperature=1.0)
    optimizer.train()
    for _, (x, y) in minibatches(task, NOISY_STEPS):
        optimizer.zero_grad()
        torch.autograd.backward(task.likelihood.nll(model(x), y))
        optimizer.step()
    optimizer.eval()
    return model, optimizer.posterior(model, temperature=temperature)


def minibatches(task: Problem, steps: int) -> Iterator[tuple[float, tuple[Tensor, Tensor]]]:
    """The share of the training that is done, and a minibatch."""
    x, y = task.train
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        rows = torch.randperm(len(x), generator=generator)[:BATCH]
        yield step / steps, (x[rows], y[rows])


def by_adam(task: Problem, model: nn.Module, steps: int, *, lr: float = LR, falling: bool = True) -> torch.optim.Adam:
    """Train on minibatches, with the prior as weight decay."""
    scale = 1.0 / len(task.train[0])
    adam = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=PRIOR * scale)
    for done, (x, y) in minibatches(task, steps):
        adam.param_groups[0]["lr"] = lr * (half_cosine(done) if falling else 1.0)
        adam.zero_grad()
        torch.autograd.backward(task.likelihood.nll(model(x), y))
        adam.step()
    return adam


def badam(task: Problem) -> Found:
    """By the second moments of Adam."""
    torch.manual_seed(0)
    model = task.network()
    adam = by_adam(task, model, NOISY_STEPS)
    return model, ba.badam(adam, model, num_data=len(task.train[0]), prior_precision=PRIOR)


def mc_dropout(task: Problem) -> Found:
    """After the hidden layer."""
    torch.manual_seed(0)
    model = task.network(RATE)
    by_adam(task, model, NOISY_STEPS)
    return model, ba.MCDropout(model)


def swag(task: Problem) -> Found:
    """Weights of every twentieth step at a constant rate, after training as usual."""
    torch.manual_seed(0)
    model = task.network()
    by_adam(task, model, NOISY_STEPS // 2)
    collected = ba.SWAG(model, rank=20)
    for _ in range(100):
        by_adam(task, model, 20, lr=LR / 10, falling=False)
        collected.collect()
    return model, collected.posterior()


def von_full(task: Problem) -> Found:
    """With a covariance over all weights and exact Hessians."""
    torch.manual_seed(0)
    model = task.network()
    optimizer = ba.DenseVON(
        model.named_parameters(),
        lr=0.05,
        num_data=len(task.train[0]),
        betas=(0.0, 0.98),
        prior_precision=PRIOR,
        correction="elementwise",
        clip_radius=1.0,
        mc_samples=2,
        antithetic=True,
    )
    x, y = task.train
    for _ in range(1_000):
        optimizer.step(lambda: task.likelihood.nll(model(x), y))
    return model, optimizer.posterior(model)


def variational_last_layer(task: Problem, covariance: str) -> Found:
    """All data in every step, as for modes; the weights before the last layer decay as their prior says."""
    torch.manual_seed(0)
    model = task.network()
    net = ba.variational_last_layer(model, prior=PRIOR, covariance=covariance)
    adam = torch.optim.Adam(net.parameters(), LR)
    schedule = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: half_cosine(step / STEPS))
    x, y = task.train
    for _ in range(STEPS):
        adam.zero_grad()
        decay = sum(parameter.square().sum() for parameter in model[0].parameters())
        loss = net.loss(x, y, likelihood=task.likelihood, num_data=len(x)) + 0.5 * PRIOR / len(x) * decay
        torch.autograd.backward(loss)
        adam.step()
        schedule.step()
    return model, net.posterior()


def estimator(task: Problem, method: str) -> Found:
    """An estimator that is told the network, the noise and the prior; the rest are its defaults."""
    made = BayesianMLPRegressor(
        method,
        hidden=(task.hidden,),
        activation=task.activation,
        noise=task.noise_precision**-0.5,
        prior_precision=PRIOR,
        random_state=0,
    )
    x, y = task.train
    return made.fit(x.numpy(), y[:, 0].numpy())


METHODS: dict[str, tuple[Callable[[Problem], Found], str]] = {
    "point": (point, "auto"),
    "ensemble of 5": (deep_ensemble, "auto"),
    "MC dropout": (mc_dropout, "auto"),
    "SWAG": (swag, "auto"),
    "Badam": (badam, "linearized"),
    "Laplace, diagonal": (partial(laplace, structure="diagonal"), "linearized"),
    "Laplace, Kronecker": (partial(laplace, structure="kron"), "linearized"),
    "Laplace, full": (partial(laplace, structure="full"), "linearized"),
    "Laplace, last layer": (partial(laplace, structure="last_layer"), "linearized"),
    "5 x last layer": (partial(laplace, structure="last_layer", count=5), "linearized"),
    "variational last layer": (partial(variational_last_layer, covariance="full"), "auto"),
    "the same, diagonal": (partial(variational_last_layer, covariance="diagonal"), "auto"),
    "Vadam": (partial(noisy, method="vadam"), "monte_carlo"),
    "VOGN": (partial(noisy, method="vogn"), "monte_carlo"),
    "IVON": (partial(noisy, method="ivon"), "monte_carlo"),
    "Bayes by Backprop": (partial(noisy, method="bbb"), "monte_carlo"),
    "BayesAdam": (partial(bayesadam, temperature=None), "linearized"),
    "BayesAdam, temperature 1": (partial(bayesadam, temperature=1.0), "linearized"),
    "BayesAdam, temperature 1, samples": (partial(bayesadam, temperature=1.0), "monte_carlo"),
    "VON, full covariance": (von_full, "monte_carlo"),
    "anchored, no last layer": (partial(anchored, last_layer=False), "auto"),
    "anchored": (partial(anchored, last_layer=True), "auto"),
    "estimator": (partial(estimator, method="auto"), ""),
    "estimator, Laplace": (partial(estimator, method="laplace"), ""),
    "anchored, seed 1": (partial(anchored, last_layer=True, seed=1), "auto"),
    "anchored, seed 2": (partial(anchored, last_layer=True, seed=2), "auto"),
}
"""How each is found, and the method of prediction."""


def unit(task: Problem, name: str) -> dict[str, Any]:
    """The measures of a method on a problem; or the error that ended it."""
    make, way = METHODS[name]
    began = time.process_time()
    try:
        found = make(task)
    except FloatingPointError as error:
        return {"failed": str(error)}
    seconds = time.process_time() - began
    if isinstance(found, BayesianMLPRegressor):
        prediction = found.predictive(task.test.numpy())
        return {**task.compare(prediction.mean, prediction.epistemic), "cpu_seconds": seconds}
    model, posterior = found
    # As many draws as there are components, where these are points: each counts once.
    count = len(posterior.components) if isinstance(posterior, ba.Mixture) and way == "auto" else MC_SAMPLES
    pred = ba.predict(model, posterior, task.test, likelihood=task.likelihood, method=way, mc_samples=count)
    assert isinstance(pred, ba.predictive.RegressionPredictive)
    return {**task.compare(pred.mean[:, 0].double(), pred.epistemic[:, 0].double()), "cpu_seconds": seconds}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--references", type=Path, required=True, metavar="FOLDER", help="of the exact posteriors")
    parser.add_argument("--method", nargs="+", choices=list(METHODS), default=list(METHODS), metavar="NAME")
    parser.add_argument("--problem", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS), metavar="NAME")
    parser.add_argument("--again", action="store_true", help="do finished units again")
    options = parser.parse_args()
    torch.set_num_threads(1)
    report: dict[str, Any] = {"methods": {}} | earlier(options.output / "truth.json") | conditions("torch", "bayesadam")
    tasks = {name: problem(options.references, PROBLEMS[name]) for name in options.problem}
    for name in options.method:
        results = report["methods"].setdefault(name, {})
        for key, task in tasks.items():
            if options.again or key not in results:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)  # of widths that are judged here
                    results[key] = unit(task, name)
                print(f"{name}, {key}: {results[key]}", flush=True)
                save(options.output / "truth.json", report)


if __name__ == "__main__":
    main()
