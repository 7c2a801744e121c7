"""Plain Adam as a rule, used for deep ensembles and for other networks that are trained without weight noise."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayesadam.engine.rule import Hyper, Option, State, add_prior_gradient_, add_scaled_, blend_, factor


class AdamRule:
    """``torch.optim.Adam`` with ``weight_decay``, as a rule (Kingma and Ba 2015, Algorithm 1)::

        g  <- g + weight_decay mu
        m  <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2
        mu <- mu - lr m_hat / (sqrt(v_hat) + eps)

    It has no noise and no precision. If a prior ``N(mu0, 1 / lambda)`` is given, whose numbers may differ from weight
    to weight, ``lambda / N (mu - mu0)`` is added to ``g``, so that the optimum is a posterior mode.
    """

    state = ("exp_avg", "exp_avg_sq")
    power = 2
    needs_noise = False
    options = (
        Option("eps", 1e-8, "a finite number of at least 0", lambda v: 0 <= v < math.inf),
        Option("weight_decay", 0.0, "a finite number of at least 0", lambda v: 0 <= v < math.inf),
    )

    def init(self, mean: Tensor, hp: Hyper) -> dict[str, Tensor]:
        """Zeros."""
        return {name: torch.zeros_like(mean) for name in self.state}

    def precision(self, state: State, hp: Hyper) -> Tensor:
        """Infinite: Adam finds a point."""
        return torch.full_like(state["exp_avg_sq"], torch.inf)

    def curvature(self, grad: Tensor, eps: Tensor | None, state: State, hp: Hyper) -> None:
        """None, because :meth:`update_` squares the gradient itself, after it has added the weight decay."""
        return None

    def update_(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> None:
        """One step; see the class."""
        add_scaled_(grad, mean, hp["weight_decay"])
        if "prior_precision" in hp:
            add_prior_gradient_(grad, mean, hp)
        adam_(mean, grad, state["exp_avg"], state["exp_avg_sq"], hp)


def adam_(values: Tensor, grad: Tensor, average: Tensor, average_sq: Tensor, hp: Hyper) -> None:
    """Make Adam's step on ``values`` and update both averages in place; ``grad`` is overwritten."""
    blend_(average, grad, 1.0 - hp["betas"][0])
    blend_(average_sq, grad.square_(), 1.0 - hp["betas"][1])
    denominator = torch.div(average_sq, factor(1.0 - hp["beta2_product"], values), out=grad).sqrt_()
    denominator.add_(factor(hp["eps"], values))
    add_scaled_(values, average / denominator, -hp["lr"] / (1.0 - hp["beta1_product"]))
