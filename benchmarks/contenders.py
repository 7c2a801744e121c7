"""Optimisers with given gradients, and what takes one step of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import bayesadam as ba

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


def optimizer(name: str, params: Iterable[Any], **options: Any) -> Any:
    """One of ours, with what it requires."""
    required = {"batch_size": BATCH_SIZE} if name == "BayesAdam" else {}
    return getattr(ba, name)(params, lr=RATE, num_data=NUM_DATA, **required, **options)


def ours(params: Sequence[nn.Parameter], name: str, *, blocks: bool, **options: Any) -> tuple[Any, Step]:
    """With blocks, or in drop-in training."""
    opt = optimizer(name, params, **options)
    grads = [p.grad for p in params]
    if not blocks:
        opt.train()
        return opt, opt.step

    def step() -> None:
        with opt.sampled_params():
            give(params, grads)
        opt.step()

    return opt, step
