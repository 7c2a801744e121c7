"""Continuing from a posterior, which becomes the prior of further training."""

from __future__ import annotations

import torch

from bayesadam.engine.store import Store
from bayesadam.optim.correlated_prior import CorrelatedPrior
from bayesadam.optim.hyperparameters import Continued
from bayesadam.posterior import DiagonalGaussian
from bayesadam.sharding import like, local


def continued(store: Store, prior: Continued) -> CorrelatedPrior | None:
    """Start from a posterior, see :func:`start_from`; return it if it has correlations between weights.

    Raises:
        ValueError: As for :func:`start_from`.
    """
    if isinstance(prior, DiagonalGaussian):
        start_from(store, prior)
        return None
    correlated = CorrelatedPrior(prior)
    start_from(store, correlated.independent)
    return correlated


def start_from(store: Store, prior: DiagonalGaussian) -> None:
    """Set weights, means and priors to those of a posterior, matched by name; everything is checked first.

    Parameters without noise (``perturb=False``, or frozen) start at the posterior's mean if it covers them, and keep
    the prior of their group.

    Raises:
        ValueError: A perturbed parameter has no name, is missing in the posterior, or has another shape or a variance
            of 0 there; or the initial precision is below the posterior's.
    """
    names = store.names()
    for slot in store.slots():
        group, parameter = slot.group, slot.parameter
        noisy = slot.noisy
        if parameter not in names and noisy:
            raise ValueError("prior must be matched by name: construct the optimiser from model.named_parameters()")
        name = names.get(parameter)
        if name is None or (name not in prior.mean and not noisy):
            continue
        if name not in prior.mean:
            raise ValueError(f"prior must have the parameter {name!r}, got none of that name")
        if prior.mean[name].shape != parameter.shape:
            raise ValueError(
                f"prior of {name!r} must be of shape {tuple(parameter.shape)}, got {tuple(prior.mean[name].shape)}"
            )
        if not noisy:
            continue
        if not (prior.variance[name] > 0).all():
            raise ValueError(f"prior of {name!r} must have positive variances, got 0 (pruned or not random)")
        start = group["initial_precision"]
        if start is not None and (prior.variance[name].reciprocal() > start).any():
            raise ValueError(
                f"initial_precision must be at least the prior's at every weight of {name!r}, got {start!r}"
            )
    with torch.no_grad():
        for slot in store.slots():
            parameter = slot.parameter
            name = names.get(parameter, "")
            if name not in prior.mean:
                continue
            center = like(parameter, prior.mean[name])
            parameter.copy_(center)
            state = store.new_state(slot)
            local(state["mean"]).copy_(local(center))
            if slot.noisy:
                state["prior_mean"] = state["mean"].clone()
                precision = like(parameter, prior.variance[name].reciprocal())
                state["prior_precision"] = torch.zeros_like(state["mean"]).copy_(precision)
                store.start_rule(slot, state)
            store.owner.state[parameter] = state
