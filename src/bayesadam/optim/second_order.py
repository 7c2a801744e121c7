"""The base class of optimisers with a Hessian, with the options that choose where the Hessian comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from bayesadam.checks import check
from bayesadam.modules.sharding import is_sharded
from bayesadam.optim import groups
from bayesadam.optim.base import PerturbedOptimizer


class SecondOrderOptimizer(PerturbedOptimizer):
    """Base class of optimisers whose curvature is a Hessian of the loss; :class:`VON` explains the options."""

    shared: ClassVar[tuple[str, ...]] = (*groups.SHARED, "hessian", "probes", "correction")

    def __init__(self, params: Any, lr: float | Tensor, *, num_data: float, **options: Any) -> None:
        if options.get("hessian") == "exact":
            options.setdefault("correction", None)
        super().__init__(params, lr, num_data=num_data, **options)

    def check_group(self, group: dict[str, Any]) -> None:
        """Also check the options of the Hessian."""
        super().check_group(group)
        if group["rank_samples"]:
            _require(group, "hessian", "reparameterized", "with rank_samples=True")

    def check_added(self, group: dict[str, Any]) -> None:
        """Also refuse sharded parameters if a step needs whole ones."""
        super().check_added(group)
        if any(map(is_sharded, group["params"])):
            _require(group, "hessian", "reparameterized", "for sharded parameters")
            _require(group, "correction", "elementwise", "for sharded parameters")


def _require(group: Mapping[str, Any], name: str, value: str, when: str) -> None:
    check(name, group[name], f"{value!r} {when}", lambda v: v == value, words=True)
