"""Vadam: variational Adam (Khan et al. 2018, Fig. 1)."""

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
    active_prior_precision,
    add_prior_gradient_,
    add_scaled_,
    blend_,
    factor,
    maximum,
    tempered_decay_,
)
from bayesadam.optim.arguments import Learned
from bayesadam.optim.base import PerturbedOptimizer
from bayesadam.optim.recipes import LEARNED, PAPER, Recipes

if TYPE_CHECKING:
    from typing_extensions import Unpack


class VadamRule:
    """Adam at sampled weights, with the prior's gradient in the momentum (Khan et al. 2018, Fig. 1, lines 1-9)::

        h     = g^2
        m     <- b1 m + (1 - b1) (g + tau lt (mu - mu0))
        v     <- (1 - tau (1 - b2)) v + (1 - b2) h            s = v + B s0
        mu    <- mu - lr m_hat / (sqrt(v_hat) + lt)           m_hat = m / (1 - b1^t), v_hat = v / (1 - b2^t)
        1 / sigma^2 = N (s + lt)

    ``s0 = (initial_precision - lambda) / N``, and ``B`` is the weight that it still has. The bias correction divides
    ``v`` only, so that ``s0`` is not inflated (the authors' code divides ``s0`` too, which stalls the first steps). The
    noise uses the uncorrected ``s``, as in the paper. The prior's gradient does not enter the squares in ``s``. The
    powers ``b1^t`` and ``b2^t`` are running products, so they are correct under schedules. At a temperature below 1 the
    correction is still Adam's: the first step has Adam's length at every temperature, and ``v_hat`` then approaches
    ``h / tau``. At temperature 0 the rule is VadaGrad with momentum.

    With ``bridge=False``, ``v`` is Adam's at every temperature. The posterior uses its bias-corrected value and
    ``M = batch_size``, the number of examples over which a gradient is averaged::

        v     <- b2 v + (1 - b2) h
        mu    <- mu - lr m_hat / (sqrt(v_hat) + tau lt + 1e-8)
        1 / sigma^2 = (1 - B) (N M v_hat / tau + lambda) + B initial_precision

    The square of a mean of ``M`` gradients is ``1 / M`` of their mean square, up to the square of their mean, so that
    ``M v_hat`` is on the scale of the Gauss-Newton diagonal, and the optimum of the tempered objective has the
    precision ``N h / tau + lambda``. ``B`` is the weight of a start that counts as ``initial_steps`` steps.
    """

    state: tuple[str, ...] = ("exp_avg", "exp_avg_sq")
    power = 2
    needs_noise = False
    options: tuple[Option, ...] = (*LEARNING, BATCH_SIZE)

    def init(self, mean: Tensor, hp: Hyper) -> dict[str, Tensor]:
        """Zeros; ``s0`` follows from the hyper-parameters and is not stored."""
        return {name: torch.zeros_like(mean) for name in self.state}

    def precision(self, state: State, hp: Hyper) -> Tensor:
        """``N (v + B s0 + lt)``, computed as ``N v + B initial_precision + (1 - B) lambda`` to avoid cancellation."""
        weight = hp["initial_weight"]
        floor = weight * hp["initial_precision"] + (1.0 - weight) * active_prior_precision(hp)
        scale = hp["num_data"]
        if not hp["bridge"]:
            corrected = (1.0 - weight) / maximum(1.0 - hp["beta2_product"], 1e-30)
            scale = scale * maximum(hp["batch_size"], 1.0) / hp["temperature"] * corrected
        running = state["exp_avg_sq"]
        return torch.mul(running, factor(scale, running)).add_(factor(floor, running))

    def curvature(self, grad: Tensor, eps: Tensor | None, state: State, hp: Hyper) -> Tensor:
        """The squared gradient ``g^2``; for several samples the mean of their squares, as in the authors' code."""
        return grad.square()

    def update_(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> None:
        """One step; see the class."""
        assert curvature is not None
        average, average_sq = state["exp_avg"], state["exp_avg_sq"]
        add_prior_gradient_(grad, mean, hp)
        blend_(average, grad, 1.0 - hp["betas"][0])
        self.follow_(average_sq, curvature, hp)
        denominator = torch.div(average_sq, factor(1.0 - hp["beta2_product"], mean), out=curvature).sqrt_()
        denominator.add_(factor(self.damping(hp), mean))
        torch.div(average, denominator, out=grad)
        add_scaled_(mean, grad, -hp["lr"] / (1.0 - hp["beta1_product"]))

    def follow_(self, average_sq: Tensor, curvature: Tensor, hp: Hyper) -> None:
        """Update the running average of squares: with the bridge the tempered one, otherwise Adam's."""
        if hp["bridge"]:
            tempered_decay_(average_sq, curvature, hp)
        else:
            average_sq.mul_(factor(hp["betas"][1], average_sq))
            add_scaled_(average_sq, curvature, 1.0 - hp["betas"][1])

    def damping(self, hp: Hyper) -> Scalar:
        """Lower bound of the denominator of a step."""
        damping: Scalar = hp["prior_precision"] / hp["num_data"]
        return damping if hp["bridge"] else hp["temperature"] * damping + 1e-8


class Vadam(PerturbedOptimizer):
    """Variational Adam, which costs as much as Adam and turns its second moment into the posterior's precision.

    Arguments and ways to train are those of :class:`PerturbedOptimizer`. With the recipe ``"paper"``, a negligible
    prior and no noise it is ``torch.optim.Adam(eps=prior_precision / num_data)``.
    """

    rule = VadamRule()
    recipes: ClassVar[Recipes] = {"learned": {**LEARNED, "lr": 5e-3, "temperature": 0.01}, "paper": PAPER}

    if TYPE_CHECKING:

        def __init__(
            self, params: Any, lr: float | Tensor | None = None, *, num_data: float, **options: Unpack[Learned]
        ) -> None: ...
