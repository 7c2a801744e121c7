"""NGVI: natural-gradient variational inference in its natural parameters (Khan and Lin 2017; Khan et al. 2018, C)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor

from bayesadam.checks import check
from bayesadam.core.rule import Hyper, Number, State, Updated, with_prior
from bayesadam.optim.newton import HESSIAN_OPTIONS, PriceRule
from bayesadam.optim.options import HessianOptions
from bayesadam.optim.second_order import SecondOrderOptimizer


class NGVIRule(PriceRule):
    """One step ``rho = lr`` for both natural parameters, ``Lambda = 1 / sigma^2`` and ``eta = Lambda mu``::

        Lambda <- (1 - tau rho) Lambda + rho (tau lambda + N h)
        eta    <- (1 - tau rho) eta + rho (tau lambda mu0 + N h mu - N g)
        mu      = eta / Lambda

    ``h`` is a Hessian diagonal of the mean loss, as in VON, and the rule is VON with ``lr = 1 - b2``: the prior and
    every minibatch are Gaussian factors whose natural parameters are averaged. ``betas`` are not used, and ``lr = 0``
    changes nothing. ``correction="elementwise"`` adds VON's term to ``Lambda``, and ``mu`` times this term to ``eta``.
    The code moves the mean by ``-rho N (g + tau lt (mu - mu0)) / Lambda``, which is equivalent and loses no digits.
    """

    state = ("precision",)
    options = HESSIAN_OPTIONS

    def init(self, mean: Tensor, hp: Hyper) -> dict[str, Tensor]:
        """``Lambda = initial_precision``."""
        return {"precision": torch.zeros_like(mean) + hp.initial_precision}

    def precision(self, state: State, hp: Hyper) -> Tensor:
        """``Lambda``."""
        return 1.0 * state["precision"]

    def update(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> Updated:
        """One step; see the class."""
        precision = state["precision"]
        if curvature is not None:
            change = hp.num_data * curvature - hp.temperature * precision + hp.temperature * hp.prior_precision
            precision = precision + hp.lr * change
            if hp.correction == "elementwise":
                precision = precision + (0.5 * hp.lr * hp.lr) * (change.square() / state["precision"])
        return mean - (hp.lr * hp.num_data) * (with_prior(grad, mean, hp) / precision), {"precision": precision}

    def rate(self, hp: Hyper) -> Number:
        """Return the fraction of the distance to its target by which one step moves the precision."""
        return hp.lr

    def slowed(self, group: Mapping[str, Any], rate: float) -> dict[str, Any]:
        """The entries of a group, with a rate of at most this one."""
        return {**group, "lr": min(float(group["lr"]), rate)}


class NGVI(SecondOrderOptimizer):
    """Natural-gradient variational inference: a step of fixed size on the natural parameters of the posterior.

    The arguments are those of :class:`VON`, except that ``lr`` is the step size of both natural parameters, in [0, 1];
    at 1 the posterior is that of the last minibatch alone. ``betas`` are not used.
    """

    rule = NGVIRule()
    tracks_start = False  # it is forgotten at the learning rate

    def check_group(self, group: dict[str, Any]) -> None:
        """Also check that the step does not go beyond its target."""
        super().check_group(group)
        check("lr", group["lr"], "at most 1", lambda v: float(v) <= 1)

    def __init__(
        self, params: Any, lr: float | Tensor = 1e-2, *, num_data: float, **options: Unpack[HessianOptions]
    ) -> None:
        super().__init__(params, lr, num_data=num_data, **options)
