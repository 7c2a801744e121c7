"""The six methods: the step of the actor's mean, and the noise in its weights.

All of them minimise ``F``, minus the sum of the values of the actor's actions in a minibatch, so ``num_data`` is 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

import bayesadam as ba
from bayesadam.core.rule import Hyper, Option, Rule, State, Updated, average
from bayesadam.optim.vadam import VadamRule

PRECISION_LR = Option("precision_lr", 0.01, "a finite number, at least 0", lambda v: 0 <= v < math.inf)


class ExploringVadamRule(VadamRule):
    """Vadam whose noise has a precision of at least ``floor``: ``1 / sigma^2 = s + lambda + c`` with ``N = 1``.

    The constant ``c`` is there for sampling only and does not damp the steps (Khan et al. 2018, appendix K, Algorithm
    2): at the start ``s`` is 0, and ``lambda`` alone would give a standard deviation of 10000.
    """

    options = (Option("floor", 1e4, "a positive, finite number", lambda v: 0 < v < math.inf, width=True),)

    def precision(self, state: State, hp: Hyper) -> Tensor:
        """Return the precision of Vadam plus the floor."""
        precision: Tensor = super().precision(state, hp) + hp.floor
        return precision


class ExploringVadam(ba.Vadam):
    """The optimiser with the rule :class:`ExploringVadamRule`."""

    rule = ExploringVadamRule()


class SGDExploreRule(Rule):
    """Gradient descent on the mean ``mu`` and on the precision ``s`` of the weights (Khan et al. 2018, eq. 111)::

        mu <- mu - lr g                  s <- s - precision_lr d             d = dF/ds = -g eps s^(-3/2) / 2

    In the paper ``s`` is the variance; in the authors' code it is the precision.
    """

    state: ClassVar[tuple[str, ...]] = ("noise_precision",)
    power = 1
    needs_noise = True
    options = (PRECISION_LR,)

    def init(self, mean: Tensor, hp: Hyper) -> dict[str, Tensor]:
        """The precision starts at ``initial_precision``."""
        return {**super().init(mean, hp), "noise_precision": torch.zeros_like(mean) + hp.initial_precision}

    def precision(self, state: State, hp: Hyper) -> Tensor:
        """Return ``s``."""
        return state["noise_precision"]

    def curvature(self, grad: Tensor, deviation: Tensor | None, state: State, hp: Hyper) -> Tensor:
        """Return ``dF/ds``, from the derivative of the sample ``mu + eps / sqrt(s)``, whose last term is given."""
        assert deviation is not None
        return -0.5 * grad * deviation / state["noise_precision"]

    def update(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> Updated:
        """One step; see the class."""
        assert curvature is not None
        return mean - hp.lr * grad, {"noise_precision": state["noise_precision"] - hp.precision_lr * curvature}


class AdamExploreRule(SGDExploreRule):
    """The rule with the same two gradients, each of which is used in a step of Adam with the same ``betas``."""

    state = ("noise_precision", "exp_avg", "exp_avg_sq", "precision_avg", "precision_avg_sq")

    def update(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> Updated:
        """One step; see the class."""
        assert curvature is not None
        new, steps = {}, []
        for prefix, slope in (("exp", grad), ("precision", curvature)):
            m = new[f"{prefix}_avg"] = average(state[f"{prefix}_avg"], slope, hp.beta1)
            v = new[f"{prefix}_avg_sq"] = average(state[f"{prefix}_avg_sq"], slope.square(), hp.beta2)
            root = (v / (1.0 - hp.beta2_product)).sqrt() + 1e-8
            steps.append(m / (1.0 - hp.beta1_product) / root)
        new["noise_precision"] = state["noise_precision"] - hp.precision_lr * steps[1]
        return mean - hp.lr * steps[0], new


class SGDExplore(ba.optim.PerturbedOptimizer):
    """The optimiser with the rule :class:`SGDExploreRule`."""

    rule = SGDExploreRule()
    has_prior = False


class AdamExplore(ba.optim.PerturbedOptimizer):
    """The optimiser with the rule :class:`AdamExploreRule`."""

    rule = AdamExploreRule()
    has_prior = False


Optimizer = torch.optim.Optimizer
OPTIMIZERS: Mapping[str, Callable[..., Optimizer]] = {
    "vadam": ExploringVadam,
    "vadagrad": ba.VadaGrad,
    "adam-explore": AdamExplore,
    "adam-plain": torch.optim.Adam,
    "sgd-explore": SGDExplore,
    "sgd-plain": torch.optim.SGD,
}


def optimizer_of(method: str, settings: Mapping[str, Any], weights: torch.nn.Parameter, seed: int) -> Optimizer:
    """Create the method's optimiser of an actor's weights; ``seed`` is the seed of their noise."""
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    if not method.endswith("plain"):
        given |= {"num_data": 1, "seed": seed}
    if method == "adam-plain":
        given["fused"] = True
    return OPTIMIZERS[method]([weights], **given)
