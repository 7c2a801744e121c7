"""The step of the authors' MATLAB code, which produced the published Fig. 2 and differs from the paper's step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bayesadam.optim import PerturbedOptimizer


class MatlabVadamRule:
    """Vadam as ``my_methods.m`` of the authors' code has it::

        m     <- b1 m + (1 - b1) (g + lt mu)                  m_hat = m / (1 - b1^t)
        s     <- b2 s + (1 - b2) g^2                          s_hat = s / (1 - b2^t)
        mu    <- mu - lr m_hat / (sqrt(s_hat / N) + lt)
        1 / sigma^2 = N (s_hat + lt)

    It differs from Khan et al. 2018, Fig. 1, in three things:

    * The mean's step divides by ``sqrt(s / N)``, not by ``sqrt(s)``: the code takes the root of its ``S = N s``,
      although its gradient is the sum over the data.
    * The noise and the posterior take the bias-corrected ``s_hat``.
    * The correction is ``1 - b2^t`` with the *current* ``b2``, even if ``b2`` is scheduled: under the decay of
      eq. 104 the correction is too large, on USPS by 17% after all 120,312 steps.

    ``s`` starts at ``1 / N`` (the code's ``S = I``), so ``initial_precision`` is not used. There is no temperature.
    """

    state: tuple[str, ...] = ("exp_avg", "exp_avg_sq", "corrected")
    power = 2
    needs_noise = False
    options = ()

    def init(self, mean: Tensor, hp: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the initial state: momentum 0 and curvature ``1 / N``."""
        start = torch.ones_like(mean) / hp["num_data"]
        return {"exp_avg": torch.zeros_like(mean), "exp_avg_sq": start, "corrected": start.clone()}

    def precision(self, state: Mapping[str, Tensor], hp: Mapping[str, Any]) -> Tensor:
        """Return the precision ``N (s_hat + lt)``."""
        return torch.mul(state["corrected"], hp["num_data"]).add_(hp["prior_precision"])

    def curvature(
        self, grad: Tensor, eps: Tensor | None, state: Mapping[str, Tensor], hp: Mapping[str, Any]
    ) -> Tensor | None:
        """Return the gradient's magnitude, ``g^2``."""
        return grad.square()

    def update_(
        self,
        mean: Tensor,
        state: Mapping[str, Tensor],
        grad: Tensor,
        curvature: Tensor | None,
        hp: Mapping[str, Any],
    ) -> None:
        """Make one step, as described in the class."""
        assert curvature is not None
        average, running, corrected = (state[name] for name in self.state)
        (b1, b2), step, num_data = hp["betas"], hp["step"], hp["num_data"]
        damping = hp["prior_precision"] / num_data
        average.lerp_(grad.add_(mean * damping), 1.0 - b1)
        running.lerp_(curvature, 1.0 - b2)
        torch.div(running, 1.0 - b2**step, out=corrected)
        scale = torch.div(corrected, num_data, out=curvature).sqrt_().add_(damping)
        mean.addcdiv_(average, scale, value=-hp["lr"] / (1.0 - b1**step))


class MatlabVadam(PerturbedOptimizer):
    """The optimiser with this rule, which is only for the experiments."""

    rule = MatlabVadamRule()
