"""Ensembles of posteriors: networks trained one after another by any optimiser of the library, as one mixture."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from bayesadam.checks import check_count, check_new, check_pair, check_positive, made_by
from bayesadam.curvature import PerExampleSquares
from bayesadam.likelihoods import Likelihood, check_likelihood
from bayesadam.modules.batch_norm import statistics_are_fixed
from bayesadam.optim import OPTIMIZERS, VOGN, BayesAdam, PerturbedOptimizer
from bayesadam.population import METHODS, order
from bayesadam.posterior import DenseGaussian, DiagonalGaussian, KroneckerGaussian, Mixture, PartialGaussian
from bayesadam.predictive import with_batch_norm
from bayesadam.progress import Advance, progress_bar

Gaussians = DenseGaussian | DiagonalGaussian | KroneckerGaussian
"""What the optimisers' posteriors are."""


@torch.inference_mode(False)
@torch.enable_grad()
def train_ensemble(
    make_model: Callable[[], nn.Module],
    data: tuple[Tensor, Tensor],
    *,
    likelihood: Likelihood,
    epochs: int,
    batch_size: int,
    members: int = 5,
    method: str = "bayesadam",
    lr: float | None = None,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Mixture:
    """Train several networks from different first weights, each with a posterior of its own, and return their mixture.

    It is a deep ensemble (Lakshminarayanan et al. 2017) whose members are posteriors and not points: the mixture has
    the variance within every member, and that between them. Member ``m`` is trained alone with the seed ``seed + m``,
    which decides its first weights, the order of its data, its dropout and its noise. It takes one sample per step, and
    the learning rate falls to zero by half a cosine.

    :func:`bayesadam.population.train` trains small networks at once, which is faster; here every network works, also
    with batch normalisation, whose statistics become a part of each member.

    Args:
        make_model: Makes a network that takes and returns one tensor, with its first weights from torch's generator.
        data: Training inputs and targets ``(x, y)``, on the device of the network.
        likelihood: What the outputs mean; all numbers in it are known.
        epochs: Passes over the data.
        batch_size: Data points per minibatch.
        members: How many networks.
        method: ``"bayesadam"`` or another name of an optimiser of the library, or ``"adam"`` for point masses, an
            ordinary deep ensemble.
        lr: Learning rate at the start; default: that of the optimiser.
        options: Further arguments of the optimiser by name.
        seed: Seed of the first member.
        progress: Whether to show a progress bar; by default it is shown in a terminal.

    Returns:
        An equal mixture of the members' posteriors. The statistics of batch norm layers are those of every member's
        mean; give :func:`bayesadam.predict` training inputs as ``batch_norm`` for those of every sample.

    Raises:
        ValueError: A number is out of range, the method is unknown, something is no likelihood or one with learned
            parameters, the data are no pair of as many inputs as targets, or ``make_model`` is no function that returns
            new networks.
        TypeError: The optimiser does not have an option.
        FloatingPointError: A gradient is not finite.
    """
    for name, value in {"epochs": epochs, "batch_size": batch_size, "members": members}.items():
        check_count(name, value)
    if method not in METHODS:
        raise ValueError(f"method must be one of {METHODS}, got {method!r}")
    if lr is not None:
        check_positive("lr", lr)
    check_likelihood(likelihood, learned=False)
    check_pair(data)
    told = {"method": method, "epochs": epochs, "batch_size": batch_size, "lr": lr, "seed": seed, **(options or {})}
    steps = math.ceil(len(data[0]) / batch_size) * epochs
    found = []
    before: list[nn.Module] = []
    with progress_bar("training", steps * members, progress) as advance:
        for number in range(seed, seed + members):
            with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
                torch.manual_seed(number)
                model = made_by(make_model)
                check_new([*before, model])
                before = [model]
                optimizer = _optimizer(model, method, lr, len(data[0]), batch_size, steps, number, dict(options or {}))
                _train(model, optimizer, data, likelihood, epochs, batch_size, number, advance)
            if isinstance(optimizer, PerturbedOptimizer):
                posterior: Gaussians = optimizer.posterior(model)
                if not statistics_are_fixed(model):
                    posterior = with_batch_norm(model, posterior, data[0])
            else:
                posterior = DiagonalGaussian.point_mass(model)
            found.append((posterior, _constants(model)))
    return Mixture(_together(found), hyperparameters=told)


def _optimizer(
    model: nn.Module,
    method: str,
    lr: float | None,
    count: int,
    batch_size: int,
    steps: int,
    seed: int,
    options: dict[str, Any],
) -> torch.optim.Optimizer:
    """The optimiser of a member, which is told what it asks for."""
    if lr is not None:
        options["lr"] = lr
    if method == "adam":
        return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], **options)
    kind = OPTIMIZERS[method]
    plan: dict[str, Any] = {}
    if kind is BayesAdam:
        plan |= {"batch_size": min(count, batch_size), "total_steps": steps}
    if kind is VOGN:
        plan["curvature"] = PerExampleSquares(model)
    return kind(model.named_parameters(), **{"num_data": count, "seed": seed, **plan, **options})


def _train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: tuple[Tensor, Tensor],
    likelihood: Likelihood,
    epochs: int,
    batch_size: int,
    seed: int,
    advance: Advance,
) -> None:
    """Train a network, whose weights hold the mean at the end."""
    x, y = data
    schedule = CosineAnnealingLR(optimizer, math.ceil(len(x) / batch_size) * epochs)
    model.train()
    if isinstance(optimizer, PerturbedOptimizer):
        optimizer.train()
    for epoch in range(epochs):
        losses: list[Tensor] = []
        for rows in torch.split(torch.from_numpy(order(len(x), seed=seed, epoch=epoch)).to(x.device), batch_size):
            optimizer.zero_grad()
            loss = likelihood.nll(model(x[rows]), y[rows])
            losses.append(loss.detach())
            if not loss.is_cuda:
                _check_finite(losses[-1:], seed)
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
            advance()
        _check_finite(losses, seed)  # a GPU, whose parameters nan makes nan, is waited for here alone
    if isinstance(optimizer, PerturbedOptimizer):
        optimizer.eval()
    model.eval()


def _check_finite(losses: list[Tensor], seed: int) -> None:
    if not (together := torch.stack(losses)).isfinite().all():
        raise FloatingPointError(
            f"the loss of member {seed} must be finite, got {together[~together.isfinite()][0].item()!r}"
        )


def _constants(model: nn.Module) -> dict[str, Tensor]:
    """The frozen parameters of a network."""
    return {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}


def _together(found: list[tuple[Gaussians, dict[str, Tensor]]]) -> list[Gaussians | PartialGaussian]:
    """The members' posteriors, with those of their constants that are not the same for all."""
    first = found[0][1]
    differing = [name for name in first if any(not torch.equal(first[name], other[name]) for _, other in found)]
    if not differing:
        return [q for q, _ in found]
    return [PartialGaussian(q, {name: other[name] for name in differing}).with_buffers(q.buffers) for q, other in found]
