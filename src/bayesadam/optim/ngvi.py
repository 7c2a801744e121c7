"""NGVI: natural-gradient variational inference in its natural parameters (Khan and Lin 2017; Khan et al. 2018, C)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayesadam.checks import check
from bayesadam.engine.rule import Hyper, State, add_prior_gradient_, add_scaled_, factor
from bayesadam.engine.store import Slot
from bayesadam.optim.arguments import OfNGVI
from bayesadam.optim.newton import HESSIAN_OPTIONS, largest_rate
from bayesadam.optim.second_order import SecondOrderOptimizer

if TYPE_CHECKING:
    from typing_extensions import Unpack


class NGVIRule:
    """One step ``rho = lr`` for both natural parameters, ``Lambda = 1 / sigma^2`` and ``eta = Lambda mu``::

        Lambda <- (1 - tau rho) Lambda + rho (tau lambda + N h)
        eta    <- (1 - tau rho) eta + rho (tau lambda mu0 + N h mu - N g)
        mu      = eta / Lambda

    ``h`` is a Hessian diagonal of the mean loss, as in VON, and the rule is VON with ``lr = 1 - b2``: the prior and
    every minibatch are Gaussian factors whose natural parameters are averaged. ``betas`` are not used, and ``lr = 0``
    changes nothing. The element-wise correction adds VON's term to ``Lambda``, and ``mu`` times this term to ``eta``.
    The code moves the mean by ``-rho N (g + tau lt (mu - mu0)) / Lambda``, which is equivalent and loses no digits.
    """

    state = ("precision",)
    power = 1
    needs_noise = True
    options = HESSIAN_OPTIONS

    def init(self, mean: Tensor, hp: Hyper) -> dict[str, Tensor]:
        """``Lambda = initial_precision``."""
        return {"precision": torch.zeros_like(mean).add_(factor(hp["initial_precision"], mean))}

    def precision(self, state: State, hp: Hyper) -> Tensor:
        """``Lambda``."""
        return state["precision"].clone()

    def curvature(self, grad: Tensor, eps: Tensor | None, state: State, hp: Hyper) -> Tensor | None:
        """``g eps / sigma``, or None where second derivatives are taken."""
        if eps is None or hp["hessian"] != "reparameterized":
            return None
        return grad * eps * state["precision"].sqrt()

    def update_(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> None:
        """One step; see the class."""
        precision, rate, num_data = state["precision"], hp["lr"], factor(hp["num_data"], mean)
        add_prior_gradient_(grad, mean, hp)
        if curvature is not None:
            change = curvature.mul_(num_data)
            add_scaled_(change, precision, -hp["temperature"])
            change.add_(factor(hp["temperature"] * hp["prior_precision"], mean))
            second = change.square().div_(precision) if hp["correction"] == "elementwise" else None
            change.mul_(factor(rate, mean))
            if second is not None:
                add_scaled_(change, second, 0.5 * rate * rate)
            precision.add_(change)
        add_scaled_(mean, grad.mul_(num_data).div_(precision), -rate)

    def rate(self, hp: Hyper) -> Any:
        """Return the fraction of the distance to its target by which one step moves the precision."""
        return hp["lr"]

    def with_rate(self, hp: Hyper, rate: float) -> dict[str, Any]:
        """The same hyper-parameters with another rate."""
        return {**hp, "lr": rate}

    def largest_rate(self, state: State, curvature: Tensor, hp: Hyper) -> Tensor:
        """The smallest rate at which a precision would become 0, as a 0-d tensor; infinite if there is none."""
        share = hp["prior_precision"] * (hp["temperature"] > 0)
        return largest_rate((state["precision"] - factor(share, curvature)) / hp["num_data"], curvature, hp)


class NGVI(SecondOrderOptimizer):
    """Natural-gradient variational inference: a step of fixed size on the natural parameters of the posterior.

    The arguments are those of :class:`VON`, except that ``lr`` is the step size of both natural parameters, in [0, 1];
    at 1 the posterior is that of the last minibatch alone. ``betas`` are not used. The covariance is diagonal.
    """

    rule = NGVIRule()

    def check_group(self, group: dict[str, Any]) -> None:
        """Also check that the step does not go beyond its target."""
        super().check_group(group)
        check("lr", group["lr"], "at most 1", lambda v: float(v) <= 1)

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
        *,
        num_data: float,
        hessian: str = "reparameterized",
        probes: int = 1,
        correction: str | None = "default",
        **options: Unpack[OfNGVI],
    ) -> None:
        super().__init__(
            params, lr, num_data=num_data, hessian=hessian, probes=probes, correction=correction, **options
        )

    def _start_share(self, slot: Slot, state: dict[str, Any], variance: Tensor) -> None:
        """None, because the start is forgotten at the learning rate and its share is not tracked."""
