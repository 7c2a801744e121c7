"""IVON: the improved variational online Newton method (Shen et al. 2024, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

from torch import Tensor

from bayesadam.checks import check_positive
from bayesadam.core.rule import Hyper, Option, State, Updated, average, with_prior
from bayesadam.optim.base import PerturbedOptimizer
from bayesadam.optim.newton import CLIP_RADIUS, PriceRule, damped, followed
from bayesadam.optim.options import CommonOptions


class IVONRule(PriceRule):
    """Newton's method with a Hessian diagonal estimated from the noise (Shen et al. 2024, Algorithm 1), ``d = lt``::

        h  = g (theta - mu) / sigma^2                         Price's estimator of the Hessian diagonal
        m  <- b1 m + (1 - b1) g                               m_hat = m / (1 - b1^t)
        e  = tau s - h,  r = 1 - b2
        s  <- s - r e + 0.5 r^2 e^2 / (s + d)                 keeps s + d positive (s at tau = 0)
        mu <- mu - lr (s0 + d) clip((m_hat + tau d (mu - mu0)) / (s + d), +-clip_radius)
        1 / sigma^2 = N (s + d)

    At ``tau = 1`` this is the published rule; the factor ``tau`` on ``s`` is that of Khan et al. 2018, eqs. 22-24
    (fixed point ``h / tau``). ``s0 = (initial_precision - lambda) / N``; without ``rescale_lr`` the factor
    ``s0 + d`` is left out. Without noise (``perturb=False``) there is no curvature: ``s`` stays, and the rule is
    gradient descent with momentum.
    """

    state = ("exp_avg", "hessian")
    options = (
        Option("rescale_lr", True, "True or False", lambda v: isinstance(v, bool), static=True),
        CLIP_RADIUS,
    )

    def update(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> Updated:
        """One step; see the class."""
        m, hessian = average(state["exp_avg"], grad, hp.beta1), state["hessian"]
        if curvature is not None:
            hessian = followed(hessian, curvature, hp, corrected=True)
        step = with_prior(m / (1.0 - hp.beta1_product), mean, hp) / damped(hessian, hp)
        scale = hp.initial_precision / hp.num_data if hp.rescale_lr else 1.0
        return mean - (hp.lr * scale) * step.clamp(-hp.clip_radius, hp.clip_radius), {"exp_avg": m, "hessian": hessian}


class IVONOptions(CommonOptions, total=False):
    """Options of :class:`IVON`."""

    rescale_lr: bool
    clip_radius: float


class IVON(PerturbedOptimizer):
    """Improved variational online Newton, with the defaults of its authors' package.

    The ways to train and the arguments that are not listed are those of :class:`PerturbedOptimizer`.

    Args:
        params: Parameters, as in :class:`PerturbedOptimizer`.
        lr: Learning rate, not negative; the authors recommend 0.1 to 0.3 for image classification.
        num_data: Number of training examples, or a chosen effective number.
        betas: Decay rates; ``betas[1]`` should be near 1, because the curvature estimate is noisy and needs a long
            average.
        prior_precision: Precision of the prior. The default is ``1e-4 num_data``: the authors' weight decay of 1e-4 is
            this precision divided by ``num_data``.
        initial_precision: Precision at the start, above ``prior_precision``; by default ``max(num_data,
            prior_precision)``, which is the authors' initial Hessian of 1, but for the prior's part.
        rescale_lr: Whether to multiply the learning rate by ``initial_precision / num_data``, so that the first steps
            are those of gradient descent with this learning rate.
        clip_radius: Largest absolute value of a preconditioned step before the learning rate; positive.
    """

    rule = IVONRule()
    usual: ClassVar[Mapping[str, Any]] = {"betas": (0.9, 0.99999), "prior_precision": None}

    def __init__(
        self, params: Any, lr: float | Tensor = 0.1, *, num_data: float, **options: Unpack[IVONOptions]
    ) -> None:
        if options.get("prior_precision") is None:
            check_positive("num_data", num_data)
            options["prior_precision"] = 1e-4 * num_data
        super().__init__(params, lr, num_data=num_data, **options)

    def check_group(self, group: dict[str, Any]) -> None:
        """Also check that the initial Hessian is positive, since it scales the learning rate."""
        super().check_group(group)
        start, prior = group["initial_precision"], group["prior_precision"]
        start = max(group["num_data"], prior) if start is None else start
        if prior >= start:
            raise ValueError(f"initial_precision must be above prior_precision={prior!r}, got {start!r}")
