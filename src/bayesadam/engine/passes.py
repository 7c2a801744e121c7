"""Element-wise operations on the weights: the only place where a sample is computed from mean, width and noise, and a
step from a gradient.

A pass runs eagerly on blocks of many tensors (:mod:`bayesadam.engine.run`) or as a compiled kernel
(:mod:`bayesadam.engine.kernels`); its functions also run on the stacked networks of a population.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesadam.engine.rule import (
    PER_WEIGHT,
    Hyper,
    Rule,
    Scalar,
    annealing,
    factor,
    initial_counters,
    options_of,
    start_precision,
)

Values = dict[str, Tensor]
Numbers = Mapping[str, Scalar]


def perturbed(rule: Rule, mean: Tensor, state: Mapping[str, Tensor], eps: Tensor, hp: Hyper) -> Tensor:
    """``theta = mu + sigma * eps``, a new tensor; shapes broadcast."""
    return torch.addcmul(mean, rule.precision(state, hp).rsqrt_(), eps)


def recovered(rule: Rule, weights: Tensor, state: Mapping[str, Tensor], eps: Tensor, hp: Hyper) -> Tensor:
    """``mu = theta - sigma * eps`` as a new tensor: the mean of a sample, up to rounding."""
    return torch.addcmul(weights, rule.precision(state, hp).rsqrt_(), eps, value=-1.0)


def follow_(mean: Tensor, weights: Tensor) -> None:
    """Set the mean to the weights; a wider mean keeps its low bits where it still rounds to the weight."""
    if mean.dtype == weights.dtype:
        mean.copy_(weights)
    else:
        mean.copy_(torch.where(mean.to(weights.dtype) == weights, mean, weights.to(mean.dtype)))


@dataclass(frozen=True)
class Pass:
    """One walk over the weights of a group, with a rule and the options that are the same for all weights.

    It works on named tensors: ``weights``, ``grad``, ``kept`` (a curvature from a source or over several samples),
    ``mean``, the rule's state, ``prior_mean`` and ``prior_precision`` if each weight has its own, and the noise
    ``eps`` of the sample at which the gradients were taken and ``next_eps`` of the next sample.

    Attributes:
        rule: Rule of the method.
        kind: ``"adopt"``: the mean follows the weights. ``"sample"``: a sample is put into the weights. ``"collect"``:
            the curvature of a sample is averaged into ``kept``. ``"update"``: a step of the rule. ``"recover"``: the
            mean is made of the weights, which hold a sample. ``"restore"``: the same, in their place.
        statics: The rule's static options, and whether the initial precision follows the number of data.
        holds_mean: The weights hold the mean, which follows them first (and, in an update, they follow it afterwards).
        given: In an update: curvature is ``kept``, or there is none if ``kept`` is missing; the rule does not compute
            it.
        noisy: In an update or a collection: the rule reads ``eps``.
        resample: In an update: draw the next sample into the weights afterwards.
        recovers: In an update or a sample: the mean is nowhere kept, and made of the sample in the weights first.
        per_weight: Hyper-parameters that have a value for each weight.
        kept: Whether there is a ``kept``.
    """

    rule: Rule
    kind: str
    statics: tuple[tuple[str, Any], ...] = ()
    holds_mean: bool = False
    given: bool = False
    noisy: bool = False
    resample: bool = False
    recovers: bool = False
    per_weight: tuple[str, ...] = ()
    kept: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the tensors that it works on, without noise."""
        names = ["mean"] if self.kind == "adopt" else ["mean", *self.rule.state, *self.per_weight]
        if self.kind in ("adopt", "sample", "recover", "restore") or self.holds_mean or self.resample:
            names.append("weights")
        names += ["grad"] if self.kind in ("collect", "update") else []
        return (*names, "kept") if self.kept else tuple(names)

    @property
    def reads_weights(self) -> bool:
        """Whether it uses the values of the weights, and does not only overwrite them."""
        return self.kind in ("adopt", "recover", "restore") or self.holds_mean or self.recovers

    @property
    def writes(self) -> tuple[str, ...]:
        """Names of the tensors that it changes permanently."""
        if self.kind == "collect":
            return ("kept",)
        if self.kind in ("adopt", "recover"):
            return ("mean",)
        if self.kind == "restore":
            return ("weights",)
        if self.kind == "update" and self.recovers:  # the mean is in the place of the next sample
            return (*self.rule.state, "weights")
        if self.kind == "sample":
            return ("mean", "weights") if self.holds_mean else ("weights",)
        return ("mean", *self.rule.state, *(["weights"] if self.holds_mean or self.resample else []))

    @property
    def draws(self) -> tuple[str, ...]:
        """Names of the noise that it needs."""
        this = self.noisy or self.recovers or self.kind in ("recover", "restore")
        return (*(["eps"] if this else []), *(["next_eps"] if self.resample or self.kind == "sample" else []))

    def run(self, values: Values, numbers: Numbers) -> None:
        """Change what :attr:`writes` names in place; all the others may be used up.

        Args:
            values: Tensors of one shape by name, ``grad`` and ``kept`` in the dtype of the mean.
            numbers: As :func:`numbers_of` gives them, each a number or a 0-d tensor.
        """
        rule, mean = self.rule, values["mean"]
        state = {name: values[name] for name in rule.state} if self.kind != "adopt" else {}
        if self.holds_mean or self.kind == "adopt":
            follow_(mean, values["weights"])
        if self.recovers or self.kind in ("recover", "restore"):
            told = self._told(values, numbers, "")
            mean.copy_(recovered(rule, values["weights"], state, values["eps"], told))
        if self.kind == "restore":
            values["weights"].copy_(mean)
        elif self.kind == "sample":
            told = self._told(values, numbers, "")
            values["weights"].copy_(perturbed(rule, mean, state, values["next_eps"], told))
        elif self.kind == "collect":
            grad = _times(values["grad"], numbers["scale"])
            curvature = rule.curvature(grad, values.get("eps"), state, self._told(values, numbers, ""))
            if curvature is not None:
                values["kept"].lerp_(curvature, factor(numbers["share"], curvature))
        elif self.kind == "update":
            grad = _times(values["grad"], numbers["scale"])
            if self.given:
                curvature = _times(values["kept"], numbers["factor"]) if self.kept else None
            else:
                curvature = rule.curvature(grad, values.get("eps"), state, self._told(values, numbers, ""))
            after = self._told(values, numbers, "new_")
            rule.update_(mean, state, grad, curvature, after)
            if self.resample:
                values["weights"].copy_(perturbed(rule, mean, state, values["next_eps"], after))
            elif self.holds_mean:
                values["weights"].copy_(mean)

    def _told(self, values: Values, numbers: Numbers, prefix: str) -> Hyper:
        """Hyper-parameters of the rule with the counters before this step, or (``"new_"``) after it."""
        hp: dict[str, Any] = dict(numbers)
        hp["betas"] = numbers["beta1"], numbers["beta2"]
        hp["prior_mean"] = 0.0
        hp.update({name: numbers[prefix + name] for name in initial_counters()})
        hp.update({name: values[name] for name in self.per_weight})
        statics = dict(self.statics)
        follows_data = statics.pop("follows_data", False)
        hp.update(statics)
        if follows_data and "prior_precision" in self.per_weight:
            hp["initial_precision"] = start_precision(hp, hp["prior_precision"])
        return hp


