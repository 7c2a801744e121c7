"""The learning rate and the betas of every step: they follow the share of the training, or the number of steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Schedule = Callable[[float], float]
Decay = Callable[[int], float]


class Rates:
    """What changes from step to step, for members that are in different steps of a training of different length.

    Args:
        epochs: Of the whole training.
        lr_schedule: Factor on the learning rate, given the share of the training that is done.
        lr_decay: The same, given the number of steps that the member has made.
        beta_decay: Factor on ``1 - betas[1]``, likewise.
    """

    def __init__(
        self,
        epochs: int,
        lr_schedule: Schedule | None = None,
        lr_decay: Decay | None = None,
        beta_decay: Decay | None = None,
    ) -> None:
        self.epochs = epochs
        self.lr_schedule, self.lr_decay, self.beta_decay = lr_schedule, lr_decay, beta_decay

    def factors(self, batches: int) -> list[list[float]]:
        """The factors in 64 places, to tell one training from another: shares, and steps spread over the training.

        Args:
            batches: The largest number of minibatches per epoch.
        """
        shares = [part / 64 for part in range(64)]
        last = self.epochs * batches - 1
        steps = sorted({round(last**share) for share in shares} | {round(last * share) for share in shares} | {0})
        kinds: list[tuple[Callable[[Any], float] | None, list[Any]]] = [
            (self.lr_schedule, shares),
            (self.lr_decay, steps),
            (self.beta_decay, steps),
        ]
        return [[float(function(place)) for place in places] if function else [] for function, places in kinds]

    def at(
        self, hyper: Mapping[str, Any], steps: Sequence[int], batches: Sequence[int], device: torch.device
    ) -> dict[str, Any]:
        """``lr`` and ``betas`` of the next step, as far as they change: numbers where all members agree, else columns.

        Args:
            hyper: Of these members; its ``lr`` and ``betas`` are numbers or columns.
            steps: How many every member has made.
            batches: Minibatches per epoch of every member.
            device: Of columns.

        Raises:
            ValueError: ``beta_decay`` takes ``betas[1]`` out of [0, 1).
        """
        changed: dict[str, Any] = {}
        if self.lr_schedule is not None:
            done = [step / (own * self.epochs) for step, own in zip(steps, batches, strict=True)]
            changed["lr"] = hyper["lr"] * _factor(self.lr_schedule, done, device)
        if self.lr_decay is not None:
            changed["lr"] = hyper["lr"] * _factor(self.lr_decay, steps, device)
        if self.beta_decay is not None:
            first, second = hyper["betas"]
            changed["betas"] = first, 1.0 - (1.0 - second) * _factor(self.beta_decay, steps, device)
            _check(changed["betas"][1], steps)
        return changed


def _factor(function: Callable[[Any], float], places: Sequence[Any], device: torch.device) -> Any:
    """One number if all members are in the same place, else a column."""
    if places.count(places[0]) == len(places):
        return function(places[0])
    values = {place: function(place) for place in set(places)}
    return torch.tensor([[values[place]] for place in places], dtype=torch.float64, device=device)


def _check(beta: Any, steps: Sequence[int]) -> None:
    values = beta.flatten().tolist() if isinstance(beta, torch.Tensor) else [beta]
    for value, step in zip(values, steps, strict=False):
        if not 0 <= value < 1:
            raise ValueError(f"beta_decay must keep betas[1] in [0, 1), got {value!r} at step {step}")
