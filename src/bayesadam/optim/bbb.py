"""Bayes by Backprop as a rule: Adam on the mean and on the scale of every weight (Blundell et al. 2015)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesadam.engine.rule import Hyper, Option, Scalar, State, add_prior_gradient_, add_scaled_, factor
from bayesadam.engine.store import Slot
from bayesadam.functional.reparameterized import inverse_softplus
from bayesadam.optim.adam import adam_
from bayesadam.optim.arguments import General
from bayesadam.optim.base import PerturbedOptimizer

if TYPE_CHECKING:
    from typing_extensions import Unpack


class BayesByBackpropRule:
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
        sigma = torch.zeros_like(mean).add_(factor(_root(hp["initial_precision"]), mean)).reciprocal_()
        return {"rho": inverse_softplus(sigma), **{name: torch.zeros_like(mean) for name in self.state[1:]}}

    def precision(self, state: State, hp: Hyper) -> Tensor:
        """``1 / sigma^2``."""
        return _sigma(state["rho"]).square_().reciprocal_()

    def curvature(self, grad: Tensor, eps: Tensor | None, state: State, hp: Hyper) -> Tensor | None:
        """``g eps``, the gradient by ``sigma``, which must be averaged over samples; ``None`` without noise."""
        return None if eps is None else torch.mul(grad, eps)

    def update_(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> None:
        """One step; see the class."""
        if curvature is not None:
            sigma = _sigma(state["rho"])
            slope = torch.expm1(-sigma).neg_()  # d sigma / d rho = 1 / (1 + e^-rho) = 1 - e^-sigma
            share = hp["temperature"] / hp["num_data"]
            add_scaled_(curvature, sigma, share * hp["prior_precision"])
            curvature.mul_(slope)
            add_scaled_(curvature, slope.div_(sigma), -share)
            adam_(state["rho"], curvature, state["rho_exp_avg"], state["rho_exp_avg_sq"], hp)
        add_prior_gradient_(grad, mean, hp)
        adam_(mean, grad, state["exp_avg"], state["exp_avg_sq"], hp)


class BayesByBackprop(PerturbedOptimizer):
    """Bayes by Backprop with a Gaussian prior, the KL divergence in closed form, and Adam.

    Arguments and ways to train are those of :class:`PerturbedOptimizer`. ``betas`` and ``eps`` are Adam's, for means
    and scales alike. All examples of a minibatch share the noise of a weight.

    Args:
        params: Parameters, as in :class:`PerturbedOptimizer`.
        lr: Learning rate, not negative.
        num_data: Number of training examples, or a chosen effective number.
        eps: Term added to the root of the averaged squared gradient; finite and not negative.
        **options: Further arguments of :class:`PerturbedOptimizer`.
    """

    rule = BayesByBackpropRule()
    may_start_wider = True

    def __init__(
        self, params: Any, lr: float | Tensor = 1e-3, *, num_data: float, eps: float = 1e-8, **options: Unpack[General]
    ) -> None:
        super().__init__(params, lr, num_data=num_data, eps=eps, **options)

    def _start_share(self, slot: Slot, state: dict[str, Any], variance: Tensor) -> None:
        """None, because widths that are trained like the means have no known share of the start."""


def _sigma(rho: Tensor) -> Tensor:
    """``log(1 + e^rho)`` as a new tensor; positive even where the exact value underflows."""
    return F.softplus(rho, threshold=40.0).clamp_min_(torch.finfo(rho.dtype).tiny)  # linear only where exact


def _root(value: Scalar) -> Scalar:
    return value.sqrt() if isinstance(value, Tensor) else math.sqrt(value)
