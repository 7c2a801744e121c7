"""Natural momentum: the heavy-ball method with a KL divergence as distance (Khan et al. 2018, eqs. 18-19, 86-87)."""

from __future__ import annotations

from typing import Any, Unpack

from torch import Tensor

from bayesadam.core.rule import Hyper, State, Updated, tempered_average, with_prior
from bayesadam.optim.base import PerturbedOptimizer
from bayesadam.optim.newton import HESSIAN_OPTIONS, HessianRule, damped, followed
from bayesadam.optim.options import CommonOptions, HessianOptions
from bayesadam.optim.second_order import SecondOrderOptimizer
from bayesadam.optim.von import VONRule


class NaturalVONRule(VONRule):
    """VON with natural momentum (Khan et al. 2018, eqs. 18-19), ``c = b1``, ``s'`` the new ``s``::

        s' = (1 - tau (1 - b2)) s + (1 - b2) h
        mu <- mu - lr (g + tau lt (mu - mu0)) / (s' + lt) + c (s + lt) / (s' + lt) (mu - mu_prev)
        1 / sigma^2 = N (s' + lt)

    The paper derives a single rate, ``1 - b2 = lr``, and then uses two rates, as here. In the long run momentum ``c``
    makes steps ``1 / (1 - c)`` times as long.
    """

    state = ("displacement", "hessian")
    options = HESSIAN_OPTIONS

    def update(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> Updated:
        """One step; see the class."""
        before = after = state["hessian"]
        if curvature is not None:
            after = followed(before, curvature, hp, corrected=hp.correction == "elementwise")
        step = heavy_ball(mean, state["displacement"], grad, damped(before, hp), damped(after, hp), hp)
        return mean + step, {"displacement": step, "hessian": after}


class NaturalVadamRule(HessianRule):
    """Vadam with natural momentum, from which Khan et al. 2018 derive Vadam (eqs. 86-87), ``c = b1``::

        s' = (1 - tau (1 - b2)) s + (1 - b2) g^2
        mu <- mu - lr (g + tau lt (mu - mu0)) / (sqrt(s') + lt)
                 + c (sqrt(s) + lt) / (sqrt(s') + lt) (mu - mu_prev)
        1 / sigma^2 = N (s' + lt)

    Neither ``s`` nor the momentum is bias-corrected.
    """

    state = ("displacement", "exp_avg_sq")
    running = "exp_avg_sq"

    def curvature(self, grad: Tensor, deviation: Tensor | None, state: State, hp: Hyper) -> Tensor:
        """The squared gradient ``g^2``."""
        return grad.square()

    def update(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> Updated:
        """One step; see the class."""
        assert curvature is not None
        after, damping = tempered_average(state["exp_avg_sq"], curvature, hp), hp.prior_precision / hp.num_data
        roots = state["exp_avg_sq"].sqrt() + damping, after.sqrt() + damping
        step = heavy_ball(mean, state["displacement"], grad, *roots, hp)
        return mean + step, {"displacement": step, "exp_avg_sq": after}


def heavy_ball(mean: Tensor, displacement: Tensor, grad: Tensor, before: Tensor, after: Tensor, hp: Hyper) -> Tensor:
    """``(c before displacement - lr (g + prior gradient)) / after``."""
    return (hp.beta1 * before * displacement - hp.lr * with_prior(grad, mean, hp)) / after


class NaturalVON(SecondOrderOptimizer):
    """VON with natural momentum.

    The arguments are those of :class:`VON`, except that ``betas[0]`` is the momentum.
    """

    rule = NaturalVONRule()

    def __init__(
        self, params: Any, lr: float | Tensor = 1e-3, *, num_data: float, **options: Unpack[HessianOptions]
    ) -> None:
        super().__init__(params, lr, num_data=num_data, **options)


class NaturalVadam(PerturbedOptimizer):
    """Vadam with natural momentum.

    Arguments, defaults and ways to train are those of :class:`PerturbedOptimizer`; ``betas[0]`` is the momentum. ``s``
    is not bias-corrected, so its initial value matters: with the default ``initial_precision`` the first steps are as
    long as those of gradient descent.
    """

    rule = NaturalVadamRule()

    def __init__(
        self, params: Any, lr: float | Tensor = 1e-3, *, num_data: float, **options: Unpack[CommonOptions]
    ) -> None:
        super().__init__(params, lr, num_data=num_data, **options)
