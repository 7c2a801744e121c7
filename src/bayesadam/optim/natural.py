"""Natural momentum: the heavy-ball method with a KL divergence as distance (Khan et al. 2018, app. E, eqs. 82-87)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayesadam.engine.rule import Hyper, State, add_prior_gradient_, add_scaled_, factor, tempered_decay_
from bayesadam.optim.arguments import General, OfNaturalVON
from bayesadam.optim.base import PerturbedOptimizer
from bayesadam.optim.newton import HESSIAN_OPTIONS, damped, follow_curvature_, initial_hessian, posterior_precision
from bayesadam.optim.second_order import SecondOrderOptimizer
from bayesadam.optim.von import VONRule

if TYPE_CHECKING:
    from typing_extensions import Unpack


class NaturalVONRule(VONRule):
    """VON with natural momentum (Khan et al. 2018, eqs. 82-83), ``c = b1``, ``s'`` the new ``s``::

        s' = (1 - tau (1 - b2)) s + (1 - b2) h
        mu <- mu - lr (g + tau lt (mu - mu0)) / (s' + lt) + c (s + lt) / (s' + lt) (mu - mu_prev)
        1 / sigma^2 = N (s' + lt)

    The paper derives a single rate, ``1 - b2 = lr``, and then uses two rates, as here. In the long run momentum ``c``
    makes steps ``1 / (1 - c)`` times as long.
    """

    state = ("displacement", "hessian")
    options = HESSIAN_OPTIONS

    def init(self, mean: Tensor, hp: Hyper) -> dict[str, Tensor]:
        """No displacement, Hessian ``s0``."""
        return {"displacement": torch.zeros_like(mean), "hessian": initial_hessian(mean, hp)}

    def update_(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> None:
        """One step; see the class."""
        hessian = state["hessian"]
        before = damped(hessian, hp)
        if curvature is not None:
            follow_curvature_(hessian, curvature, hp, corrected=hp["correction"] == "elementwise")
        _heavy_ball_(mean, state["displacement"], grad, before, damped(hessian, hp), hp)


class NaturalVadamRule:
    """Vadam with natural momentum, from which Khan et al. 2018 derive Vadam (eqs. 86-87), ``c = b1``::

        s' = (1 - tau (1 - b2)) s + (1 - b2) g^2
        mu <- mu - lr (g + tau lt (mu - mu0)) / (sqrt(s') + lt)
                 + c (sqrt(s) + lt) / (sqrt(s') + lt) (mu - mu_prev)
        1 / sigma^2 = N (s' + lt)

    Neither ``s`` nor the momentum is bias-corrected.
    """

    state = ("displacement", "exp_avg_sq")
    power = 2
    needs_noise = False
    options = ()

    def init(self, mean: Tensor, hp: Hyper) -> dict[str, Tensor]:
        """No displacement, ``s0 = (initial_precision - lambda) / N``."""
        return {"displacement": torch.zeros_like(mean), "exp_avg_sq": initial_hessian(mean, hp)}

    def precision(self, state: State, hp: Hyper) -> Tensor:
        """``N (s + lt)``."""
        return posterior_precision(state["exp_avg_sq"], hp)

    def curvature(self, grad: Tensor, eps: Tensor | None, state: State, hp: Hyper) -> Tensor:
        """The squared gradient ``g^2``."""
        return grad.square()

    def update_(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> None:
        """One step; see the class."""
        assert curvature is not None
        average_sq, damping = state["exp_avg_sq"], factor(hp["prior_precision"] / hp["num_data"], mean)
        before = average_sq.sqrt().add_(damping)
        tempered_decay_(average_sq, curvature, hp)
        after = torch.sqrt(average_sq, out=curvature).add_(damping)
        _heavy_ball_(mean, state["displacement"], grad, before, after, hp)


def _heavy_ball_(mean: Tensor, displacement: Tensor, grad: Tensor, before: Tensor, after: Tensor, hp: Hyper) -> None:
    """``displacement <- (c before displacement - lr (g + prior gradient)) / after``; ``mean`` moves by it."""
    add_prior_gradient_(grad, mean, hp)
    displacement.mul_(before).mul_(factor(hp["betas"][0], mean))
    add_scaled_(displacement, grad, -hp["lr"])
    mean.add_(displacement.div_(after))


class NaturalVON(SecondOrderOptimizer):
    """VON with natural momentum.

    The arguments are those of :class:`VON`, except that ``betas[0]`` is the momentum and the covariance is diagonal.
    """

    rule = NaturalVONRule()

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        *,
        num_data: float,
        betas: tuple[float, float] = (0.9, 0.999),
        hessian: str = "reparameterized",
        probes: int = 1,
        correction: str | None = "default",
        **options: Unpack[OfNaturalVON],
    ) -> None:
        super().__init__(
            params, lr, num_data=num_data, betas=betas, hessian=hessian, probes=probes, correction=correction, **options
        )


class NaturalVadam(PerturbedOptimizer):
    """Vadam with natural momentum.

    Arguments and ways to train are those of :class:`PerturbedOptimizer`; ``betas[0]`` is the momentum. ``s`` is not
    bias-corrected, so its initial value matters: with the default ``initial_precision`` the first steps are as long as
    those of gradient descent.
    """

    rule = NaturalVadamRule()

    if TYPE_CHECKING:

        def __init__(
            self, params: Any, lr: float | Tensor | None = None, *, num_data: float, **options: Unpack[General]
        ) -> None: ...
