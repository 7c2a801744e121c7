"""The element-wise computations on weights: the only place where a sample is computed from mean, width and noise, and
a step from a gradient.

They work on named tensors of one shape, or of shapes that broadcast where a population has several samples: ``weights``
and ``grad`` (in their own dtype), ``collected`` (a curvature from elsewhere, or averaged over samples), ``mean``, the
rule's state, ``prior_mean`` and ``prior_precision`` if each weight has its own, and the noise ``eps`` of the sample at
which gradients were taken and ``next_eps`` of the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesadam.core.rule import COUNTERS, Hyper, Number, Rule, advanced

Tensors = Mapping[str, Tensor]
Numbers = Mapping[str, Number]

PER_WEIGHT = ("prior_mean", "prior_precision")
"""Hyper-parameters that are tensors of the state where weights continue from a posterior."""


def perturbed(rule: Rule, mean: Tensor, state: Tensors, eps: Tensor, hp: Hyper) -> Tensor:
    """``theta = mu + sigma * eps``; shapes broadcast."""
    return mean + rule.precision(state, hp).rsqrt() * eps


def followed(mean: Tensor, weights: Tensor) -> Tensor:
    """The mean of weights that hold it. A stored mean with more bits is kept wherever it still rounds to the weight."""
    if mean.dtype == weights.dtype:
        return weights
    return torch.where(mean.to(weights.dtype) == weights, mean, weights.to(mean.dtype))


@dataclass(frozen=True)
class Pass:
    """One walk over the weights of parameters that are treated alike.

    Attributes:
        rule: Rule of the method.
        kind: ``"sample"``: put a sample into the weights. ``"update"``: make a step of the rule; weights that hold a
            sample then get the next one, others the mean. ``"collect"``: average the curvature of a sample into
            ``collected``. ``"measure"``: compute the curvature of a sample as ``collected``, from a gradient that is
            not scaled. ``"precision"``: compute the precision of the posterior.
        statics: The rule's static options.
        mean: Where the mean is: ``"state"``, or ``"weights"``, which the state's mean follows if it has one.
        stored: Whether the state has a mean, in which case the weights have its dtype or are rounded from it. That of
            a population has none.
        deviation: Where ``theta - mu`` comes from, for rules that use it: ``"weights"``, the difference; ``"eps"``,
            drawn again and rounded like the difference; ``"exact"``, drawn again; or ``None``.
        curvature: ``"rule"``; ``"collected"``, given; or ``None``.
        per_weight: Names of hyper-parameters of which every weight has its own.
        has_prior: Whether the method has a prior.
        default_start: Whether the initial precision is the rule's default, for priors of single weights.
        guarded: Whether an update also gives the counters after it, and leaves mean, state and counters as they are if
            the number ``skip`` is not 0. Kernels of a GPU do so, which learn there that a gradient is not finite.
    """

    rule: Rule
    kind: str
    statics: tuple[tuple[str, Any], ...] = ()
    mean: str = "state"
    stored: bool = True
    deviation: str | None = None
    curvature: str | None = None
    per_weight: tuple[str, ...] = ()
    has_prior: bool = True
    default_start: bool = False
    guarded: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the tensors that it may read, without noise."""
        names = ["mean"] if self.stored else []
        names += [*self.rule.state, *self.per_weight, "weights"]
        names += ["grad"] if self.kind in ("update", "collect", "measure") else []
        return (*names, "collected") if self.kind == "collect" or self.curvature == "collected" else tuple(names)

    @property
    def draws(self) -> tuple[str, ...]:
        """Names of the noise that it needs."""
        this = self.deviation in ("eps", "exact")
        return (*(["eps"] if this else []), *(["next_eps"] if self.kind == "sample" or self.resamples else []))

    @property
    def resamples(self) -> bool:
        """Whether it is an update of weights that hold a sample."""
        return self.kind == "update" and self.mean != "weights"

    @property
    def numbers(self) -> tuple[str, ...]:
        """Names of its numbers, in the order in which a kernel gets them."""
        prior = ("prior_precision",) if self.has_prior else ()
        options = (option.name for option in self.rule.options if not option.static)
        common = ("lr", "beta1", "beta2", "num_data", "temperature", "initial_precision")
        return (*common, *prior, *options, *COUNTERS, "skip", "scale", "collected_scale", "share")

    def run(self, values: Tensors, numbers: Numbers) -> dict[str, Tensor]:
        """Return the new values of the tensors that it changes."""
        rule, weights = self.rule, values["weights"]
        state = {name: values[name] for name in rule.state}
        before = self._hyper(values, numbers)
        if self.kind == "precision":
            return {"precision": rule.posterior_precision(state, before)}
        mean = self._mean(values)
        if self.kind == "sample":
            results = {"weights": perturbed(rule, mean, state, values["next_eps"], before)}
            return self._with_mean(results, mean)
        grad = values["grad"].to(state[rule.state[0]].dtype)
        if self.kind != "measure":
            grad = grad * numbers["scale"]
        curvature = None
        if self.curvature == "collected":
            curvature = values["collected"] * numbers["collected_scale"]
        elif self.curvature == "rule":
            deviation = self._deviation(mean, weights, values, state, before)
            curvature = rule.curvature(grad, deviation, state, before)
        if self.kind == "measure":
            return {} if curvature is None else {"collected": curvature}
        if self.kind == "collect":
            if curvature is None:
                return {}
            return {"collected": values["collected"] + numbers["share"] * (curvature - values["collected"])}
        counters = advanced(rule, before)
        after = Hyper(**{**vars(before), **counters})
        moved, new = rule.update(mean, state, grad, curvature, after)
        if self.guarded:
            skip = numbers["skip"] > 0
            counters = {name: torch.where(skip, numbers[name], value) for name, value in counters.items()}
            after = Hyper(**{**vars(before), **counters})
            moved = torch.where(skip, mean, moved)
            new = {n: value if value is state[n] else torch.where(skip, state[n], value) for n, value in new.items()}
        results = {**new, **counters} if self.guarded else dict(new)
        if self.resamples:
            results["weights"] = perturbed(rule, moved, {**state, **new}, values["next_eps"], after)
        else:
            results["weights"] = moved
        return self._with_mean(results, moved)

    def _with_mean(self, results: dict[str, Tensor], mean: Tensor) -> dict[str, Tensor]:
        return {**results, "mean": mean} if self.stored else results

    def _mean(self, values: Tensors) -> Tensor:
        if self.mean == "state":
            return values["mean"]
        return followed(values["mean"], values["weights"]) if self.stored else values["weights"]

    def _deviation(self, mean: Tensor, weights: Tensor, values: Tensors, state: Tensors, hp: Hyper) -> Tensor | None:
        if self.deviation is None:
            return None
        if self.deviation == "weights":
            return weights - mean
        drawn = self.rule.precision(state, hp).rsqrt() * values["eps"]
        return (mean + drawn) - mean if self.deviation == "eps" else drawn

    def _hyper(self, values: Tensors, numbers: Numbers) -> Hyper:
        """Hyper-parameters with the counters before the step."""
        hp = Hyper(**numbers, prior_mean=0.0)
        for name in self.per_weight:
            setattr(hp, name, values[name])
        for name, value in self.statics:
            setattr(hp, name, value)
        if self.default_start and self.per_weight:
            hp.initial_precision = self.rule.default_start(hp)
        return hp
