"""VadaGrad: variational AdaGrad, for optimisation rather than inference (Khan et al. 2018, section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayesadam.checks import check
from bayesadam.engine.rule import Hyper, State, add_scaled_, factor
from bayesadam.optim.arguments import WithoutPrior
from bayesadam.optim.base import PerturbedOptimizer

if TYPE_CHECKING:
    from typing_extensions import Unpack


class VadaGradRule:
    """AdaGrad at sampled weights, for the objective ``E_q[F]`` without prior and entropy (Khan et al. 2018, eq. 22
    with ``tau = 0``, and the update below it)::

        v  <- v + (1 - b2) (N g)^2                            s = v + initial_precision
        mu <- mu - lr N g / sqrt(s)
        1 / sigma^2 = s

    ``F`` is ``num_data`` times the mean loss that is backpropagated. ``s`` never decays, so the posterior keeps
    narrowing. ``betas[0]`` is not used.
    """

    state = ("sum",)
    power = 2
    needs_noise = False
    options = ()

    def init(self, mean: Tensor, hp: Hyper) -> dict[str, Tensor]:
        """Zeros; the initial precision is a hyper-parameter and is not stored."""
        return {"sum": torch.zeros_like(mean)}

    def precision(self, state: State, hp: Hyper) -> Tensor:
        """``s``."""
        return torch.add(state["sum"], factor(hp["initial_precision"], state["sum"]))

    def curvature(self, grad: Tensor, eps: Tensor | None, state: State, hp: Hyper) -> Tensor:
        """``(N g)^2``."""
        return torch.mul(grad, factor(hp["num_data"], grad)).square_()

    def update_(self, mean: Tensor, state: State, grad: Tensor, curvature: Tensor | None, hp: Hyper) -> None:
        """One step; see the class."""
        assert curvature is not None
        add_scaled_(state["sum"], curvature, 1.0 - hp["betas"][1])
        root = torch.add(state["sum"], factor(hp["initial_precision"], mean), out=curvature).sqrt_()
        add_scaled_(mean, grad.div_(root), -hp["lr"] * hp["num_data"])


class VadaGrad(PerturbedOptimizer):
    """Variational AdaGrad, which anneals its noise as AdaGrad anneals its learning rate.

    Arguments and ways to train are those of :class:`PerturbedOptimizer`, without ``prior_precision``, ``prior`` and
    ``temperature``, since there is no prior.

    Args:
        params: Parameters, as in :class:`PerturbedOptimizer`.
        lr: Learning rate, not negative.
        num_data: Factor between the mean loss and the objective ``F``; with 1 the objective is the loss.
        initial_precision: Precision at the start; it has no default here.
        **options: Further arguments of :class:`PerturbedOptimizer`.
    """

    rule = VadaGradRule()
    has_prior = False

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
        *,
        num_data: float = 1.0,
        initial_precision: float,
        **options: Unpack[WithoutPrior],
    ) -> None:
        given: Mapping[str, object] = {**options}
        for name in ("prior_precision", "prior", "temperature"):
            if name in given:
                raise TypeError(f"VadaGrad has no prior, so {name} must not be given, got {given[name]!r}")
        super().__init__(params, lr, num_data=num_data, initial_precision=initial_precision, temperature=0.0, **options)

    def check_group(self, group: dict[str, Any]) -> None:
        """Also check that there is an initial precision."""
        super().check_group(group)
        check("initial_precision", group["initial_precision"], "a positive, finite number", lambda v: v is not None)
