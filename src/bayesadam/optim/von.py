"""VON: the variational online Newton method (Khan et al. 2018, section 3.1 and eq. 8)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayesadam.engine.rule import Hyper, Option, State, add_prior_gradient_, add_scaled_
from bayesadam.optim.arguments import Tempered
from bayesadam.optim.newton import (
    CLIP_RADIUS,
    HESSIAN_OPTIONS,
    damped,
    follow_curvature_,
    initial_hessian,
    largest_rate,
    posterior_precision,
    reparameterized_hessian,
)
from bayesadam.optim.second_order import SecondOrderOptimizer

if TYPE_CHECKING:
    from typing_extensions import Unpack


class VONRule:
    """Newton's method at sampled weights (Khan et al. 2018, eq. 8; with ``tau`` eqs. 23-24)::

        s  <- (1 - tau (1 - b2)) s + (1 - b2) h
        mu <- mu - lr clip((g + tau lt (mu - mu0)) / (s + lt), +-clip_radius)
        1 / sigma^2 = N (s + lt)

    ``h`` is a Hessian diagonal of the mean loss, either computed from second derivatives or estimated by
    ``g eps / sigma``. ``betas[0]`` is not used. The element-wise correction also adds
    ``0.5 (1 - b2)^2 (tau s - h)^2 / (s + lt)`` to ``s``, which keeps the precision positive for every ``h``. Without
    noise there is no estimate of the curvature, and ``s`` does not change.
    """

    state: tuple[str, ...] = ("hessian",)
    power = 1
    needs_noise = True
    options: tuple[Option, ...] = (*HESSIAN_OPTIONS, CLIP_RADIUS)

    def init(self, mean: Tensor, hp: Hyper) -> dict[str, Tensor]:
        """The initial Hessian ``s0 = (initial_precision - lambda) / N``."""
        return {"hessian": initial_hessian(mean, hp)}

    def precision(self, state: State, hp: Hyper) -> Tensor:
        """``N (s + lt)``, or ``N s`` at ``tau = 0``, where there is no prior."""
        return posterior_precision(state["hessian"], hp)

    def curvature(self, grad: Tensor, eps: Tensor | None, state: State, hp: Hyper) -> Tensor | None:
        """``g eps / sigma``, or None where second derivatives are taken."""
        return reparameterized_hessian(grad, eps, state, hp) if hp["hessian"] == "reparameterized" else None

    def update_(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> None:
        """One step; see the class."""
        hessian = state["hessian"]
        add_prior_gradient_(grad, mean, hp)
        if curvature is not None:
            follow_curvature_(hessian, curvature, hp, corrected=hp["correction"] == "elementwise")
        step = grad.div_(damped(hessian, hp)).clamp_(-hp["clip_radius"], hp["clip_radius"])
        add_scaled_(mean, step, -hp["lr"])

    def rate(self, hp: Hyper) -> Any:
        """Return the fraction of the distance to its target by which one step moves the precision."""
        return 1.0 - hp["betas"][1]

    def with_rate(self, hp: Hyper, rate: float) -> dict[str, Any]:
        """The same hyper-parameters with another rate."""
        return {**hp, "betas": (hp["betas"][0], 1.0 - rate)}

    def largest_rate(self, state: State, curvature: Tensor, hp: Hyper) -> Tensor:
        """The smallest rate at which a precision would become 0, as a 0-d tensor; infinite if there is none."""
        return largest_rate(state["hessian"], curvature, hp)


class VON(SecondOrderOptimizer):
    """Variational online Newton, the exact method that Vadam approximates cheaply.

    The optimiser takes the second derivatives itself, from a loss on which ``backward()`` has *not* been called::

        opt.step(closure)                                 # the closure returns the mean loss, without backward()

        with opt.sampled_params():
            opt.backward(loss_fn(model(x), y))            # in place of loss.backward()
        opt.step()

    With ``hessian="reparameterized"`` there are no second derivatives, and all three ways to train work as with every
    other optimiser.

    Args:
        params: Parameters, as in :class:`PerturbedOptimizer`.
        lr: Learning rate, not negative; 1 makes full Newton steps.
        num_data: Number of training examples, or a chosen effective number.
        betas: Decay rates; ``betas[1]`` is that of the Hessian, and ``betas[0]`` is not used.
        hessian: Estimate of the Hessian. ``"exact"`` takes one backward pass per weight, for small models;
            ``"hutchinson"`` takes ``probes`` passes with random vectors; ``"reparameterized"`` estimates it from the
            noise and the gradient at no cost, with a high variance, and needs ``betas[1]`` near 1.
        covariance: ``"diagonal"``, or ``"full"`` for one matrix over all weights, of which there may be a few thousand.
            With ``"full"``, :meth:`posterior` returns a :class:`DenseGaussian`, and parameters cannot be added or
            sharded. Weights that are frozen later are held at their means while others are drawn, and stay random in
            the posterior. With ``"reparameterized"`` the estimate from one sample has rank 2 and a size that grows with
            the gradient, so it is stable only if ``1 - betas[1]`` is small against ``1 / sqrt(num_data)``.
        probes: Number of random vectors per sample for ``"hutchinson"``.
        correction: How the precision is kept positive where curvature is negative. ``"elementwise"`` adds a term of
            second order (Lin et al. 2020); ``"backtracking"`` reduces ``1 - betas[1]`` for all weights in that step
            (Khan et al. 2018, eq. 63); with ``None`` a step that would make a precision negative raises an error. The
            default is None for ``"exact"`` and ``"elementwise"`` otherwise.
        clip_radius: Largest absolute value of the Newton step of a weight, before the learning rate; infinite by
            default. A limit of 0.1 to 1 keeps the training from diverging where the curvature has been small and a
            gradient is large, as at the start from a trained network.
        **options: Further arguments of :class:`PerturbedOptimizer`.

    Raises:
        ValueError: A hyper-parameter is out of its range, or options exclude each other.
        FloatingPointError: Raised by ``step()`` if a precision would not stay positive; nothing has changed.
    """

    rule = VONRule()
    covariances = ("diagonal", "full")

    def __init__(
        self,
        params: Any,
        lr: float | torch.Tensor = 1e-2,
        *,
        num_data: float,
        betas: tuple[float, float] = (0.0, 0.999),
        hessian: str = "reparameterized",
        covariance: str = "diagonal",
        probes: int = 1,
        correction: str | None = "default",
        clip_radius: float = math.inf,
        **options: Unpack[Tempered],
    ) -> None:
        super().__init__(
            params,
            lr,
            num_data=num_data,
            betas=betas,
            hessian=hessian,
            covariance=covariance,
            probes=probes,
            correction=correction,
            clip_radius=clip_radius,
            **options,
        )
