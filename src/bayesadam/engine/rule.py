"""The interface of update rules: element-wise tensor mathematics, the only part in which the optimisers differ.

A rule knows neither modules nor optimisers nor random numbers. It writes in place and broadcasts, so that the same code
serves an optimiser, a stacked population of networks (hyper-parameters as tensors of shape ``(P, 1, ...)``) and a
compiled kernel (0-d tensors). Hyper-parameters beside the common ones are declared as options.

Symbols, for one weight: posterior ``N(mu, sigma^2)``, prior ``N(mu0, 1 / lambda)``, ``N`` data points, ``lt = lambda /
N``, ``g`` the mean gradient at the sampled weights, ``h`` the curvature estimate, ``tau`` the temperature (the factor
of the KL divergence: 1 is variational inference, 0 variational optimisation).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from bayesadam.checks import check

Scalar: TypeAlias = float | Tensor

Hyper: TypeAlias = Mapping[str, Any]
"""Hyper-parameters that a rule gets: ``lr``, ``betas``, ``num_data``, ``temperature``, ``prior_mean``,
``prior_precision``, ``initial_precision``, its own options, and the counters of :func:`initial_counters`. Each is
a number or a tensor that broadcasts, except for ``betas``, which is a pair of these.
"""

State: TypeAlias = Mapping[str, Tensor]


@dataclass(frozen=True)
class Option:
    """A hyper-parameter that a rule declares; it becomes an argument of the optimiser and an entry of its groups.

    Attributes:
        name: Name of the argument, of the entry, and of the value that the rule gets.
        default: Value if the user gives none.
        requirement: Requirement on a value, in the words of error messages.
        holds: Function that tells whether a value meets it; a value that the function cannot handle is refused as well.
        static: Whether the value selects between branches of the rule's code (a truth value, a word) and is not a
            number in its arithmetic. It must then be the same for all members of a population.
    """

    name: str
    default: Any
    requirement: str
    holds: Callable[[Any], bool]
    static: bool = False

    def check(self, value: Any) -> None:
        """Raise ``ValueError`` unless the value meets the requirement."""
        check(self.name, value, self.requirement, self.holds, words=self.static)


NUMBERS = ("lr", "num_data", "temperature", "prior_mean", "prior_precision", "initial_precision")
"""Numbers that every rule gets, beside its options, the betas and the counters."""
PER_WEIGHT = ("prior_mean", "prior_precision")
"""Hyper-parameters that have a value for every weight if the state has a tensor of that name."""


class Rule(Protocol):
    """One method, in five parts.

    Attributes:
        state: Names of its per-parameter tensors.
        power: Power of the gradient with which its curvature estimate scales, as ``gradient**power``.
        needs_noise: Whether ``curvature`` uses ``eps``; otherwise ``eps`` may be ``None``.
        options: Hyper-parameters of the rule itself.
    """

    @property
    def state(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def power(self) -> int: ...  # noqa: D102
    @property
    def needs_noise(self) -> bool: ...  # noqa: D102
    @property
    def options(self) -> tuple[Option, ...]: ...  # noqa: D102

    def init(self, mean: Tensor, hp: Hyper) -> dict[str, Tensor]:
        """New state tensors, with device and sharding of ``mean``."""

    def precision(self, state: State, hp: Hyper) -> Tensor:
        """Posterior precision ``1 / sigma^2`` as a new tensor."""

    def curvature(self, grad: Tensor, eps: Tensor | None, state: State, hp: Hyper) -> Tensor | None:
        """Estimate ``h`` of the curvature from one sample as a new tensor; ``None`` if it comes from elsewhere.

        ``grad`` is the mean gradient at ``mu + sigma * eps`` and must not be changed.
        """

    def update_(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> None:
        """Make one step on ``mean`` and ``state`` in place; ``grad`` and ``curvature`` may be overwritten.

        The counters in ``hp`` already include this step. Without a curvature the state that holds it does not change.
        """


def options_of(rule: Rule) -> tuple[Option, ...]:
    """The options that a rule declares, of which there may be none."""
    return tuple(getattr(rule, "options", ()))


def initial_counters() -> dict[str, float]:
    """Initial values of the numbers that accompany a parameter's tensors.

    ``step`` counts updates. The products run over all steps so far, so schedules of ``betas`` and ``temperature`` are
    treated exactly: ``beta1_product`` and ``beta2_product`` are those of Adam's bias correction, and ``initial_weight``
    is the weight that the initial precision still has in the running curvature.
    """
    return {"step": 0, "beta1_product": 1.0, "beta2_product": 1.0, "initial_weight": 1.0}


def advance(counters: Mapping[str, Scalar], hp: Hyper) -> dict[str, Any]:
    """The counters after one more step."""
    beta1, beta2 = hp["betas"]
    step = counters["step"] + 1
    return {
        "step": step,
        "beta1_product": counters["beta1_product"] * beta1,
        "beta2_product": counters["beta2_product"] * beta2,
        "initial_weight": counters["initial_weight"] * (1.0 - hp["temperature"] * curvature_rate(hp, step)),
    }


RECENCY = 3.0
"""How fast older curvatures lose weight: in a training of ``t`` steps that of step ``i`` has the weight ``(i /
t)^2``, since the average is polynomial-decay averaging (Shamir & Zhang 2013) with ``eta = RECENCY - 1``.
"""
START = 0.1
"""Curvature of the mean loss that is assumed at the start, if no initial precision is given and ``bridge=False``."""


def _is_unknown_or_positive(value: Any) -> bool:
    return value is None or 0 < value < math.inf


LEARNING = (
    Option("bridge", True, "True or False", lambda v: isinstance(v, bool), static=True),
    Option("initial_steps", 30.0, "a positive, finite number", lambda v: 0 < v < math.inf),
    Option("total_steps", None, "None or a positive, finite number", _is_unknown_or_positive),
)
"""Options of the rules whose initial precision can count as a number of steps; see :func:`curvature_rate` and
:func:`annealing`.
"""
BATCH_SIZE = Option("batch_size", None, "None or a positive, finite number", _is_unknown_or_positive)
"""Option of rules that estimate curvature from a mean gradient: the effective number of examples per step. In a
pass, 0 stands for an unknown number.
"""


def curvature_rate(hp: Hyper, step: Scalar) -> Scalar:
    """Weight ``r`` of a step's curvature in ``s <- (1 - tau r) s + r h``, whose fixed point is ``h / tau``.

    With ``bridge``, ``r = 1 - b2`` (Khan et al. 2018, eqs. 22-24): the initial value is forgotten at the rate ``tau (1
    - b2)`` per step, for every length of the training. Without it, ``tau r = max(1 - b2, 3 / (t + k + 2))`` with ``k =
    initial_steps``: a weighted average over all steps in which the initial value counts as ``k`` steps before the
    first. This average reaches back over about the last third of the training, and never over more than ``1 / (1 -
    b2)`` steps.
    """
    shortest: Scalar = 1.0 - hp["betas"][1]
    if hp.get("bridge", True):
        return shortest
    rate: Scalar = maximum(shortest, RECENCY / (step + hp["initial_steps"] + (RECENCY - 1.0))) / hp["temperature"]
    return rate


def annealed(steps: float, total_steps: float) -> float:
    """Factor of the learning rate after some steps: half a cosine from 1 to 0.01 at ``total_steps``, and 0.01 after
    that.
    """
    done = min(1.0, steps / total_steps)
    return 0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * done))


def annealing(group: Mapping[str, Any], lr: float) -> float:
    """Factor of the learning rate ``lr`` in the next step of an optimiser, the same for all its parameters.

    It is 1 if the number of steps is unknown, if the learning rate is no longer the one that the group was added with,
    or if a scheduler of PyTorch has left its mark in the group.
    """
    total = group.get("total_steps")
    if total is None or "initial_lr" in group or lr != group["planned_lr"]:
        return 1.0
    return annealed(steps_made(group), total)


def steps_made(group: Mapping[str, Any]) -> int:
    """Number of updates that the optimiser of a group has made, whichever parameters had gradients in them."""
    return int(group["noise_step"] - group["skipped_steps"] - group["discarded_steps"])


def start_precision(hp: Hyper, prior_precision: Scalar) -> Scalar:
    """Default of the initial precision: ``max(num_data, lambda)``, or without the bridge that of the curvature
    ``START``.
    """
    if hp.get("bridge", True):
        return maximum(prior_precision, hp["num_data"])
    start: Scalar = prior_precision + START * hp["num_data"] / hp["temperature"]
    return start


def active_prior_precision(hp: Hyper) -> Scalar:
    """Prior precision ``lambda`` in the posterior's precision: 0 in variational optimisation (``tau = 0``)."""
    precision: Scalar = hp["prior_precision"] * (hp["temperature"] > 0)
    return precision


