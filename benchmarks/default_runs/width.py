"""Has a posterior learned its width? Its variances against the curvature of the loss, found independently."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor

import bayesadam as ba
from default_runs.training import Trained
from default_tasks import Data, Task, positions

PROBES = 128


def width(task: Task, data: Data, trained: Trained) -> dict[str, Any]:
    """Quantiles of the standard deviations, and how they compare with ``N GGN / temperature + prior precision``.

    ``ratio`` has the quartiles over the weights of the variance times that reference, which are 1 if the width is what
    the data and the prior say, and ``correlation`` is that of the logarithms of precision and reference. Weights
    without noise do not count.
    """
    q = trained.posterior()
    curvature = ggn_diagonal(task, data, trained, q)
    count = len(data.train[0]) * positions(task, data)
    variances, references = [], []
    for name, variance in q.variance.items():
        if variance.any():
            variances.append(variance.double().flatten())
            references.append(reference(trained, name, count * curvature[name]).double().flatten())
    variance, expected = torch.cat(variances), torch.cat(references)
    logs = torch.stack([-variance.log(), expected.log()])
    return {
        "sigma": quantiles(variance.sqrt(), 0.01, 0.5, 0.99),
        "ratio": quantiles(variance * expected, 0.25, 0.5, 0.75),
        "correlation": float(torch.corrcoef(logs)[0, 1]),
        "share_from_start": trained.optimizer.report(trained.model).total.start_share,
    }


def reference(trained: Trained, name: str, curvature: Tensor) -> Tensor:
    """The precision that a weight should have, given the summed curvature of its loss over all data.

    The curvature is divided by the posterior's temperature, if it is not 0, and the prior's precision is
    added: the weights' own in ``state[parameter]["prior_precision"]`` if the optimiser keeps one there, else the
    group's number.
    """
    temperature = trained.posterior().hyperparameters["temperature"]
    parameter = dict(trained.model.named_parameters())[name]
    groups = trained.optimizer.param_groups
    group = next(group for group in groups if any(parameter is one for one in group["params"]))
    own = trained.optimizer.state.get(parameter, {})
    prior = own["prior_precision"] if "prior_precision" in own else group["prior_precision"]
    return curvature / (temperature or 1.0) + torch.as_tensor(prior)


def ggn_diagonal(task: Task, data: Data, trained: Trained, q: ba.DiagonalGaussian) -> dict[str, Tensor]:
    """Diagonal of the generalised Gauss-Newton matrix of the mean loss, a mean over the posterior, by name.

    The likelihoods are exponential families in the network's output, so it is the Fisher information: the expected
    square of the gradient at targets drawn from the model's own prediction. Such gradients of different data points
    are independent with mean zero, so the square of their sum over a minibatch has the sum of their squares as its
    expectation. Each probe is one posterior sample, minibatch and draw of targets; 128 of them give every weight to
    about 1/8. The network is in eval mode: BatchNorm takes its running statistics.
    """
    model, likelihood = trained.model.eval(), trained.likelihood
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    totals = {name: torch.zeros_like(p) for name, p in parameters.items()}
    generator, points = Generator().manual_seed(1), 0
    for probe in range(PROBES):
        rows = torch.randint(len(data.train[0]), (task.batch_size,), generator=generator)
        x = data.train[0][rows]
        x = x if task.augment is None else task.augment(x, generator)
        with q.applied(model, sample=probe, seed=1):
            output = model(x)
            target = likelihood.sample(output.detach(), seed=probe)
            log_density = likelihood.log_density(output, target)
            gradients = torch.autograd.grad(log_density.sum(), list(parameters.values()), allow_unused=True)
        points += log_density.numel()
        for total, gradient in zip(totals.values(), gradients, strict=True):
            if gradient is not None:
                total.add_(gradient.square())
    return {name: total / points for name, total in totals.items()}


def quantiles(values: Tensor, *levels: float) -> list[float]:
    """Of all values, whatever their number."""
    ordered = values.sort().values
    return [float(ordered[round(level * (len(ordered) - 1))]) for level in levels]
