"""VadaGrad: variational AdaGrad, for optimisation rather than inference (Khan et al. 2018, section 5, eq. 96)."""

from __future__ import annotations

from typing import Any, Unpack

from torch import Tensor

from bayesadam.checks import check_positive
from bayesadam.core.rule import Hyper, Number, Rule, State, Updated
from bayesadam.optim.base import PerturbedOptimizer
from bayesadam.optim.options import SamplingOptions


class VadaGradRule(Rule):
    """AdaGrad at sampled weights, for the objective ``E_q[F]`` without prior and entropy (Khan et al. 2018, eq. 22
    with ``tau = 0``, and eq. 96)::

        v  <- v + (1 - b2) (N g)^2                            s = v + initial_precision
        mu <- mu - lr N g / sqrt(s)
        1 / sigma^2 = s

    ``F`` is ``num_data`` times the mean loss that is backpropagated. ``s`` never decays, so the posterior keeps
    narrowing. ``betas[0]`` is not used.
    """

    state = ("sum",)

    def precision(self, state: State, hp: Hyper) -> Tensor:
        """``s``."""
        return state["sum"] + hp.initial_precision

    def curvature(self, grad: Tensor, deviation: Tensor | None, state: State, hp: Hyper) -> Tensor:
        """``(N g)^2``."""
        return (hp.num_data * grad).square()

    def update(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> Updated:
        """One step; see the class."""
        assert curvature is not None
        total = state["sum"] + (1.0 - hp.beta2) * curvature
        return mean - (hp.lr * hp.num_data) * (grad / (total + hp.initial_precision).sqrt()), {"sum": total}

    def forgetting(self, hp: Hyper) -> Number:
        """Nothing, since the sum never decays."""
        return 0.0 * hp.beta2


class VadaGrad(PerturbedOptimizer):
    """Variational AdaGrad, which anneals its noise as AdaGrad anneals its learning rate.

    There is no prior. The ways to train and all further arguments are those of :class:`PerturbedOptimizer`.

    Args:
        params: Parameters, as in :class:`PerturbedOptimizer`.
        lr: Learning rate, not negative.
        num_data: Factor between the mean loss and the objective ``F``; with 1 the objective is the loss.
        initial_precision: Precision at the start; it has no default here.
        betas: ``1 - betas[1]`` is the rate at which squares are added; ``betas[0]`` is not used.
    """

    rule = VadaGradRule()
    has_prior = False
    decided = ("temperature",)

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
        *,
        num_data: float = 1.0,
        initial_precision: float,
        **options: Unpack[SamplingOptions],
    ) -> None:
        fixed = {"initial_precision": initial_precision, "temperature": 0.0}
        super().__init__(params, lr, num_data=num_data, **fixed, **options)

    def check_group(self, group: dict[str, Any]) -> None:
        """Also check that there is an initial precision."""
        super().check_group(group)
        check_positive("initial_precision", group["initial_precision"])
