"""Vprop: variational RMSprop (Khan et al. 2018, section 3.3 and eq. 14)."""

from __future__ import annotations

from typing import Any, Unpack

from torch import Tensor

from bayesadam.core.rule import Hyper, State, Updated, active_prior, tempered_average, with_prior
from bayesadam.optim.base import PerturbedOptimizer
from bayesadam.optim.options import CommonOptions
from bayesadam.optim.vadam import VadamRule


class VpropRule(VadamRule):
    """Vadam without momentum and without bias correction (Khan et al. 2018, section 3.3)::

        h  = g^2
        v  <- (1 - tau (1 - b2)) v + (1 - b2) h               s = v + B s0
        mu <- mu - lr (g + tau lt (mu - mu0)) / (sqrt(s) + lt)
        1 / sigma^2 = N (s + lt)

    ``betas[0]`` is not used. :class:`VadamRule` explains ``s0`` and ``B``.
    """

    state = ("exp_avg_sq",)

    def update(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> Updated:
        """One step; see the class."""
        assert curvature is not None
        v = tempered_average(state["exp_avg_sq"], curvature, hp)
        start = hp.initial_weight * (hp.initial_precision - active_prior(hp)) / hp.num_data
        denominator = (v + start).sqrt() + hp.prior_precision / hp.num_data
        return mean - hp.lr * (with_prior(grad, mean, hp) / denominator), {"exp_avg_sq": v}


class Vprop(PerturbedOptimizer):
    """Variational RMSprop.

    Arguments, defaults and ways to train are those of :class:`PerturbedOptimizer`; ``betas[0]`` is not used. With a
    negligible prior, no noise and ``initial_precision = prior_precision`` it is
    ``torch.optim.RMSprop(alpha=b2, eps=prior_precision / num_data)``.
    """

    rule = VpropRule()

    def __init__(
        self, params: Any, lr: float | Tensor = 1e-3, *, num_data: float, **options: Unpack[CommonOptions]
    ) -> None:
        super().__init__(params, lr, num_data=num_data, **options)
