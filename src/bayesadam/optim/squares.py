"""Optimisers whose curvature is the mean of the squared gradients of single examples."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bayesadam.core.sources import ExampleSource
from bayesadam.curvature import PerExampleSquares
from bayesadam.optim.groups import check_ordered


def source_of(curvature: Any) -> ExampleSource:
    """The source of an argument ``curvature``.

    Raises:
        ValueError: It is not a :class:`PerExampleSquares`.
    """
    if not isinstance(curvature, PerExampleSquares):
        raise ValueError(f"curvature must be a PerExampleSquares of the model, got {curvature!r}")
    return ExampleSource(curvature)


def covered(source: ExampleSource, param_group: dict[str, Any], *, perturb: bool) -> dict[str, Any]:
    """A group with its parameters as a list.

    Raises:
        ValueError: A perturbed parameter does not belong to the model that the source was made for.
    """
    params = param_group["params"]
    check_ordered(params)
    params = [params] if isinstance(params, Tensor) else list(params)
    for entry in params if param_group.get("perturb", perturb) else ():
        parameter = entry[1] if isinstance(entry, tuple) else entry
        if not source.covers(parameter):
            known = f"the parameter {entry[0]!r}" if isinstance(entry, tuple) else "a parameter"
            raise ValueError(
                "curvature must be made for the model of these parameters, got one for a model that does "
                f"not have {known} of shape {tuple(parameter.shape)}"
            )
    return {**param_group, "params": params}
