"""Vprop: variational RMSprop (Khan et al. 2018, section 3.2 and eqs. 12-13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from bayesadam.engine.rule import (
    Hyper,
    State,
    active_prior_precision,
    add_prior_gradient_,
    add_scaled_,
    factor,
)
from bayesadam.optim.arguments import Learned
from bayesadam.optim.base import PerturbedOptimizer
from bayesadam.optim.recipes import LEARNED, PAPER, Recipes
from bayesadam.optim.vadam import VadamRule

if TYPE_CHECKING:
    from typing_extensions import Unpack


class VpropRule(VadamRule):
    """Vadam without momentum and without bias correction (Khan et al. 2018, section 3.2)::

        h  = g^2
        v  <- (1 - tau (1 - b2)) v + (1 - b2) h               s = v + B s0
        mu <- mu - lr (g + tau lt (mu - mu0)) / (sqrt(s) + lt)
        1 / sigma^2 = N (s + lt)

    ``betas[0]`` is not used. :class:`VadamRule` explains ``s0``, ``B`` and ``bridge=False``; with the latter the step
    divides by ``sqrt(v_hat) + tau lt + 1e-8``.
    """

    state = ("exp_avg_sq",)

    def update_(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> None:
        """One step; see the class."""
        assert curvature is not None
        average_sq = state["exp_avg_sq"]
        add_prior_gradient_(grad, mean, hp)
        self.follow_(average_sq, curvature, hp)
        if hp["bridge"]:
            start = hp["initial_weight"] * (hp["initial_precision"] - active_prior_precision(hp)) / hp["num_data"]
            denominator = torch.add(average_sq, factor(start, mean), out=curvature).sqrt_()
        else:
            denominator = torch.div(average_sq, factor(1.0 - hp["beta2_product"], mean), out=curvature).sqrt_()
        denominator.add_(factor(self.damping(hp), mean))
        add_scaled_(mean, grad.div_(denominator), -hp["lr"])


class Vprop(PerturbedOptimizer):
    """Variational RMSprop.

    Arguments and ways to train are those of :class:`PerturbedOptimizer`; ``betas[0]`` is not used. With the recipe
    ``"paper"``, a negligible prior, no noise and ``initial_precision = prior_precision`` it is
    ``torch.optim.RMSprop(alpha=b2, eps=prior_precision / num_data)``.
    """

    rule = VpropRule()
    recipes: ClassVar[Recipes] = {"learned": {**LEARNED, "lr": 5e-3, "temperature": 0.01}, "paper": PAPER}

    if TYPE_CHECKING:

        def __init__(
            self, params: Any, lr: float | Tensor | None = None, *, num_data: float, **options: Unpack[Learned]
        ) -> None: ...
