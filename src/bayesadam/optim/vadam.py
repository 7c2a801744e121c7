"""Vadam: variational Adam (Khan et al. 2018, Fig. 1)."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

from torch import Tensor

from bayesadam.core.rule import Hyper, Number, Rule, State, Updated, active_prior, average, tempered_average, with_prior
from bayesadam.optim.base import PerturbedOptimizer
from bayesadam.optim.options import CommonOptions


class VadamRule(Rule):
    """Adam at sampled weights, with the prior's gradient in the momentum (Khan et al. 2018, Fig. 1, lines 1-9)::

        h     = g^2
        m     <- b1 m + (1 - b1) (g + tau lt (mu - mu0))
        v     <- (1 - tau (1 - b2)) v + (1 - b2) h            s = v + B s0
        mu    <- mu - lr m_hat / (sqrt(v_hat) + lt)           m_hat = m / (1 - b1^t), v_hat = v / (1 - b2^t)
        1 / sigma^2 = N (s + lt)

    ``s0 = (initial_precision - lambda) / N``, and ``B`` is the weight that it still has. The bias correction divides
    ``v`` only, so that ``s0`` is not inflated (the authors' code divides ``s0`` too, which stalls the first steps). The
    noise uses the uncorrected ``s``, as in the paper. The prior's gradient does not enter the squares in ``s``. The
    powers ``b1^t`` and ``b2^t`` are running products, so they are correct under schedules. At a temperature below 1
    (eq. 22) the correction is still Adam's: the first step has Adam's length at every temperature, and ``v_hat`` then
    approaches ``h / tau``.
    """

    state: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    def precision(self, state: State, hp: Hyper) -> Tensor:
        """``N (v + B s0 + lt)``, computed as ``N v + B initial_precision + (1 - B) lambda`` to avoid cancellation."""
        return hp.num_data * state["exp_avg_sq"] + self.floor(hp)

    def floor(self, hp: Hyper) -> Number:
        """The part of the precision that is not from data."""
        start = hp.initial_weight
        return start * hp.initial_precision + (1.0 - start) * active_prior(hp)

    def curvature(self, grad: Tensor, deviation: Tensor | None, state: State, hp: Hyper) -> Tensor:
        """The squared gradient ``g^2``; for several samples the mean of their squares, as in the authors' code."""
        return grad * grad

    def update(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> Updated:
        """One step; see the class."""
        assert curvature is not None
        m = average(state["exp_avg"], with_prior(grad, mean, hp), hp.beta1)
        v = tempered_average(state["exp_avg_sq"], curvature, hp)
        return mean - adam_step(m, v, hp.prior_precision / hp.num_data, hp), {"exp_avg": m, "exp_avg_sq": v}


def adam_step(m: Tensor, v: Tensor, damping: Number, hp: Hyper) -> Tensor:
    """``lr m_hat / (sqrt(v_hat) + damping)``."""
    return (hp.lr / (1.0 - hp.beta1_product)) * (m / ((v / (1.0 - hp.beta2_product)).sqrt() + damping))


class Vadam(PerturbedOptimizer):
    """Variational Adam, as Fig. 1 of Khan et al. 2018 has it.

    It costs as much as Adam and turns its second moment into the posterior's precision. With a negligible prior and no
    noise it is ``torch.optim.Adam(eps=prior_precision / num_data)``. Arguments, defaults and ways to train are those of
    :class:`PerturbedOptimizer`. One default is not the paper's: Fig. 1 has no initial precision, appendix J 10 for
    networks (the prior's in the authors' code), and appendix K ``s = 0``.

    The square of the *mean* gradient over a minibatch is smaller than the mean of squared gradients, so that the
    posterior is the wider, the larger the minibatches are (section 3.4 of the paper). :class:`BayesAdam` corrects for
    it.
    """

    rule = VadamRule()

    def __init__(
        self, params: Any, lr: float | Tensor = 1e-3, *, num_data: float, **options: Unpack[CommonOptions]
    ) -> None:
        super().__init__(params, lr, num_data=num_data, **options)
