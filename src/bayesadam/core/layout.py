"""The assignment of parameters to flats, which follows changes of groups, of parameters and of loaded states."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bayesadam.core.flat import Flat, Kind, Member, kind_of
from bayesadam.core.passes import PER_WEIGHT
from bayesadam.core.rule import COUNTERS, Hyper, Rule
from bayesadam.sharding import full, like, local

INIT = "init"
"""Value of ``prior_precision`` that stands for a separate prior of each parameter, from its initial values."""


class Layout:
    """The flats of an optimiser.

    Args:
        owner: The optimiser, whose groups and state may be replaced at any time, as by loading.
        rule: Rule of its method.
        priors: Mean and variance of a posterior that weights continue from, by parameter name.

    Attributes:
        built: The flats as they were built last.
        attached_names: Names of the parameters in the attached model.
    """

    def __init__(self, owner: Optimizer, rule: Rule, priors: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        self.owner, self.rule, self.priors = owner, rule, priors
        self.built: list[Flat] = []
        self.attached_names: Mapping[Tensor, str] = {}
        self._lazy: list[Tensor] = []
        self._key: list[Any] | None = None

    @property
    def first(self) -> dict[str, Any]:
        """The first group, whose entries include all those that are the same in all groups."""
        group: dict[str, Any] = self.owner.param_groups[0]
        return group

    def set_all(self, name: str, value: Any) -> None:
        """Set an entry of every group."""
        for group in self.owner.param_groups:
            group[name] = value

    def members(self) -> list[Member]:
        """All parameters, in order."""
        return [
            Member(parameter, group, index)
            for group in self.owner.param_groups
            for index, parameter in enumerate(group["params"], group["noise_index"])
        ]

    def has_initialized(self) -> bool:
        """Whether lazy parameters have been initialised, by their module's first call, since the flats were built."""
        return any(not nn.parameter.is_lazy(parameter) for parameter in self._lazy)

    def flats(self) -> list[Flat]:
        """The flats of all trainable parameters, built anew if parameters, groups or static options have changed."""
        key = self._key_now()
        if key != self._key:
            self._build()
            self._key = key
        return self.built

    def _key_now(self) -> list[Any]:
        key: list[Any] = []
        for group in self.owner.param_groups:
            parameters = group["params"]
            key += [
                id(group),
                group["perturb"],
                group["initial_precision"] is None,
                group.get("prior_precision") == INIT,
            ]
            key += [group[option.name] for option in self.rule.options if option.static]
            key += map(id, parameters)
            key += [parameter.requires_grad for parameter in parameters]
            key += map(type, parameters)  # a lazy parameter becomes an ordinary one
            key += [(p.device, p.dtype, None if nn.parameter.is_lazy(p) else p.shape) for p in parameters]
        return key

    @torch.no_grad()
    def _build(self) -> None:
        alike: dict[Kind, list[Member]] = {}
        self._lazy = [m.parameter for m in self.members() if nn.parameter.is_lazy(m.parameter)]
        for member in self.members():
            parameter = member.parameter
            if not parameter.requires_grad or nn.parameter.is_lazy(parameter):
                continue
            self.check(member)
            alike.setdefault(kind_of(member, self.rule, per_weight=self._has_prior(member)), []).append(member)
        self.built = [self._flat(kind, members) for kind, members in alike.items()]
        for flat in self.built:
            for number, parameter in enumerate(flat.parameters):
                self.owner.state[parameter] = flat.state_of(number)

    def check(self, member: Member) -> None:
        """Raise an error for a parameter that cannot be trained, or whose shape is no longer that of its state."""
        parameter = member.parameter
        if parameter.is_complex():
            raise ValueError(f"parameter {self.name_of(parameter)} must be real, got dtype {parameter.dtype}")
        state = self.owner.state.get(parameter, {})
        for name in ("mean", *self.rule.state):
            if name in state and state[name].shape != parameter.shape:
                raise RuntimeError(
                    f"parameter {self.name_of(parameter)} must keep its shape {tuple(state[name].shape)}, got "
                    f"{tuple(parameter.shape)}: make a new optimizer after changing shapes"
                )

    def _flat(self, kind: Kind, members: list[Member]) -> Flat:
        """A flat with the state of its members, which is the initial state where there is none yet."""
        stored = not self.first["low_memory"] or kind.dtype != kind.weights
        names = [*(["mean"] if stored else []), *self.rule.state, *(PER_WEIGHT if kind.per_weight else ())]
        flat = Flat(kind, members, names)
        states = [self.owner.state.get(member.parameter) or {} for member in members]
        new = [n for n, (_, group, _) in enumerate(members) if group.get("prior_precision") == INIT]
        new = [n for n in new if "step" not in states[n]]
        flat.priors[new] = _NARROWER * np.array(initial_priors([flat.parameters[n] for n in new]))
        for number, state in enumerate(states):
            self._fill(flat, number, state)
        numbers = flat.next_numbers(self.rule)
        for number, state in enumerate(states):
            if "step" in state:
                entries = {name: local(state[name]) for name in self.rule.state}
            else:
                mean = flat.part("mean", number) if stored else local(flat.parameters[number]).detach()
                entries = self.rule.init(mean, flat.hyper(self.rule, number, numbers))
            for name, value in entries.items():
                flat.part(name, number).copy_(value)
        return flat

    def _fill(self, flat: Flat, number: int, state: Mapping[str, Any]) -> None:
        """Set counters, prior and mean of a member."""
        parameter = flat.parameters[number]
        if "step" in state:
            flat.counters[number] = [float(state[name]) for name in COUNTERS]
            if "prior_precision" in state and "prior_mean" not in state:
                flat.priors[number] = float(state["prior_precision"])
        values = {"mean": local(state.get("mean", parameter)).detach()}
        if flat.kind.per_weight:
            if "prior_mean" in state:
                values |= {name: local(state[name]) for name in PER_WEIGHT}
            else:
                mean, variance = (local(like(parameter, value)) for value in self.priors[self.names()[parameter]])
                values |= {"prior_mean": mean, "prior_precision": variance.reciprocal()}
                values["mean"] = values["mean"] if "step" in state else mean  # in the precision of the mean
        for name in values.keys() & flat.tensors.keys():
            flat.part(name, number).copy_(values[name])

    def _has_prior(self, member: Member) -> bool:
        """Whether the weights of a member have priors of their own."""
        if "prior_mean" in (self.owner.state.get(member.parameter) or {}):
            return True
        return bool(self.priors and member.group["perturb"]) and self.names().get(member.parameter) in self.priors

    def places(self) -> dict[Tensor, tuple[Flat, int]]:
        """Flat and number in it of every parameter with state; a frozen one is in a flat of its own."""
        flats = list(self.built if self.first["weights"] != "mean" else self.flats())
        known = {parameter for flat in flats for parameter in flat.parameters}
        for member in self.members():
            if member.parameter not in known and self.owner.state.get(member.parameter):
                kind = kind_of(member, self.rule, per_weight=self._has_prior(member))
                flats.append(self._flat(kind, [member]))
        return {parameter: (flat, number) for flat in flats for number, parameter in enumerate(flat.parameters)}

    def values(self, parameters: Sequence[Tensor]) -> list[dict[str, Any]]:
        """Hyper-parameters of parameters in their next step, and tensors of their state, by name."""
        places = self.places()
        found = [places[parameter] for parameter in parameters]
        return [
            vars(hyper) | {name: flat.part(name, number) for name in flat.tensors}
            for hyper, (flat, number) in zip(self.hypers(found), found, strict=True)
        ]

    def hypers(self, places: Sequence[tuple[Flat, int]]) -> list[Hyper]:
        """Hyper-parameters in the next step of members of flats; a device is waited for once for each flat."""
        numbers = {flat: flat.next_numbers(self.rule) for flat in {flat for flat, _ in places}}
        return [flat.hyper(self.rule, number, numbers[flat]) for flat, number in places]

    def names(self) -> dict[Tensor, str]:
        """Names of the parameters: those in the attached model, and those in groups that have names."""
        named = (group for group in self.owner.param_groups if "param_names" in group)
        names = {p: n for group in named for p, n in zip(group["params"], group["param_names"], strict=True)}
        return {**names, **self.attached_names}

    def name_of(self, parameter: Tensor) -> str:
        """The name of a parameter in messages: its own name, or its position if names are not known."""
        names = self.names()
        if parameter in names:
            return repr(names[parameter])
        return next(f"number {member.noise_index}" for member in self.members() if member.parameter is parameter)


_WIDER = 10.0
_NARROWER = 3.0
"""Factor of :func:`initial_priors` in the precision of the prior :data:`INIT`."""


def initial_priors(parameters: Sequence[Tensor]) -> list[float]:
    """Precisions of priors whose variance is ten times that of each parameter's values.

    This is the scale of its initialisation, about ``fan_in / 3`` for PyTorch's layers, rounded to a power of two.
    If all values are equal (a shift of 0, a gain of 1), they have no scale, and the variance is taken as 1. A device is
    waited for once for all parameters.
    """
    if not parameters:
        return []
    values = [full(parameter.detach()).double() for parameter in parameters]
    variances = [value.var(correction=0) if value.numel() else value.new_zeros(()) for value in values]
    read = torch.stack([variance.to(variances[0].device) for variance in variances]).tolist()
    known = [variance if 1e-12 < variance < math.inf else 1.0 for variance in read]
    return [2.0 ** round(math.log2(1.0 / (_WIDER * variance))) for variance in known]
