"""Bayes by Backprop as a rule: Adam on the mean and on the scale of every weight (Blundell et al. 2015)."""

from __future__ import annotations

import math
from typing import Any, Unpack

import torch
from torch import Tensor

from bayesadam.core.rule import Hyper, Option, Rule, State, Updated, with_prior
from bayesadam.functional.reparameterized import inverse_softplus, softplus
from bayesadam.optim.adam import adam
from bayesadam.optim.base import PerturbedOptimizer
from bayesadam.optim.options import CommonOptions


class BayesByBackpropRule(Rule):
    """Gradient descent on the negative ELBO per data point (Blundell et al. 2015, section 3.2), by Adam::

        sigma  = log(1 + e^rho)
        h      = g eps                                        d mean loss / d sigma at theta = mu + sigma eps
        g_mu   = g + tau lt (mu - mu0)
        g_rho  = (h + tau / N (lambda sigma - 1 / sigma)) / (1 + e^-rho)
        mu     <- mu - Adam(g_mu),  rho <- rho - Adam(g_rho)

    ``g`` and ``h`` are means over the samples. The Kullback-Leibler divergence from the Gaussian prior enters by its
    gradients in closed form; the paper estimates it at the same samples. This is "BBVI" of Khan et al. 2018. Without
    noise (``perturb=False``) there is no ``h``: ``rho`` stays, and the rule is Adam with the prior's gradient.
    """

    state = ("rho", "exp_avg", "exp_avg_sq", "rho_exp_avg", "rho_exp_avg_sq")
    power = 1
    needs_noise = True
    options = (Option("eps", 1e-8, "a finite number of at least 0", lambda v: 0 <= v < math.inf),)

    def init(self, mean: Tensor, hp: Hyper) -> dict[str, Tensor]:
        """Averages of 0, and the ``rho`` for which ``1 / sigma^2`` is the initial precision."""
        sigma = (torch.zeros_like(mean) + hp.initial_precision).rsqrt()
        return {**super().init(mean, hp), "rho": inverse_softplus(sigma)}

    def precision(self, state: State, hp: Hyper) -> Tensor:
        """``1 / sigma^2``."""
        return scale_of(state["rho"]).square().reciprocal()

    def curvature(self, grad: Tensor, deviation: Tensor | None, state: State, hp: Hyper) -> Tensor | None:
        """``g eps``, the gradient by ``sigma``, which must be averaged over samples; ``None`` without noise."""
        return None if deviation is None else grad * deviation / scale_of(state["rho"])

    def update(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> Updated:
        """One step; see the class."""
        step, m, v = adam(with_prior(grad, mean, hp), state["exp_avg"], state["exp_avg_sq"], hp)
        new = {"exp_avg": m, "exp_avg_sq": v}
        if curvature is not None:
            sigma = scale_of(state["rho"])
            slope = -torch.expm1(-sigma)  # d sigma / d rho = 1 / (1 + e^-rho) = 1 - e^-sigma
            share = hp.temperature / hp.num_data
            total = slope * (curvature + (share * hp.prior_precision) * sigma) - share * (slope / sigma)
            move, m, v = adam(total, state["rho_exp_avg"], state["rho_exp_avg_sq"], hp)
            new |= {"rho": state["rho"] - move, "rho_exp_avg": m, "rho_exp_avg_sq": v}
        return mean - step, new


def scale_of(rho: Tensor) -> Tensor:
    """``log(1 + e^rho)``; positive even where the exact value underflows."""
    return softplus(rho).clamp_min(torch.finfo(rho.dtype).tiny)


class BayesByBackprop(PerturbedOptimizer):
    """Bayes by Backprop with a Gaussian prior, the KL divergence in closed form, and Adam.

    ``betas`` and ``eps`` are Adam's, for means and scales alike. All examples of a minibatch share the noise of a
    weight. The ways to train and all further arguments are those of :class:`PerturbedOptimizer`.

    Args:
        params: Parameters, as in :class:`PerturbedOptimizer`.
        lr: Learning rate, not negative.
        num_data: Number of training examples, or a chosen effective number.
        eps: Term added to the root of the averaged squared gradient; finite and not negative.
    """

    rule = BayesByBackpropRule()
    may_start_wider = True
    tracks_start = False  # widths are trained like the means

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        *,
        num_data: float,
        eps: float = 1e-8,
        **options: Unpack[CommonOptions],
    ) -> None:
        super().__init__(params, lr, num_data=num_data, eps=eps, **options)
