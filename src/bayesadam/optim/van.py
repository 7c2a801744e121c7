"""VAN: the variational adaptive Newton method (Khan et al. 2018, section 5, eqs. 22-24)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

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

    usual: ClassVar[Mapping[str, Any]] = {**VON.usual, "temperature": 0.0}
