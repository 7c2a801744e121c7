"""Update rules: element-wise formulas, the only part in which the methods differ.

A rule knows neither modules nor optimisers nor random numbers. It is written as the paper writes it: every function
returns new tensors and changes none. It is run once on a few numbers to record its operations
(:mod:`bayesadam.core.record`); the recording is printed as C++, or run by PyTorch, for an optimiser as well as for a
population of networks with different hyper-parameters.

Symbols, for one weight: posterior ``N(mu, sigma^2)``, prior ``N(mu0, 1 / lambda)``, ``N`` data points, ``lt = lambda /
N``, ``g`` the mean gradient at the sampled weights, ``h`` the curvature estimate, ``tau`` the temperature (the factor
of the KL divergence: 1 is variational inference, 0 variational optimisation).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor

from bayesadam.checks import check

__all__ = [
    "Hyper",
    "Option",
    "Rule",
    "active_prior",
    "advanced",
    "average",
    "computes_curvature",
    "maximum",
    "static_options",
    "tempered_average",
    "with_prior",
]

Number: TypeAlias = Any
"""A hyper-parameter in arithmetic: a number, a NumPy array with one per parameter or member, or a 0-d tensor."""
State: TypeAlias = Mapping[str, Tensor]
Updated: TypeAlias = tuple[Tensor, dict[str, Tensor]]
"""Mean and state after a step."""

COUNTERS = ("step", "beta1_product", "beta2_product", "initial_weight")
"""Numbers that accompany a parameter's tensors. ``step`` counts updates. The products run over all steps so far, so
schedules of ``betas`` and ``temperature`` are treated exactly: the first two are those of Adam's bias correction, and
``initial_weight`` is the weight that the initial precision still has in the running curvature.
"""
INITIAL_COUNTERS = (0.0, 1.0, 1.0, 1.0)


class Hyper(SimpleNamespace):
    """Hyper-parameters as a rule reads them.

    They are ``lr``, ``beta1``, ``beta2``, ``num_data``, ``temperature``, ``prior_mean``, ``prior_precision``,
    ``initial_precision``, the rule's options, and the counters of :data:`COUNTERS`. Each is a number or broadcasts.
    """

    def __getattr__(self, name: str) -> Any:  # for type checkers; called only for names that do not exist
        raise AttributeError(f"the hyper-parameters have no {name!r}, only {sorted(vars(self))}")


@dataclass(frozen=True)
class Option:
    """A hyper-parameter that a rule declares; it becomes an entry of the optimiser's groups.

    Attributes:
        name: Name of the argument and of the entry, under which the rule reads it.
        default: Value if the user gives none.
        requirement: Requirement on a value, in the words of error messages.
        holds: Function that tells whether a value meets it; a value that the function cannot handle is refused as well.
        static: Whether the value selects between branches of the rule's code (a truth value, a word) and is not a
            number in its arithmetic. It must then be the same for all members of a population.
        width: Whether the width of the posterior depends on it, so that it must not change while weights hold a sample.
    """

    name: str
    default: Any
    requirement: str
    holds: Callable[[Any], bool]
    static: bool = False
    width: bool = False

    def check(self, value: Any) -> None:
        """Raise ``ValueError`` unless the value meets the requirement."""
        check(self.name, value, self.requirement, self.holds, words=self.static)


class Rule(ABC):
    """One method. A subclass defines at least :meth:`precision` and :meth:`update`.

    Attributes:
        state: Names of its per-parameter tensors.
        power: Power of the gradient with which its curvature estimate scales, as ``gradient**power``.
        needs_noise: Whether :meth:`curvature` uses the deviation of the sample from the mean.
        options: Hyper-parameters of the rule itself.
    """

    state: ClassVar[tuple[str, ...]]
    power: ClassVar[int] = 2
    needs_noise: ClassVar[bool] = False
    options: ClassVar[tuple[Option, ...]] = ()

    def init(self, mean: Tensor, hp: Hyper) -> dict[str, Tensor]:
        """Return the initial state; by default zeros."""
        return {name: torch.zeros_like(mean) for name in self.state}

    @abstractmethod
    def precision(self, state: State, hp: Hyper) -> Tensor:
        """Return the precision ``1 / sigma^2`` of the noise."""

    def posterior_precision(self, state: State, hp: Hyper) -> Tensor:
        """Return the precision of the posterior that is read off; by default that of the noise in training."""
        return self.precision(state, hp)

    def curvature(self, grad: Tensor, deviation: Tensor | None, state: State, hp: Hyper) -> Tensor | None:
        """Return the estimate ``h`` of the curvature from one sample; ``None`` if there is none.

        Args:
            grad: Mean gradient at the sample ``theta``.
            deviation: ``theta - mu``, or ``None`` for weights without noise.
            state: State before the step.
            hp: Hyper-parameters, with the counters before the step.
        """
        return None

    @abstractmethod
    def update(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> Updated:
        """Return mean and state after one step.

        Args:
            mean: Mean ``mu``.
            state: State before the step.
            grad: Mean gradient ``g``, averaged over the samples.
            curvature: Curvature ``h``, averaged over the samples. Without one, the state that holds it does not change.
            hp: Hyper-parameters, with the counters after the step.
        """

    def forgetting(self, hp: Hyper) -> Number:
        """Return the share of the initial precision that a step makes the running curvature forget.

        By default ``tau (1 - b2)`` (Khan et al. 2018, eqs. 22-24).
        """
        return hp.temperature * (1.0 - hp.beta2)

    def default_start(self, hp: Hyper) -> Number:
        """Return the initial precision that is used if none is given: ``max(num_data, prior_precision)``.

        The papers start at the prior's precision, with which an ordinary network does not train.
        """
        return maximum(hp.prior_precision, hp.num_data)

    def remembered(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """Return names of further tensors of a parameter's state, for what watches the training; they begin as the
        mean.
        """
        return ()

    def numbers(self, group: Mapping[str, Any]) -> dict[str, float]:
        """Return numbers that differ from the entries of a group in its next step, such as a scheduled rate."""
        return {}


def computes_curvature(rule: Rule) -> bool:
    """Whether a rule computes its curvature from gradient and noise, and needs no other source of it."""
    return type(rule).curvature is not Rule.curvature


def advanced(rule: Rule, hp: Hyper) -> dict[str, Number]:
    """The counters of :data:`COUNTERS` after a step, from those before it."""
    step = hp.step + 1.0
    return {
        "step": step,
        "beta1_product": hp.beta1_product * hp.beta1,
        "beta2_product": hp.beta2_product * hp.beta2,
        "initial_weight": hp.initial_weight * (1.0 - rule.forgetting(Hyper(**{**vars(hp), "step": step}))),
    }


def active_prior(hp: Hyper) -> Number:
    """Prior precision in the posterior's precision: 0 in variational optimisation (``tau = 0``)."""
    return hp.prior_precision * (hp.temperature > 0)