def numbers_of(
    rule: Rule,
    group: Mapping[str, Any],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    prior_precision: float | None = None,
) -> dict[str, float]:
    """The numbers of a pass: the group's, and the counters before and after the step.

    ``prior_precision`` is the parameter's own, if the group asks for one.
    """
    lr, (beta1, beta2) = float(group["lr"]), group["betas"]
    numbers = {
        "lr": lr * annealing(group, lr),
        "beta1": float(beta1),
        "beta2": float(beta2),
        "num_data": float(group["num_data"]),
        "temperature": float(group["temperature"]),
        "scale": 1.0,
        "factor": 1.0,
        "share": 1.0,
    }
    start = group["initial_precision"]
    if "prior_precision" in group:
        own = group["prior_precision"]
        if isinstance(own, str):  # unknown if the weights have priors from a posterior, which the views supply
            own = prior_precision or 0.0
        numbers["prior_precision"] = float(own)
        start = start_precision(group, numbers["prior_precision"]) if start is None else start
    numbers["initial_precision"] = float(start)
    for option in options_of(rule):
        if not option.static:
            value = group[option.name]
            numbers[option.name] = 0.0 if value is None else float(value)
    for name in initial_counters():
        numbers[name], numbers["new_" + name] = float(before[name]), float(after[name])
    return numbers


def statics_of(rule: Rule, group: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Values that select branches of a rule's code."""
    statics = [(option.name, group[option.name]) for option in options_of(rule) if option.static]
    return (*statics, ("follows_data", group["initial_precision"] is None))


def per_weight_of(state: Mapping[str, Any]) -> tuple[str, ...]:
    """Hyper-parameters for which a parameter's state has a value for each weight."""
    return tuple(name for name in PER_WEIGHT if isinstance(state.get(name), Tensor))


def own_prior_of(state: Mapping[str, Any]) -> float | None:
    """The prior precision from a parameter's initial values, the same for all of its weights, if its state has one."""
    own = state.get("prior_precision")
    return None if own is None or isinstance(own, Tensor) else float(own)


def _times(values: Tensor, scale: Scalar) -> Tensor:
    return values.mul_(factor(scale, values)) if isinstance(scale, Tensor) or scale != 1.0 else values
