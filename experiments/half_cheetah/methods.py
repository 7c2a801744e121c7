"""The six methods: the step of the actor's mean, and the noise in its weights.

All of them minimise ``F``, minus the sum of the values of the actor's actions in a minibatch, so ``num_data`` is 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from bayesadam.engine.rule import Hyper, Option, State, add_scaled_, blend_, factor
from torch import Tensor

import bayesadam as ba
from bayesadam.optim.vadam import VadamRule

PRECISION_LR = Option("precision_lr", 0.01, "a finite number, at least 0", lambda v: 0 <= v < math.inf)


class ExploringVadamRule(VadamRule):
    """Vadam whose noise has a precision of at least ``floor``: ``1 / sigma^2 = s + lambda + c`` with ``N = 1``.

    The constant ``c`` is there for sampling only and does not damp the steps (Khan et al. 2018, appendix K, Algorithm
    2): at the start ``s`` is 0, and ``lambda`` alone would give a standard deviation of 10000.
    """

    options = (*VadamRule.options, Option("floor", 1e4, "a positive, finite number", lambda v: 0 < v < math.inf))

    def precision(self, state: State, hp: Hyper) -> Tensor:
        """Return the precision of Vadam plus the floor."""
        found = super().precision(state, hp)
        return found.add_(factor(hp["floor"], found))


class ExploringVadam(ba.Vadam):
    """The optimiser with the rule :class:`ExploringVadamRule`."""

    rule = ExploringVadamRule()


class SGDExploreRule:
    """Gradient descent on the mean ``mu`` and on the precision ``s`` of the weights (Khan et al. 2018, eq. 111)::

        mu <- mu - lr g                  s <- s - precision_lr d             d = dF/ds = -g eps s^(-3/2) / 2

    In the paper ``s`` is the variance; in the authors' code it is the precision.
    """

    state: tuple[str, ...] = ("noise_precision",)
    power = 1
    needs_noise = True
    options = (PRECISION_LR,)

    def init(self, mean: Tensor, hp: Hyper) -> dict[str, Tensor]:
        """The precision starts at ``initial_precision``."""
        start = {name: torch.zeros_like(mean) for name in self.state}
        start["noise_precision"].add_(factor(hp["initial_precision"], mean))
        return start

    def precision(self, state: State, hp: Hyper) -> Tensor:
        """Return ``s``."""
        return torch.mul(state["noise_precision"], 1.0)

    def curvature(self, grad: Tensor, eps: Tensor | None, state: State, hp: Hyper) -> Tensor:
        """Return ``dF/ds``, from the derivative of the sample ``mu + eps / sqrt(s)``."""
        assert eps is not None
        precision = state["noise_precision"]
        return torch.mul(grad, eps).mul_(-0.5).div_(precision).div_(torch.sqrt(precision))

    def update_(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> None:
        """One step; see the class."""
        assert curvature is not None
        add_scaled_(mean, grad, -hp["lr"])
        add_scaled_(state["noise_precision"], curvature, -hp["precision_lr"])


class AdamExploreRule(SGDExploreRule):
    """The rule with the same two gradients, each of which is used in a step of Adam with the same ``betas``."""

    state = ("noise_precision", "exp_avg", "exp_avg_sq", "precision_avg", "precision_avg_sq")

    def update_(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> None:
        """One step; see the class."""
        assert curvature is not None
        for target, slope, prefix, rate in (
            (mean, grad, "exp", hp["lr"]),
            (state["noise_precision"], curvature, "precision", hp["precision_lr"]),
        ):
            average, average_sq = state[f"{prefix}_avg"], state[f"{prefix}_avg_sq"]
            blend_(average, slope, 1.0 - hp["betas"][0])
            blend_(average_sq, slope.square_(), 1.0 - hp["betas"][1])
            root = torch.div(average_sq, factor(1.0 - hp["beta2_product"], mean)).sqrt_().add_(1e-8)
            add_scaled_(target, torch.div(average, root), -rate / (1.0 - hp["beta1_product"]))


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
    if method in ("vadam", "adam-plain"):
        given |= {"recipe": "paper"} if method == "vadam" else {"fused": True}
    return OPTIMIZERS[method]([weights], **given)
