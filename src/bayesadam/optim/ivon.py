"""IVON: the improved variational online Newton method (Shen et al. 2024, Algorithm 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from bayesadam.engine.rule import (
    BATCH_SIZE,
    LEARNING,
    Hyper,
    Option,
    Scalar,
    State,
    add_prior_gradient_,
    add_scaled_,
    blend_,
    factor,
    maximum,
    start_precision,
)
from bayesadam.engine.store import INIT
from bayesadam.optim.arguments import OfIVON
from bayesadam.optim.base import PerturbedOptimizer
from bayesadam.optim.newton import (
    CLIP_RADIUS,
    damped,
    follow_curvature_,
    initial_hessian,
    posterior_precision,
    reparameterized_hessian,
)
from bayesadam.optim.recipes import LEARNED, PAPER, NewtonRate, Recipes

if TYPE_CHECKING:
    from typing_extensions import Unpack

SQUARES = 0.9
"""Weight of the estimate from squared mean gradients in the curvature, used where the batch size is known."""


class IVONRule:
    """Newton's method with a Hessian diagonal estimated from the noise (Shen et al. 2024, Algorithm 1), ``d = lt``::

        h  = g eps / sigma                                    Price's estimator of the Hessian diagonal
        m  <- b1 m + (1 - b1) g                               m_hat = m / (1 - b1^t)
        e  = tau s - h,  r = 1 - b2
        s  <- s - r e + 0.5 r^2 e^2 / (s + d)                 keeps s + d positive (s at tau = 0)
        mu <- mu - lr (s0 + d) clip((m_hat + tau d (mu - mu0)) / (s + d), +-clip_radius)
        1 / sigma^2 = N (s + d)

    At ``tau = 1`` this is the published rule; the factor ``tau`` on ``s`` is the bridge of Khan et al. 2018
    (fixed point ``h / tau``). ``s0 = (initial_precision - lambda) / N``; without ``rescale_lr`` the factor
    ``s0 + d`` is left out. Without noise (``perturb=False``) there is no curvature: ``s`` stays, and the rule is
    gradient descent with momentum.

    With ``bridge=False`` the weight ``r`` of a step's curvature is that of a running average over the whole training,
    ``tau r = max(1 - b2, 3 / (t + k + 2))``, in which the start counts as ``k = initial_steps`` steps. Where the number
    ``M`` of examples that a gradient is the mean of is known (``batch_size``), the curvature is ::

        h  = 0.1 g eps / sigma + 0.9 M g (g - m_hat)          m_hat from before this step; g eps / sigma in the first

    Both terms estimate the Gauss-Newton diagonal. The first is unbiased for the Hessian, but its standard deviation is
    ``sqrt(N / (M tau))`` times its mean, and the correction, which squares it, inflates ``s`` by about half of
    ``3 / (tau epochs)``. The second, ``M`` times the variance of a mean of ``M`` gradients, has a standard deviation
    of 1.4 times its mean. The learning rate is then rescaled by ``s0`` alone, so that a step is ``0.1 lr`` of a Newton
    step even where the prior is a sharp posterior.
    """

    state = ("exp_avg", "hessian")
    power = 1
    needs_noise = True
    options: tuple[Option, ...] = (
        Option("rescale_lr", True, "True or False", lambda v: isinstance(v, bool), static=True),
        CLIP_RADIUS,
        *LEARNING,
        BATCH_SIZE,
    )

    def init(self, mean: Tensor, hp: Hyper) -> dict[str, Tensor]:
        """Momentum 0, Hessian ``s0``."""
        return {"exp_avg": torch.zeros_like(mean), "hessian": initial_hessian(mean, hp)}

    def precision(self, state: State, hp: Hyper) -> Tensor:
        """``N (s + d)``."""
        return posterior_precision(state["hessian"], hp)

    def curvature(self, grad: Tensor, eps: Tensor | None, state: State, hp: Hyper) -> Tensor | None:
        """``g eps / sigma``, whose expectation is the Hessian diagonal of the mean loss."""
        return reparameterized_hessian(grad, eps, state, hp)

    def update_(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> None:
        """One step; see the class."""
        average, hessian = state["exp_avg"], state["hessian"]
        squares = None
        if curvature is not None and not hp["bridge"]:
            squares = self.variance(grad, average, hp)
        blend_(average, grad, 1.0 - hp["betas"][0])
        if curvature is not None:
            if squares is not None:
                blend_(curvature, squares, SQUARES * _one(hp["batch_size"]) * _one(hp["step"] - 1.0))
            follow_curvature_(hessian, curvature, hp, corrected=True)
        step = torch.div(average, factor(1.0 - hp["beta1_product"], mean), out=grad)
        add_prior_gradient_(step, mean, hp)
        step.div_(damped(hessian, hp)).clamp_(-hp["clip_radius"], hp["clip_radius"])
        if hp["rescale_lr"]:
            start = hp["initial_precision"] if hp["bridge"] else hp["initial_precision"] - hp["prior_precision"]
            step.mul_(factor(start / hp["num_data"], mean))
        add_scaled_(mean, step, -hp["lr"])

    def variance(self, grad: Tensor, average: Tensor, hp: Hyper) -> Tensor:
        """``M g (g - m_hat)`` with the average from before this step: ``M`` times the variance of the mean gradient."""
        earlier = hp["beta1_product"] / maximum(hp["betas"][0], 1e-30)
        centered = torch.div(average, factor(maximum(1.0 - earlier, 1e-30), average)).neg_().add_(grad)
        return centered.mul_(grad).mul_(factor(hp["batch_size"], grad))


def _one(value: Scalar) -> Scalar:
    """1, or 0 where the value is 0."""
    return value / maximum(value, 1e-30)


class IVON(PerturbedOptimizer):
    """Improved variational online Newton.

    Arguments and ways to train are those of :class:`PerturbedOptimizer`. The default learning rate is at most 0.3 and
    depends on the number of weights, ``num_data`` and ``batch_size``
    (``NewtonRate`` in :mod:`bayesadam.optim.recipes`). ``betas[1]`` should be near 1, because the curvature estimate is
    noisy and needs a long average.

    IVON's own options are

    - ``rescale_lr``: multiply the learning rate by ``initial_precision / num_data``, so that the first steps are those
      of gradient descent with this learning rate; ``True`` by default.
    - ``clip_radius``: largest absolute value of a preconditioned step before the learning rate; positive, and infinite
      by default.

    ``initial_precision`` must exceed ``prior_precision``.
    """

    rule = IVONRule()
    recipes: ClassVar[Recipes] = {
        "learned": {**LEARNED, "lr": NewtonRate(0.1), "betas": (0.9, 0.99999)},
        "paper": {**PAPER, "lr": 0.1, "betas": (0.9, 0.99999)},
    }

    if TYPE_CHECKING:

        def __init__(
            self, params: Any, lr: float | Tensor | None = None, *, num_data: float, **options: Unpack[OfIVON]
        ) -> None: ...

    def check_group(self, group: dict[str, Any]) -> None:
        """Also check that the initial Hessian is positive, since it scales the learning rate."""
        super().check_group(group)
        start, prior = group["initial_precision"], group["prior_precision"]
        if prior == INIT:
            return
        if start is None:
            start = start_precision(group, prior)
        if prior >= start:
            raise ValueError(
                f"initial_precision must be above prior_precision={group['prior_precision']!r}, got {start!r}"
            )
