"""Optimisers that are compared: a step with given gradients, and a training iteration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.curvature import PerExampleSquares
from bayesadam.optim import OPTIMIZERS

Step = Callable[[], Any]
Contender = Callable[[Sequence[nn.Parameter]], tuple[Any, Step]]
"""From parameters that have gradients to an optimiser and its step, which has these gradients every time."""
NUM_DATA, BATCH_SIZE, RATE = 50_000, 128, 1e-6


def give(params: Iterable[nn.Parameter], grads: Iterable[Tensor | None]) -> None:
    for parameter, grad in zip(params, grads, strict=True):
        parameter.grad = grad


def adam(params: Sequence[nn.Parameter], **options: Any) -> tuple[Any, Step]:
    opt = torch.optim.Adam(params, **options)
    return opt, opt.step


def ivon_opt(params: Sequence[nn.Parameter]) -> tuple[Any, Step]:
    import ivon

    opt = ivon.IVON(params, lr=RATE, ess=NUM_DATA, weight_decay=1.0 / NUM_DATA)
    grads = [p.grad for p in params]

    def step() -> None:
        with opt.sampled_params(train=True):
            give(params, grads)
        opt.step()

    return opt, step


def optimizer(name: str, model: nn.Module, **options: Any) -> Any:
    """One of ours, with what it requires; names are those of its class."""
    key = name.lower()
    required: dict[str, Any] = {"lr": RATE, "num_data": NUM_DATA}
    if key == "bayesadam":
        required |= {"batch_size": BATCH_SIZE, "total_steps": 1_000}
    if key == "vadagrad":
        required["initial_precision"] = 50.0
    if key == "vogn":
        required["curvature"] = PerExampleSquares(model)
    return OPTIMIZERS[key](model.named_parameters(), **required | options)


def ours(params: Sequence[nn.Parameter], name: str, *, blocks: bool, **options: Any) -> tuple[Any, Step]:
    """With blocks, or in drop-in training."""
    opt = optimizer(name, nn.ParameterList(params), **options)
    grads = [p.grad for p in params]
    if not blocks:
        opt.train()
        return opt, opt.step

    def step() -> None:
        with opt.sampled_params():
            give(params, grads)
        opt.step()

    return opt, step


def iteration_of_adam(params: Iterable[nn.Parameter], backward: Step) -> Step:
    """A whole training iteration around a forward and backward pass."""
    opt = torch.optim.Adam(params, lr=1e-4, fused=True)

    def iterate() -> None:
        opt.zero_grad()
        backward()
        opt.step()

    return iterate