def tempered_decay_(running: Tensor, curvature: Tensor, hp: Hyper) -> None:
    """``s <- (1 - tau r) s + r h``, with ``r`` of :func:`curvature_rate`; ``curvature`` is not changed."""
    rate = curvature_rate(hp, hp["step"])
    running.mul_(factor(1.0 - hp["temperature"] * rate, running))
    add_scaled_(running, curvature, rate)


def add_prior_gradient_(grad: Tensor, mean: Tensor, hp: Hyper, scale: Scalar = 1.0) -> None:
    """``grad += scale * tau * lt * (mu - mu0)``, the gradient of the prior's term in the mean objective."""
    weight = scale * hp["temperature"] * hp["prior_precision"] / hp["num_data"]
    add_scaled_(grad, mean, weight)
    prior_mean = hp["prior_mean"]
    if isinstance(prior_mean, Tensor):
        add_scaled_(grad, prior_mean, -weight)


def factor(value: Scalar, like: Tensor) -> Scalar:
    """A hyper-parameter for arithmetic with ``like``; tensors of hyper-parameters are float64, to keep all digits."""
    return value.to(like.dtype) if isinstance(value, Tensor) else value


def add_scaled_(target: Tensor, other: Tensor, scale: Scalar) -> None:
    """``target += scale * other``, whether ``scale`` is a number or a tensor that broadcasts."""
    if isinstance(scale, Tensor):
        target.addcmul_(other, scale.to(target.dtype))
    else:
        target.add_(other, alpha=scale)


def blend_(target: Tensor, other: Tensor, weight: Scalar) -> None:
    """``target = (1 - weight) * target + weight * other``."""
    target.lerp_(other, factor(weight, target))


def maximum(first: Scalar, second: Scalar) -> Scalar:
    """The larger of two hyper-parameters, element-wise where one is a tensor."""
    if isinstance(first, Tensor) or isinstance(second, Tensor):
        dtype = first.dtype if isinstance(first, Tensor) else second.dtype  # type: ignore[union-attr]
        return torch.maximum(torch.as_tensor(first, dtype=dtype), torch.as_tensor(second, dtype=dtype))
    return max(first, second)
