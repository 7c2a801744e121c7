"""IVON: the improved variational online Newton method (Shen et al. 2024, Algorithm 1)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bayesadam.engine.rule import Hyper, Option, State, add_prior_gradient_, add_scaled_, blend_, factor
from bayesadam.optim.base import PerturbedOptimizer
from bayesadam.optim.newton import (
    damped,
    follow_curvature_,
    initial_hessian,
    posterior_precision,
    reparameterized_hessian,
)


class IVONRule:
    """Newton's method with a Hessian diagonal read off the noise (Shen et al. 2024, Algorithm 1), ``d = lt``::

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
    """

    state = ("exp_avg", "hessian")
    power = 1
    needs_noise = True
    options = (
        Option("rescale_lr", True, "True or False", lambda v: isinstance(v, bool), static=True),
        Option("clip_radius", math.inf, "positive", lambda v: v > 0),
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
        blend_(average, grad, 1.0 - hp["betas"][0])
        if curvature is not None:
            follow_curvature_(hessian, curvature, hp, corrected=True)
        step = torch.div(average, factor(1.0 - hp["beta1_product"], mean), out=grad)
        add_prior_gradient_(step, mean, hp)
        step.div_(damped(hessian, hp)).clamp_(-hp["clip_radius"], hp["clip_radius"])
        if hp["rescale_lr"]:
            step.mul_(factor(hp["initial_precision"] / hp["num_data"], mean))
        add_scaled_(mean, step, -hp["lr"])


class IVON(PerturbedOptimizer):
    """Improved variational online Newton.

    Arguments and ways to train are those of :class:`PerturbedOptimizer`. Good learning rates are near those of
    gradient descent (0.1), far above Adam's, and ``betas[1]`` is near 1: the curvature estimate is noisy and wants a
    long average.

    Args:
        params: As every optimiser's.
        lr: Learning rate; not negative.
        num_data: Number of training examples, or a chosen effective number.
        betas: Decay rates of the gradient's and the Hessian's averages.
        rescale_lr: Multiply the learning rate by ``initial_precision / num_data``, so that the first steps are those
            of gradient descent with this learning rate.
        clip_radius: Largest absolute value of a preconditioned step before the learning rate; positive.
        **options: As :class:`PerturbedOptimizer`'s. ``initial_precision`` must exceed ``prior_precision``.
    """

    rule = IVONRule()

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.1,
        *,
        num_data: float,
        betas: tuple[float, float] = (0.9, 0.99999),
        rescale_lr: bool = True,
        clip_radius: float = math.inf,
        **options: Any,
    ) -> None:
        options |= {"rescale_lr": rescale_lr, "clip_radius": clip_radius}
        super().__init__(params, lr, num_data=num_data, betas=betas, **options)

    def check_group(self, group: dict[str, Any]) -> None:
        """Also: the initial Hessian must be positive, since it scales the learning rate."""
        super().check_group(group)
        start = group["initial_precision"]
        if start is None:
            start = max(group["num_data"], group["prior_precision"])
        if group["prior_precision"] >= start:
            raise ValueError(
                f"initial_precision must be above prior_precision={group['prior_precision']!r}, got {start!r}"
            )
