"""VON: the variational online Newton method (Khan et al. 2018, section 3.1, eqs. 7-8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

from torch import Tensor

from bayesadam.core.rule import Hyper, Option, State, Updated, with_prior
from bayesadam.optim.newton import CLIP_RADIUS, HESSIAN_OPTIONS, PriceRule, damped, followed
from bayesadam.optim.options import HessianOptions
from bayesadam.optim.second_order import SecondOrderOptimizer


class VONRule(PriceRule):
    """Newton's method at sampled weights (Khan et al. 2018, eqs. 7-8; with ``tau`` eqs. 23-24)::

        s  <- (1 - tau (1 - b2)) s + (1 - b2) h
        mu <- mu - lr clip((g + tau lt (mu - mu0)) / (s + lt), +-clip_radius)
        1 / sigma^2 = N (s + lt)

    ``h`` is a Hessian diagonal of the mean loss, either computed from second derivatives or estimated by
    ``g (theta - mu) / sigma^2``. ``betas[0]`` is not used. The element-wise correction also adds
    ``0.5 (1 - b2)^2 (tau s - h)^2 / (s + lt)`` to ``s``, which keeps the precision positive for every ``h``. Without
    noise there is no estimate of the curvature, and ``s`` does not change.
    """

    state: ClassVar[tuple[str, ...]] = ("hessian",)
    options: ClassVar[tuple[Option, ...]] = (*HESSIAN_OPTIONS, CLIP_RADIUS)

    def update(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> Updated:
        """One step; see the class."""
        hessian = state["hessian"]
        if curvature is not None:
            hessian = followed(hessian, curvature, hp, corrected=hp.correction == "elementwise")
        step = with_prior(grad, mean, hp) / damped(hessian, hp)
        return mean - hp.lr * step.clamp(-hp.clip_radius, hp.clip_radius), {"hessian": hessian}


class VONOptions(HessianOptions, total=False):
    """Options of :class:`VON`."""

    clip_radius: float


class VON(SecondOrderOptimizer):
    """Variational online Newton, the exact method that Vadam approximates cheaply; :class:`DenseVON` is the same with a
    full covariance.

    With ``hessian="exact"`` or ``"hutchinson"`` the optimiser takes the second derivatives itself, from a loss on which
    ``backward()`` has *not* been called::

        opt.step(closure)                                 # the closure returns the mean loss, without backward()

        with opt.sampled_params():
            opt.backward(loss_fn(model(x), y))            # in place of loss.backward()
        opt.step()

    With ``hessian="reparameterized"``, the default, there are no second derivatives, and all three ways to train work
    as with every other optimiser. Arguments that are not listed are those of :class:`PerturbedOptimizer`.

    Args:
        params: Parameters, as in :class:`PerturbedOptimizer`.
        lr: Learning rate, not negative; 1 makes full Newton steps.
        num_data: Number of training examples, or a chosen effective number.
        betas: Decay rates; ``betas[1]`` is that of the Hessian, and ``betas[0]`` is not used.
        hessian: Estimate of the Hessian. ``"exact"`` takes one backward pass per weight, for small models;
            ``"hutchinson"`` takes ``probes`` passes with random vectors; ``"reparameterized"`` estimates it from the
            noise and the gradient at no cost, with a high variance, and needs ``betas[1]`` near 1 and often a
            ``correction``.
        probes: Number of random vectors per sample for ``"hutchinson"``.
        correction: How the precision is kept positive where curvature is negative. With ``None``, the default and the
            algorithm as published, a step that would make a precision negative raises an error; ``"backtracking"``
            reduces ``1 - betas[1]`` for all weights in that step (Khan et al. 2018, eq. 63); ``"elementwise"`` adds the
            term of second order of a later paper (Lin et al. 2020), as in IVON.
        clip_radius: Largest absolute value of the Newton step of a weight, before the learning rate; infinite by
            default. A limit of 0.1 to 1 keeps the training from diverging where the curvature has been small and a
            gradient is large, as at the start from a trained network.

    Raises:
        ValueError: A hyper-parameter is out of its range, or options exclude each other.
        FloatingPointError: Raised by ``step()`` if a precision would not stay positive; nothing has changed.
    """

    rule = VONRule()
    usual: ClassVar[Mapping[str, Any]] = {"betas": (0.0, 0.999)}

    def __init__(
        self, params: Any, lr: float | Tensor = 1e-2, *, num_data: float, **options: Unpack[VONOptions]
    ) -> None:
        super().__init__(params, lr, num_data=num_data, **options)
