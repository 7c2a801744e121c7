"""Continuing from a posterior, which becomes the prior of further training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from bayesadam.checks import check
from bayesadam.posterior import DiagonalGaussian
from bayesadam.sharding import like


def checked(prior: Any) -> StartingPoint | None:
    """The posterior to continue from.

    Raises:
        ValueError: It is something else.
    """
    if prior is None:
        return None
    check("prior", prior, "a DiagonalGaussian (a marginal() is one)", lambda v: isinstance(v, DiagonalGaussian))
    return StartingPoint(prior)


class StartingPoint:
    """A posterior that becomes the prior of the parameters, matched by name.

    Parameters without noise (``perturb=False``, or frozen) start at its mean if it covers them, and keep the prior of
    their group.

    Attributes:
        gaussians: Mean and variance by name.
    """

    def __init__(self, prior: DiagonalGaussian) -> None:
        self.gaussians = {name: (mean, prior.variance[name]) for name, mean in prior.mean.items()}

    def start(self, groups: Sequence[dict[str, Any]]) -> None:
        """Set the weights to the mean; everything is checked first.

        Raises:
            ValueError: A perturbed parameter has no name or the name of another one, is missing in the posterior, or
                has another shape or a variance of 0 there; or the initial precision is below the posterior's.
        """
        seen: set[str] = set()
        for group in groups:
            self._check(group, complete=True)
            for name, _ in _named(group):
                if name in self.gaussians and name in seen:
                    raise ValueError(
                        f"prior must be matched by different names, got {name!r} twice: take the names of all "
                        "parameters from one module that contains them"
                    )
                seen.add(name)
        for group in groups:
            self._set_weights(group)

    def take_group(self, group: dict[str, Any], *, complete: bool) -> None:
        """Set the weights of a new group to the mean, as far as the posterior covers them.

        Raises:
            ValueError: As for :meth:`start`; nothing has changed.
        """
        self._check(group, complete=complete)
        self._set_weights(group)

    @torch.no_grad()
    def _set_weights(self, group: dict[str, Any]) -> None:
        for name, parameter in _named(group):
            if name in self.gaussians:
                parameter.copy_(like(parameter, self.gaussians[name][0]))

    def _check(self, group: dict[str, Any], *, complete: bool) -> None:
        """Check a group; if it must be completely covered, that every perturbed parameter has a name and a prior."""
        for name, parameter in _named(group):
            noisy = group["perturb"] and parameter.requires_grad
            if name is None and noisy and complete:
                raise ValueError("prior must be matched by name: construct the optimiser from model.named_parameters()")
            if name in self.gaussians:
                self._check_parameter(group, name, parameter, noisy=noisy)
            elif noisy and complete:
                raise ValueError(f"prior must have the parameter {name!r}, got none of that name")

    def _check_parameter(self, group: dict[str, Any], name: str, parameter: Tensor, *, noisy: bool) -> None:
        mean, variance = self.gaussians[name]
        if mean.shape != parameter.shape:
            raise ValueError(f"prior of {name!r} must be of shape {tuple(parameter.shape)}, got {tuple(mean.shape)}")
        if not noisy:
            return
        if not (variance > 0).all():
            raise ValueError(f"prior of {name!r} must have positive variances, got 0 (pruned or not random)")
        start = group["initial_precision"]
        if start is not None and (variance.reciprocal() > start).any():
            raise ValueError(
                f"initial_precision must be at least the prior's at every weight of {name!r}, got {start!r}"
            )


def _named(group: dict[str, Any]) -> Iterator[tuple[Any, Tensor]]:
    """Pairs of name and parameter; the names are None if they are not known."""
    names = group.get("param_names", [None] * len(group["params"]))
    return zip(names, group["params"], strict=True)
