"""Continuing from a posterior, which becomes the prior of further training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from bayesadam.engine.store import Slot, Store
from bayesadam.optim.correlated_prior import CorrelatedPrior
from bayesadam.optim.hyperparameters import Continued
from bayesadam.posterior import DiagonalGaussian
from bayesadam.sharding import like, local

ONE_MODULE = "take the names of all parameters from one module that contains them"


def continued(store: Store, prior: Continued) -> tuple[CorrelatedPrior | None, Continuation | None]:
    """Start from a posterior, see :meth:`Continuation.start`.

    Returns:
        The posterior if it has correlations between weights, and the part of it that is needed later, if there is one.

    Raises:
        ValueError: As for :meth:`Continuation.start`.
    """
    correlated = None
    if not isinstance(prior, DiagonalGaussian):
        correlated = CorrelatedPrior(prior)
        prior = correlated.independent
    continuation = Continuation(prior)
    continuation.start(store)
    return correlated, continuation if continuation.mean else None


class Continuation:
    """A posterior that becomes the prior of the parameters, matched by name.

    After :meth:`start` it keeps what belongs to parameters that are frozen, or not yet among those of the optimiser:
    they get their prior when they are first trained.

    Args:
        prior: The posterior to continue from.
    """

    def __init__(self, prior: DiagonalGaussian) -> None:
        self.mean: dict[str, Tensor] = dict(prior.mean)
        self.variance: dict[str, Tensor] = dict(prior.variance)

    @torch.no_grad()
    def start(self, store: Store) -> None:
        """Set weights, means and priors to those of the posterior; everything is checked first.

        Parameters without noise (``perturb=False``, or frozen) start at the posterior's mean if it covers them, and
        keep the prior of their group. Frozen parameters get no state, so that they are no part of the next posterior.

        Raises:
            ValueError: A perturbed parameter has no name or the name of another one, is missing in the posterior, or
                has another shape or a variance of 0 there; or the initial precision is below the posterior's.
        """
        for group in store.owner.param_groups:
            self._check(group, complete=True)
        twice = repeated(name for group in store.owner.param_groups for name, _ in _named(group) if name in self.mean)
        if twice is not None:
            raise ValueError(f"prior must be matched by different names, got {twice!r} twice: {ONE_MODULE}")
        for group in store.owner.param_groups:
            self._set_weights(group)
        store.start_prior = self.start_prior
        for slot in store.slots():
            name = _name(slot)
            if name in self.mean and slot.parameter.requires_grad:
                state = store.new_state(slot)
                local(state["mean"]).copy_(local(like(slot.parameter, self.mean[name])))  # in its own precision
                store.start_rule(slot, state)
                store.owner.state[slot.parameter] = state
        started = {_name(slot) for slot in store.slots() if slot.parameter in store.owner.state}
        for part in (self.mean, self.variance):
            for name in started & part.keys():
                del part[name]

    def take_group(self, group: dict[str, Any]) -> None:
        """Set the weights of a new group to the mean, as far as the posterior covers them.

        Raises:
            ValueError: As for :meth:`start`; nothing has changed.
        """
        self._check(group, complete=False)
        self._set_weights(group)

    @torch.no_grad()
    def start_prior(self, slot: Slot, state: dict[str, Any]) -> None:
        """Put the prior of a perturbed parameter into its new state, if the posterior covers it."""
        name = _name(slot)
        if name not in self.mean or not slot.noisy:
            return
        self._check_parameter(slot.group, name, slot.parameter, noisy=True)
        for entry, value in (("prior_mean", self.mean[name]), ("prior_precision", self.variance[name].reciprocal())):
            state[entry] = torch.zeros_like(state["mean"])
            local(state[entry]).copy_(local(like(slot.parameter, value)))

    @torch.no_grad()
    def _set_weights(self, group: dict[str, Any]) -> None:
        for name, parameter in _named(group):
            if name in self.mean:
                parameter.copy_(like(parameter, self.mean[name]))

    def _check(self, group: dict[str, Any], *, complete: bool) -> None:
        """Check a group; if it must be completely covered, that every perturbed parameter has a name and a prior."""
        for name, parameter in _named(group):
            noisy = group["perturb"] and parameter.requires_grad
            if name is None and noisy and complete:
                raise ValueError("prior must be matched by name: construct the optimiser from model.named_parameters()")
            if name in self.mean:
                self._check_parameter(group, name, parameter, noisy=noisy)
            elif noisy and complete:
                raise ValueError(f"prior must have the parameter {name!r}, got none of that name")

    def _check_parameter(self, group: dict[str, Any], name: str, parameter: Tensor, *, noisy: bool) -> None:
        if self.mean[name].shape != parameter.shape:
            raise ValueError(
                f"prior of {name!r} must be of shape {tuple(parameter.shape)}, got {tuple(self.mean[name].shape)}"
            )
        if not noisy:
            return
        if not (self.variance[name] > 0).all():
            raise ValueError(f"prior of {name!r} must have positive variances, got 0 (pruned or not random)")
        start = group["initial_precision"]
        if start is not None and (self.variance[name].reciprocal() > start).any():
            raise ValueError(
                f"initial_precision must be at least the prior's at every weight of {name!r}, got {start!r}"
            )


def repeated(names: Iterable[str]) -> str | None:
    """The first name that occurs twice; ``None`` if there is none."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _named(group: dict[str, Any]) -> Iterator[tuple[Any, Tensor]]:
    """Pairs of name and parameter; the names are None if they are not known."""
    names = group.get("param_names", [None] * len(group["params"]))
    return zip(names, group["params"], strict=True)


def _name(slot: Slot) -> Any:
    names = slot.group.get("param_names")
    return None if names is None else names[slot.index - slot.group["noise_index"]]
