"""A prior with correlations between weights, for rules that treat every weight by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from bayesadam.checks import check
from bayesadam.engine.store import Slot, Store
from bayesadam.posterior import DenseGaussian, DiagonalGaussian, KroneckerGaussian
from bayesadam.posterior.precision import precision_diagonal, precision_product
from bayesadam.sharding import full, like, local

CORRELATED = "correlated_prior"
"""Entry of the groups of an optimiser whose prior has correlations; a checkpoint does not hold the prior."""


def correlated(options: Mapping[str, Any]) -> dict[str, bool]:
    """The entry of groups whose prior has correlations, after a check that the posterior's covariance is diagonal."""
    check("covariance", options.get("covariance"), "diagonal with such a prior", lambda v: v != "full", words=True)
    return {CORRELATED: True}


class CorrelatedPrior:
    """A Gaussian prior ``N(mu0, P^-1)`` with a precision matrix ``P`` that is not diagonal.

    For a posterior with independent weights, mean ``mu`` and variances ``sigma^2``, the KL divergence from this prior
    has the gradient ``P (mu - mu0)``, and depends on ``sigma^2`` as that from independent priors of precision ``P_ii``.
    Every weight may thus have the prior that it has given the means of all others, ``N(mu_i - [P (mu - mu0)]_i / P_ii,
    1 / P_ii)``, whose gradient is the same at ``mu``. Before every step these means are computed again.

    Args:
        prior: The prior.
    """

    def __init__(self, prior: DenseGaussian | KroneckerGaussian) -> None:
        self.prior = prior
        self._diagonal = precision_diagonal(prior)
        self._product = precision_product(prior)

    @property
    def independent(self) -> DiagonalGaussian:
        """The priors of the single weights where all others are at the prior's mean."""
        return DiagonalGaussian(self.prior.mean, {name: p.reciprocal() for name, p in self._diagonal.items()})

    @torch.no_grad()
    def follow(self, store: Store, center: Callable[[Slot, dict[str, Any]], Tensor]) -> None:
        """Give the weights their priors at the present means, before a step.

        Args:
            store: Parameters and state of the optimiser.
            center: Function that returns the mean of a parameter, the full tensor.
        """
        names = store.names()
        covered = {names[s.parameter]: s for s in store.slots() if names.get(s.parameter) in self.prior.mean}
        trained = {
            name: store.state_of(slot)
            for name, slot in covered.items()
            if slot.parameter.requires_grad or slot.parameter in store.owner.state
        }
        means = {
            name: (center(slot, trained[name]) if name in trained else full(slot.parameter)).double()
            for name, slot in covered.items()
        }
        shifts = {
            name: means[name] - value.double() if name in means else torch.zeros_like(value, dtype=torch.float64)
            for name, value in self.prior.mean.items()
        }
        pulls = self._product(shifts)
        for name, state in trained.items():
            if "prior_mean" in state:
                given_others = means[name] - pulls[name] / self._diagonal[name]
                local(state["prior_mean"]).copy_(local(like(covered[name].parameter, given_others)))
