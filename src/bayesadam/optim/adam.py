"""Plain Adam as a rule, used for deep ensembles and for other networks that are trained without weight noise."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayesadam.core.rule import Hyper, Option, Rule, State, Updated, average, with_prior


class AdamRule(Rule):
    """``torch.optim.Adam`` with ``weight_decay``, as a rule (Kingma and Ba 2015, Algorithm 1)::

        g  <- g + weight_decay mu
        m  <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2
        mu <- mu - lr m_hat / (sqrt(v_hat) + eps)

    It has no noise and no precision. If a prior ``N(mu0, 1 / lambda)`` is given, whose numbers may differ from weight
    to weight, ``lambda / N (mu - mu0)`` is added to ``g``, so that the optimum is a posterior mode.
    """

    state = ("exp_avg", "exp_avg_sq")
    options = (
        Option("eps", 1e-8, "a finite number of at least 0", lambda v: 0 <= v < math.inf),
        Option("weight_decay", 0.0, "a finite number of at least 0", lambda v: 0 <= v < math.inf),
    )

    def precision(self, state: State, hp: Hyper) -> Tensor:
        """Infinite: Adam finds a point."""
        return torch.full_like(state["exp_avg_sq"], torch.inf)

    def update(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> Updated:
        """One step; see the class."""
        grad = grad + hp.weight_decay * mean
        if "prior_precision" in vars(hp):
            grad = with_prior(grad, mean, hp)
        step, m, v = adam(grad, state["exp_avg"], state["exp_avg_sq"], hp)
        return mean - step, {"exp_avg": m, "exp_avg_sq": v}


def adam(grad: Tensor, m: Tensor, v: Tensor, hp: Hyper) -> tuple[Tensor, Tensor, Tensor]:
    """Adam's step, and both averages after it."""
    m, v = average(m, grad, hp.beta1), average(v, grad.square(), hp.beta2)
    denominator = (v / (1.0 - hp.beta2_product)).sqrt() + hp.eps
    return (hp.lr / (1.0 - hp.beta1_product)) * (m / denominator), m, v
