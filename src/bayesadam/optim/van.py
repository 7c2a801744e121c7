"""VAN: the variational adaptive Newton method (Khan et al. 2018, section 5, eqs. 22-24)."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from bayesadam.optim.base import Prior
from bayesadam.optim.von import VON


class VAN(VON):
    """Variational adaptive Newton: variational optimisation with second derivatives.

    The rule is VON's, with the factor ``tau`` on the KL divergence. ``temperature=0``, the default here, minimises the
    expected loss ``E_q[F]``; the noise is annealed as curvature adds up, ``s <- s + (1 - b2) h`` with
    ``1 / sigma^2 = N s``, as VadaGrad does with squared gradients. ``temperature=1`` is VON. For temperatures between
    them the precision tends to ``N h / tau + lambda``, the optimum of eq. 22 (eq. 24 does not reach it). The term
    ``prior_precision / num_data`` damps the Newton step at every temperature, which eq. 94 does not have.

    The arguments are those of :class:`VON`.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
        *,
        num_data: float,
        betas: tuple[float, float] = (0.0, 0.999),
        prior_precision: float = 1.0,
        prior: Prior | None = None,
        initial_precision: float | None = None,
        temperature: float = 0.0,
        hessian: str = "reparameterized",
        probes: int = 1,
        correction: str | None = "default",
        clip_radius: float = math.inf,
        mc_samples: int = 1,
        antithetic: bool = False,
        rank_samples: bool = False,
        seed: int = 0,
        maximize: bool = False,
        nonfinite: str = "raise",
        compile: bool = True,
    ) -> None:
        self._set_up(locals())
