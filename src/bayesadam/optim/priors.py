"""Continuing from a posterior, which becomes the prior of further training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from bayesadam.checks import check
from bayesadam.modules.sharding import like
from bayesadam.posterior import DiagonalGaussian

Gaussians: TypeAlias = Mapping[str, tuple[Tensor, Tensor]]
"""Mean and variance by parameter name, which become the prior of these parameters. Parameters without noise
(``perturb=False``, or frozen) start at the mean if they are covered, and keep the prior of their group."""


def checked(prior: Any, temperature: float | None) -> Gaussians:
    """Mean and variance of the posterior to continue from; none without one.

    Args:
        prior: The posterior. If it records another temperature, its variances are changed in proportion.
        temperature: Temperature of the new posterior; none or 0 leaves the variances as they are.

    Raises:
        ValueError: It is something else.
    """
    if prior is None:
        return {}
    check("prior", prior, "a DiagonalGaussian (a marginal() is one)", lambda v: isinstance(v, DiagonalGaussian))
    recorded = prior.hyperparameters.get("temperature")
    factor = temperature / recorded if temperature and recorded else 1.0
    return {name: (mean, factor * prior.variance[name]) for name, mean in prior.mean.items()}


@torch.no_grad()
def start(gaussians: Gaussians, groups: Sequence[Mapping[str, Any]], *, complete: bool) -> None:
    """Set the weights of groups to the mean, as far as it is known; everything is checked first.

    Args:
        gaussians: The prior; without one nothing is done.
        groups: Parameter groups.
        complete: Whether every perturbed parameter must have a prior.

    Raises:
        ValueError: A parameter has the name of another one, or another shape; or one that is perturbed has no name, no
            prior, a variance of 0 there, or an initial precision below it.
    """
    covered: dict[str, Tensor] = {}
    for group in groups if gaussians else ():
        for name, parameter in zip(
            group.get("param_names", [None] * len(group["params"])), group["params"], strict=True
        ):
            noisy = group["perturb"] and parameter.requires_grad
            if name in covered:
                raise ValueError(
                    f"prior must be matched by different names, got {name!r} twice: take the names of all parameters "
                    "from one module that contains them"
                )
            if name in gaussians:
                _check_parameter(gaussians[name], group, name, parameter, noisy=noisy)
                covered[name] = parameter
            elif noisy and complete and name is None:
                raise ValueError("prior must be matched by name: construct the optimiser from model.named_parameters()")
            elif noisy and complete:
                raise ValueError(f"prior must have the parameter {name!r}, got none of that name")
    for name, parameter in covered.items():
        parameter.copy_(like(parameter, gaussians[name][0]))


def _check_parameter(
    gaussian: tuple[Tensor, Tensor], group: Mapping[str, Any], name: str, parameter: Tensor, *, noisy: bool
) -> None:
    mean, variance = gaussian
    if mean.shape != parameter.shape:
        raise ValueError(f"prior of {name!r} must be of shape {tuple(parameter.shape)}, got {tuple(mean.shape)}")
    if noisy and not (variance > 0).all():
        raise ValueError(f"prior of {name!r} must have positive variances, got 0 (pruned or not random)")
    start = group["initial_precision"]
    if noisy and start is not None and (variance.reciprocal() > start).any():
        raise ValueError(f"initial_precision must be at least the prior's at every weight of {name!r}, got {start!r}")
