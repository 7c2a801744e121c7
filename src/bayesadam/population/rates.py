"""Learning rates and betas that depend on the fraction of the training or on the number of steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bayesadam.optim.bayesadam import annealed

Schedule = Callable[[float], float]
Decay = Callable[[int], float]


class Rates:
    """Schedules for members that are at different steps of trainings of different length.

    Without one of the learning rate, the members have that of their ``total_steps``, as their optimisers would.

    Args:
        epochs: Number of epochs of the whole training.
        lr_schedule: Factor of the learning rate as a function of the fraction of the training that is done.
        lr_decay: Factor of the learning rate as a function of the number of steps that the member has made.
        beta_decay: Factor of ``1 - betas[1]`` as a function of the number of steps.
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

    def at(self, hyper: Mapping[str, Any], steps: Sequence[int], batches: Sequence[int]) -> dict[str, Any]:
        """``lr`` and ``betas`` of the next step, if they change: numbers where all members agree, otherwise columns.

        Args:
            hyper: Hyper-parameters of these members; ``lr``, ``betas`` and ``total_steps`` are numbers or columns.
            steps: Number of steps that every member has made.
            batches: Number of minibatches per epoch of every member.

        Raises:
            ValueError: ``beta_decay`` takes ``betas[1]`` out of [0, 1).
        """
        changed: dict[str, Any] = {}
        length = hyper.get("total_steps")
        if length is not None and self.lr_schedule is None and self.lr_decay is None:
            lengths = length.flatten().tolist() if isinstance(length, np.ndarray) else [length] * len(steps)
            places = list(zip(steps, lengths, strict=True))
            changed["lr"] = hyper["lr"] * _factor(lambda place: annealed(place[0] / place[1]), places)
        if self.lr_schedule is not None:
            done = [step / (own * self.epochs) for step, own in zip(steps, batches, strict=True)]
            changed["lr"] = hyper["lr"] * _factor(self.lr_schedule, done)
        if self.lr_decay is not None:
            changed["lr"] = hyper["lr"] * _factor(self.lr_decay, steps)
        if self.beta_decay is not None:
            first, second = hyper["betas"]
            changed["betas"] = first, 1.0 - (1.0 - second) * _factor(self.beta_decay, steps)
            _check(changed["betas"][1], steps)
        return changed


def _factor(function: Callable[[Any], float], places: Sequence[Any]) -> Any:
    """One number if all members are at the same point, otherwise a column."""
    if places.count(places[0]) == len(places):
        return function(places[0])
    values = {place: function(place) for place in set(places)}
    return np.array([[values[place]] for place in places])


def _check(beta: Any, steps: Sequence[int]) -> None:
    values = beta.flatten().tolist() if isinstance(beta, np.ndarray) else [beta]
    for value, step in zip(values, steps, strict=False):
        if not 0 <= value < 1:
            raise ValueError(f"beta_decay must keep betas[1] in [0, 1), got {value!r} at step {step}")