def with_prior(grad: Tensor, mean: Tensor, hp: Hyper, temperature: Number | None = None) -> Tensor:
    """``g + tau lt (mu - mu0)``, the gradient of the mean objective with the prior's term; ``tau`` is by default the
    temperature among the hyper-parameters.
    """
    weight = (hp.temperature if temperature is None else temperature) * hp.prior_precision / hp.num_data
    if isinstance(hp.prior_mean, Tensor):
        return grad + weight * (mean - hp.prior_mean)
    return grad + weight * mean


def average(running: Tensor, new: Tensor, decay: Number) -> Tensor:
    """``decay * running + (1 - decay) * new``."""
    return decay * running + (1.0 - decay) * new


def tempered_average(running: Tensor, curvature: Tensor, hp: Hyper) -> Tensor:
    """``(1 - tau (1 - b2)) s + (1 - b2) h``, whose fixed point is ``h / tau`` (Khan et al. 2018, eqs. 22-24)."""
    rate = 1.0 - hp.beta2
    return (1.0 - hp.temperature * rate) * running + rate * curvature


def maximum(first: Number, second: Number) -> Number:
    """The larger one of two hyper-parameters, element by element where one is an array or a tensor."""
    if isinstance(first, Tensor) or isinstance(second, Tensor):
        dtype = first.dtype if isinstance(first, Tensor) else second.dtype
        return torch.maximum(torch.as_tensor(first, dtype=dtype), torch.as_tensor(second, dtype=dtype))
    return np.maximum(first, second)


def static_options(rule: Rule, group: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Values that select branches of a rule's code."""
    return tuple((option.name, group[option.name]) for option in rule.options if option.static)
