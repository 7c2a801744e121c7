"""The base class of optimisers with a Hessian, with the options that choose where the Hessian comes from."""

from __future__ import annotations

from functools import partial
from operator import eq
from typing import Any, ClassVar

from bayesadam.checks import check
from bayesadam.modules.sharding import is_sharded
from bayesadam.optim import groups
from bayesadam.optim.base import PerturbedOptimizer


class SecondOrderOptimizer(PerturbedOptimizer):
    """Base class of optimisers whose curvature is a Hessian of the loss; :class:`VON` explains the options."""

    shared: ClassVar[tuple[str, ...]] = (*groups.SHARED, "hessian", "probes", "correction")

    def check_added(self, group: dict[str, Any]) -> None:
        """Also refuse sharded parameters if a step needs whole ones."""
        super().check_added(group)
        if any(map(is_sharded, group["params"])):
            for name, value in (("hessian", "reparameterized"), ("correction", "elementwise")):
                check(name, group[name], f"{value!r} for sharded parameters", partial(eq, value), words=True)
