"""The training loop for both networks and all methods. A killed training is resumed from its checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import bayesadam as ba
from bayesadam.optim import PerturbedOptimizer
from experiments.char_lm.evaluation import mean_loss
from experiments.char_lm.networks import State, build, rows
from experiments.char_lm.text import Text
from experiments.experiment import Progress
from experiments.files import replacing

Annealing = Callable[[float], float]
"""Function that returns the factor of the learning rate for the completed share of the training."""


@dataclass
class Curve:
    """The records of a training, several per epoch.

    Attributes:
        epoch: Times of the records, in epochs.
        train: Mean training loss per character since the last record, at the weights of the training steps.
        test: Loss per character of the test part; with a posterior, it is that of the mean network.
    """

    epoch: list[float] = field(default_factory=list)
    train: list[float] = field(default_factory=list)
    test: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Trained:
    """A network after training.

    Attributes:
        model: The network, whose weights are the point estimate or the posterior mean.
        posterior: The posterior, or ``None`` if the method has none.
        curve: The records.
        diverged: The step, counted from 1, at which training ended because a loss or a gradient was not finite.
        steps: Number of steps that were made.
    """

    model: nn.Module
    posterior: ba.DiagonalGaussian | None
    curve: Curve
    diverged: int | None
    steps: int


def make_optimizer(model: nn.Module, config: Mapping[str, Any], characters: int, steps: int) -> Optimizer:
    """Create the optimiser of a unit.

    Args:
        model: The network.
        config: ``method``, its ``options``, ``batch_size``, ``length``, ``seed``.
        characters: Size of the training part, which is ``num_data``.
        steps: Number of steps of the training.
    """
    name, options = config["method"], dict(config["options"])
    parameters = [p for p in model.parameters() if p.requires_grad]
    if "betas" in options:
        options["betas"] = tuple(options["betas"])
    if name == "sgd":
        return torch.optim.SGD(parameters, **options)
    if name == "adagrad":  # the paper's sum counts a squared gradient as 1 - beta, PyTorch's as 1
        rate = options["lr"] / math.sqrt(1.0 - options["beta"])
        return torch.optim.Adagrad(parameters, lr=rate)
    if name == "adam":
        return torch.optim.Adam(parameters, **options)
    if name == "adamw":
        return torch.optim.AdamW(parameters, **options)
    if name == "vadagrad":
        return _vadagrad(model, characters, seed=config["seed"], **options)
    options |= {"batch_size": config["batch_size"] * config["length"], "total_steps": steps, "seed": config["seed"]}
    ours: type[PerturbedOptimizer] = {"vadam": ba.Vadam, "ivon": ba.IVON}[name]
    return ours(ba.param_groups(model), num_data=characters, **options)


def _vadagrad(
    model: nn.Module, characters: int, *, lr: float, beta: float, s0: float, unit: str, seed: int
) -> Optimizer:
    """Create VadaGrad with ``s0`` in one of the units in ``UNITS``."""
    num_data, precision = {
        "mean": (1.0, s0),
        "data": (math.sqrt(characters), characters * s0),
        "sum": (float(characters), s0),
    }[unit]
    return ba.VadaGrad(
        model.named_parameters(), lr, num_data=num_data, betas=(0.0, beta), initial_precision=precision, seed=seed
    )


def annealing(config: Mapping[str, Any]) -> Annealing | None:
    """Return the schedule of the learning rate, or ``None`` if the optimiser has its own."""
    if config["decay"] == "steps":
        every = config["decay_every"] / config["published_epochs"]
        return lambda done: 0.1 ** math.floor(done / every + 1e-9)
    if config["method"] in ("vadam", "ivon"):
        return None
    return lambda done: 0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * done))  # as in our own optimisers


def train(config: Mapping[str, Any], text: Text, folder: Path, progress: Progress) -> Trained:
    """Train one network, or resume its training.

    Args:
        config: Config of the unit.
        text: Text with the training and the test part.
        folder: Folder for checkpoints, which are written with every record.
        progress: Function that is called after every few steps.
    """
    model = build(config, len(text.alphabet))
    data, test = rows(config, text.train), rows(config, text.test)
    total = round(config["epochs"] * data.steps)
    optimizer = make_optimizer(model, config, len(text.train), total)
    factor = annealing(config)
    rates = [group["lr"] for group in optimizer.param_groups]
    checkpoint = folder / "training.pt"
    curve, run, order = Curve(), _Run(), None
    if checkpoint.is_file():
        curve, run = _restore(checkpoint, model, optimizer)
    marks = {math.ceil(i * data.steps / config["records"]) for i in range(1, config["records"] + 1)}
    for step in range(run.step, total):
        epoch, place = divmod(step, data.steps)
        if place == 0:
            run.state = None
        if factor is not None:
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor(step / total)
        if place == 0 or step == run.begun:
            order = data.order(config["seed"] * 1000 + epoch)
        r, c = data.block(place, order)
        try:
            loss, run.state = _step(model, optimizer, data.x[r, c], data.y[r, c], run.state, config["clamp"])
        except FloatingPointError:
            loss = math.nan
        if not math.isfinite(loss):
            return Trained(model, None, curve, step + 1, step)
        run.step, run.loss, run.count = step + 1, run.loss + loss, run.count + 1
        if place + 1 in marks:
            curve.epoch.append((step + 1) / data.steps)
            curve.train.append(run.loss / run.count)
            curve.test.append(mean_loss(model, test))
            run.loss, run.count = 0.0, 0
            _save(checkpoint, model, optimizer, curve, run)
        if step % 20 == 0 or step + 1 == total:
            progress(step + 1, total, f"epoch {epoch + 1}, loss {loss:.3f}")
    posterior = optimizer.posterior(model) if isinstance(optimizer, PerturbedOptimizer) else None
    return Trained(model, posterior, curve, None, total)


@dataclass
class _Run:
    """The state of a training between two steps, besides the network and the optimiser."""

    step: int = 0
    begun: int = 0
    state: State | None = None
    loss: float = 0.0
    count: int = 0


def _step(
    model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor, state: State | None, clamp: float | None
) -> tuple[float, State | None]:
    """Make one step, at a posterior sample if the method has one, and return the loss and the next state."""
    with optimizer.sampled_params() if isinstance(optimizer, PerturbedOptimizer) else nullcontext():
        optimizer.zero_grad()
        logits, state = model(x, state)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
    if clamp is not None:
        nn.utils.clip_grad_value_(model.parameters(), clamp)
    optimizer.step()
    return loss.item(), None if state is None else (state[0].detach(), state[1].detach())


def _save(path: Path, model: nn.Module, optimizer: Optimizer, curve: Curve, run: _Run) -> None:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "curve": asdict(curve)}
    with replacing(path) as temporary:
        torch.save({**state, "step": run.step, "state": run.state}, temporary)


def _restore(path: Path, model: nn.Module, optimizer: Optimizer) -> tuple[Curve, _Run]:
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return Curve(**saved["curve"]), _Run(step=saved["step"], begun=saved["step"], state=saved["state"])
