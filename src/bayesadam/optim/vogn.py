"""VOGN: the variational online Gauss-Newton method (Khan et al. 2018, section 3.2; Osawa et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

from torch import Tensor

from bayesadam.core.rule import (
    Hyper,
    Option,
    State,
    Updated,
    average,
    computes_curvature,
    tempered_average,
    with_prior,
)
from bayesadam.curvature import PerExampleSquares
from bayesadam.optim.base import PerturbedOptimizer
from bayesadam.optim.groups import checked_squares
from bayesadam.optim.newton import HessianRule, damped
from bayesadam.optim.options import CommonOptions


class VOGNRule(HessianRule):
    """VON with squared per-example gradients (Khan et al. 2018, section 3.2; momentum as Osawa et al. 2019)::

        h  = 1/M sum_i (grad f_i)^2
        m  <- b1 m + (1 - b1) (g + tau lt (mu - mu0))         m_hat = m / (1 - b1^t)
        s  <- (1 - tau (1 - b2)) s + (1 - b2) h
        mu <- mu - lr m_hat / (s + lt)
        1 / sigma^2 = N (s + lt)

    With ``b1 = 0`` there is no momentum, as in Khan et al. 2018. ``s`` is not bias-corrected.
    """

    state = ("exp_avg", "hessian")
    options = (
        Option("hessian", "empirical_fisher", "'empirical_fisher'", lambda v: v == "empirical_fisher", static=True),
    )

    def update(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> Updated:
        """One step; see the class."""
        m, hessian = average(state["exp_avg"], with_prior(grad, mean, hp), hp.beta1), state["hessian"]
        if curvature is not None:
            hessian = tempered_average(hessian, curvature, hp)
        mean = mean - (hp.lr / (1.0 - hp.beta1_product)) * (m / damped(hessian, hp))
        return mean, {"exp_avg": m, "hessian": hessian}


class VOGN(PerturbedOptimizer):
    """Variational online Gauss-Newton, whose curvature is the mean of the squared gradients of single examples.

    Unlike the squared mean gradient of Vadam, this curvature does not shrink as the minibatch grows, so the width of
    the posterior is right for every batch size. The module is given once, and all three ways to train work::

        opt = ba.VOGN(model.parameters(), num_data=len(train_set), curvature=ba.PerExampleSquares(model))

    Arguments that are not listed are those of :class:`PerturbedOptimizer`.

    Args:
        params: Parameters, as in :class:`PerturbedOptimizer`. Groups with ``perturb=False`` may have parameters that do
            not belong to the module (a learned noise level): their curvature is not known, and they follow the running
            average of their gradient.
        lr: Learning rate, not negative.
        num_data: Number of training examples, or a chosen effective number.
        curvature: The :class:`PerExampleSquares` of the module that has the parameters. It knows whether the loss is a
            mean or a sum over the examples of a minibatch. With a sum, ``p.grad`` is the gradient of the mean after a
            sampling block; in drop-in training it is the gradient of the sum, and the step divides it. All backward
            passes of a step must go through the module, and gradients must be cleared by the optimiser's
            ``zero_grad``, which clears the squares too. A subclass whose rule defines a ``curvature`` does not use it.
        betas: Decay rates of momentum and curvature; without momentum by default, as in Khan et al. 2018.

    Raises:
        ValueError: A hyper-parameter is out of its range, or ``curvature`` is not a :class:`PerExampleSquares`.
        RuntimeError: Raised by ``step()`` if a parameter has a gradient that did not come through the module.
    """

    rule = VOGNRule()
    usual: ClassVar[Mapping[str, Any]] = {"betas": (0.0, 0.999)}
    decided = ("hessian",)

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        *,
        num_data: float,
        curvature: PerExampleSquares,
        **options: Unpack[CommonOptions],
    ) -> None:
        self._source = None if computes_curvature(self.rule) else checked_squares(curvature)
        super().__init__(params, lr, num_data=num_data, **options)
