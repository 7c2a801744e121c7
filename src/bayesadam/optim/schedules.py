"""Schedules: factors of the learning rate, what BayesAdam plans from the number of steps, and a scheduler of the decay
rate of the curvature, which PyTorch's own do not change.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from bayesadam.checks import check_positive


def polynomial_decay(power: float = 0.55) -> Callable[[int], float]:
    """Return the function ``t -> 1 / (1 + t**power)``, a decay for learning rate and ``1 - b2`` (Khan et al. 2018,
    eq. 104).

    Use it with ``torch.optim.lr_scheduler.LambdaLR`` and with :class:`BetaScheduler`.

    Raises:
        ValueError: The power is not positive.
    """
    if not power > 0:
        raise ValueError(f"power must be positive, got {power!r}")
    return lambda step: 1.0 / (1.0 + step**power)


def half_cosine(done: float, *, flat: float = 0.0) -> float:
    """Factor of a learning rate that falls to 0 along half a cosine (Loshchilov and Hutter 2017, eq. 5, one period).

    Use it as ``lr_schedule`` of :func:`bayesadam.population.train`, or as
    ``LambdaLR(optimizer, lambda step: half_cosine(step / steps))``.

    Args:
        done: Fraction of the training that is done, in [0, 1].
        flat: Fraction of the training before which the factor is 1, in [0, 1).

    Returns:
        ``1`` if ``done < flat``, else ``(1 + cos(pi (done - flat) / (1 - flat))) / 2``.
    """
    return 1.0 if done < flat else 0.5 * (1.0 + math.cos(math.pi * (done - flat) / (1.0 - flat)))


FINAL = 0.01
"""Factor of BayesAdam's learning rate at the end of the planned steps."""


def annealed(done: float) -> float:
    """Factor of BayesAdam's learning rate after a fraction of the planned steps: half a cosine from 1 to ``FINAL``."""
    return FINAL + (1.0 - FINAL) * half_cosine(min(1.0, done))


LONG = 16_000.0
"""Number of epochs times the square root of the number of steps at which the temperature of BayesAdam reaches 1."""


def default_temperature(num_data: float, batch_size: float, total_steps: float) -> float:
    """BayesAdam's temperature if none is given: ``epochs sqrt(steps) / 16000``, and at most 1.

    Trainings of more epochs and of more steps fit the noise of the data more closely, and need more noise in the
    weights. With many data it reaches 1, the temperature of Bayes' rule.
    """
    check_positive("num_data", num_data)
    check_positive("batch_size", batch_size)
    check_positive("total_steps", total_steps)
    epochs = total_steps * batch_size / num_data
    return min(1.0, epochs * math.sqrt(total_steps) / LONG)


WARM_UP = 0.05
"""Fraction of the planned steps over which BayesAdam's learning rate rises."""


def warmed_up(steps: float, total_steps: float) -> float:
    """Factor of BayesAdam's learning rate after a number of steps: it rises to 1 over a twentieth of the planned ones.

    The first averages of gradients and of their squares are of few steps, and large steps along them harm deep
    networks.
    """
    return min(1.0, (steps + 1.0) / (WARM_UP * total_steps + 1.0))


def annealed_after(done: float) -> float:
    """The integral of :func:`annealed` from ``done`` to 1."""
    done = min(1.0, done)
    return FINAL * (1.0 - done) + (1.0 - FINAL) * (0.5 * (1.0 - done) - math.sin(math.pi * done) / (2.0 * math.pi))


class BetaScheduler:
    """Scheduler that sets ``betas[1]`` to ``1 - (1 - b2) * factor(t)`` after ``t`` calls of :meth:`step`.

    Khan et al. 2018, eq. 104, is the case ``factor=polynomial_decay()``.

    Args:
        optimizer: Optimiser whose ``betas`` are changed. The initial ``betas`` are those at the time the first
            scheduler is made, or a group is added later; the groups keep them as ``initial_betas``.
        factor: Function from ``t`` to a number in [0, 1 / (1 - b2)].

    Raises:
        ValueError: The optimiser has no ``betas``, or a factor takes ``betas[1]`` out of [0, 1).
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
        """Advance by one step; call it once after every ``optimizer.step()``."""
        self.last_step += 1
        self._apply()

    def _apply(self) -> None:
        groups, found = self.optimizer.param_groups, []
        for group in groups:
            _, initial = group.get("initial_betas", group["betas"])  # the group may be new
            second = 1.0 - (1.0 - initial) * self.factor(self.last_step)
            if not 0 <= second < 1:
                raise ValueError(f"factor must keep betas[1] in [0, 1), got {second!r} at step {self.last_step}")
            found.append((group["betas"][0], second))
        for group, betas in zip(groups, found, strict=True):
            group.setdefault("initial_betas", group["betas"])
            group["betas"] = betas

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps so far as a dict."""
        return {"last_step": self.last_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the step in a state dict."""
        self.last_step = state_dict["last_step"]
        self._apply()
