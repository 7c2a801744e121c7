"""The base class of optimisers with a Hessian, with the options that choose where the Hessian comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from bayesadam.optim import groups
from bayesadam.optim.base import PerturbedOptimizer
from bayesadam.sharding import is_sharded

_OWN_SAMPLES = {"hessian": ("reparameterized",)}
_SHARDED = {**_OWN_SAMPLES, "correction": ("elementwise",)}
"""Values of options for which every process may draw its own sample, and for which a step needs the gradients of this
process only.
"""


class SecondOrderOptimizer(PerturbedOptimizer):
    """Base class of optimisers whose curvature is a Hessian of the loss; :class:`VON` explains the options."""

    shared: ClassVar[tuple[str, ...]] = (*groups.SHARED, "hessian", "probes", "correction")

    def _set_up(self, arguments: Mapping[str, Any]) -> None:
        """Also choose the correction, if none is given."""
        correction = arguments.get("correction", "default")
        if correction == "default":
            correction = None if arguments.get("hessian") == "exact" else "elementwise"
        super()._set_up({**arguments, "correction": correction})

    def check_group(self, group: dict[str, Any]) -> None:
        """Also check the options of the Hessian."""
        super().check_group(group)
        if group["rank_samples"]:
            _check_possible(group, _OWN_SAMPLES, "with rank_samples=True")

    def check_added(self, group: dict[str, Any]) -> None:
        """Also refuse sharded parameters if a step needs whole ones."""
        super().check_added(group)
        if any(map(is_sharded, group["params"])):
            _check_possible(group, _SHARDED, "for sharded parameters")


def _check_possible(group: Mapping[str, Any], options: Mapping[str, tuple[Any, ...]], when: str) -> None:
    for name, possible in options.items():
        if group.get(name, possible[0]) not in possible:
            raise ValueError(f"{name} must be {' or '.join(map(repr, possible))} {when}, got {group[name]!r}")
