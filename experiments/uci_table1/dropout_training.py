"""Training of networks with one dropout rate together by Adam: their weights are stacked along a new first axis."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.files import replacing

SECONDS = 20.0
"""Minimum time in seconds between two checkpoints."""
_LEVELS = 2**16
"""Number of values of a random number that drops a unit. Dropout rates are rounded to multiples of its inverse."""


def train(
    models: Sequence[nn.Module],
    data: Sequence[tuple[Tensor, Tensor]],
    decay: Sequence[float],
    config: Mapping[str, Any],
    checkpoint: Path,
    progress: Callable[[float], None],
) -> None:
    """Minimise the mean squared error plus ``decay`` times the sum of the squared weights, without the biases.

    Args:
        models: Networks of dropout, linear, ReLU, dropout and linear layers, all with the same rate. They receive the
            trained weights.
        data: Inputs ``(n, d)`` and targets ``(n, 1)`` of every network, of equal sizes.
        decay: Strength of the weight decay, one per network.
        config: epochs, batch_size, lr, and the seed of order and dropout. All networks have minibatches of the same
            rows; the last minibatch of an epoch is smaller.
        checkpoint: File for checkpoints, from which a stopped training is resumed. This function does not delete it.
        progress: Function that is called after every epoch with the completed share of the training.
    """
    rate = next(layer.p for layer in models[0].modules() if isinstance(layer, nn.Dropout))
    x, y = (torch.stack([pair[i] for pair in data]) for i in (0, 1))
    linear = [[layer for layer in model.modules() if isinstance(layer, nn.Linear)] for model in models]
    weights = [
        torch.stack([getattr(own[place], name).detach() for own in linear]).requires_grad_()
        for place in (0, 1)
        for name in ("weight", "bias")
    ]
    strength = torch.tensor(list(decay))[:, None, None]
    optimizer = torch.optim.Adam(weights, lr=config["lr"], fused=True)
    generator = torch.Generator().manual_seed(config["seed"])
    done = _load(checkpoint, weights, optimizer, generator)
    saved = time.monotonic()
    for epoch in range(done, config["epochs"]):
        for rows in torch.split(torch.randperm(x.shape[1], generator=generator), config["batch_size"]):
            optimizer.zero_grad()
            output = forward(weights, x[:, rows], rate, generator)
            loss = (output - y[:, rows]).square().mean(1).sum()
            for weight in weights[::2]:
                loss = loss + (strength * weight.square()).sum()
            torch.autograd.backward(loss)
            optimizer.step()
        progress((epoch + 1) / config["epochs"])
        if epoch + 1 == config["epochs"] or time.monotonic() > saved + SECONDS:
            _save(checkpoint, weights, optimizer, generator, epoch + 1)
            saved = time.monotonic()
    with torch.no_grad():
        for row, (first, last) in enumerate(linear):
            for parameter, weight in zip([*first.parameters(), *last.parameters()], weights, strict=True):
                parameter.copy_(weight[row])


def forward(weights: Sequence[Tensor], x: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    """Return outputs ``(P, M, 1)`` of all networks. The dropped units of a data point are its own."""
    first, first_bias, last, last_bias = weights
    hidden = torch.baddbmm(first_bias.unsqueeze(1), x * mask(x.shape, rate, generator), first.transpose(1, 2)).relu()
    hidden = hidden * mask(hidden.shape, rate, generator)
    return torch.baddbmm(last_bias.unsqueeze(1), hidden, last.transpose(1, 2))


def mask(shape: torch.Size, rate: float, generator: torch.Generator) -> Tensor:
    """Return a mask, whose elements are 0 with probability ``rate`` and otherwise ``1 / (1 - rate)``.

    It uses sixteen random bits per element, which is a few times as fast as ``bernoulli_``, whose time would dominate
    the training.
    """
    words = torch.empty(-(-shape.numel() // 4), dtype=torch.int64).random_(-(2**63), None, generator=generator)
    dropped = round(rate * _LEVELS)
    kept = words.view(torch.int16)[: shape.numel()].view(shape) >= dropped - _LEVELS // 2
    return kept.float().mul_(_LEVELS / (_LEVELS - dropped))


def _save(
    path: Path, weights: Sequence[Tensor], optimizer: torch.optim.Adam, generator: torch.Generator, epoch: int
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {
        "weights": list(weights),
        "adam": optimizer.state_dict(),
        "generator": generator.get_state(),
        "epoch": epoch,
    }
    with replacing(path) as file:
        torch.save(state, file)


def _load(path: Path, weights: Sequence[Tensor], optimizer: torch.optim.Adam, generator: torch.Generator) -> int:
    """Restore a checkpoint, and return the number of completed epochs."""
    if not path.is_file():
        return 0
    state = torch.load(path, weights_only=True)
    with torch.no_grad():
        for weight, value in zip(weights, state["weights"], strict=True):
            weight.copy_(value)
    optimizer.load_state_dict(state["adam"])
    generator.set_state(state["generator"])
    return int(state["epoch"])
