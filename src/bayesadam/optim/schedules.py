"""Schedules for what PyTorch's own schedulers do not reach: the decay rate of the curvature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer


def polynomial_decay(power: float = 0.55) -> Callable[[int], float]:
    """``t -> 1 / (1 + t**power)``: the decay of Khan et al. 2018, eq. 104, for learning rate and ``1 - b2`` alike.

    Use it with ``torch.optim.lr_scheduler.LambdaLR`` and with :class:`BetaScheduler`.

    Raises:
        ValueError: A power that is not positive.
    """
    if not power > 0:
        raise ValueError(f"power must be positive, got {power!r}")
    return lambda step: 1.0 / (1.0 + step**power)


class BetaScheduler:
    """Sets ``betas[1]`` to ``1 - (1 - b2) * factor(t)``, ``t`` the number of calls of :meth:`step` (eq. 104).

    Args:
        optimizer: Its groups' ``betas`` when the first scheduler is made, or when a group is added later, are the
            initial ones (kept in the groups as ``initial_betas``).
        factor: From ``t`` to a number in [0, 1 / (1 - b2)].

    Raises:
        ValueError: The optimiser has no ``betas``, or a factor takes ``b2`` out of [0, 1).
    """

    def __init__(self, optimizer: Optimizer, factor: Callable[[int], float]) -> None:
        for group in optimizer.param_groups:
            if "betas" not in group:
                raise ValueError(f"optimizer must have betas, got {type(optimizer).__name__}")
        self.optimizer = optimizer
        self.factor = factor
        self.last_step = 0
        self._apply()

    def step(self) -> None:
        """Once after every ``optimizer.step()``."""
        self.last_step += 1
        self._apply()

    def _apply(self) -> None:
        for group in self.optimizer.param_groups:
            first, _ = group["betas"]
            _, initial = group.setdefault("initial_betas", group["betas"])  # the group may be new
            second = 1.0 - (1.0 - initial) * self.factor(self.last_step)
            if not 0 <= second < 1:
                raise ValueError(f"factor must keep betas[1] in [0, 1), got {second!r} at step {self.last_step}")
            group["betas"] = (first, second)

    def state_dict(self) -> dict[str, Any]:
        """The number of steps so far."""
        return {"last_step": self.last_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from where the other scheduler was."""
        self.last_step = state_dict["last_step"]
        self._apply()
