"""The assignment of parameters to flats, which follows changes of groups, of parameters and of loaded states; and the
posterior that is read from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import cycle
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bayesadam import noise
from bayesadam.core.flat import Flat, Kind, Member, kind_of
from bayesadam.core.passes import PER_WEIGHT, followed
from bayesadam.core.rule import COUNTERS, Hyper, Rule
from bayesadam.functional.initial_priors import initial_priors
from bayesadam.modules.fsdp import spread
from bayesadam.modules.sharding import is_sharded, like, local
from bayesadam.modules.wrappers import innermost, names_in
from bayesadam.native.memory import Misplaced, Placed, are_backed, placed

WIDTHS = ("num_data", "temperature", "prior_precision", "initial_precision", "perturb")
"""Entries of every group that decide the width of a sample, in addition to some options of the rule."""
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
        lazy: Parameters that their modules had not initialised then.
        is_sharded: Whether any parameter is sharded over processes.
        on_device: Whether all weights are on one GPU that has kernels, and are not sharded.
        attached_names: Names of the parameters in the attached model.
    """

    def __init__(self, owner: Optimizer, rule: Rule, priors: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        self.owner, self.rule, self.priors = owner, rule, priors
        self.built: list[Flat] = []
        self.on_device = self.is_sharded = False
        self.attached_names: Mapping[Tensor, str] = {}
        self.lazy: list[Tensor] = []
        self._static = [option.name for option in rule.options if option.static]
        self._widths = [*WIDTHS, *(option.name for option in rule.options if option.width)]
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
        members = []
        for group in self.owner.param_groups:
            for index, parameter in enumerate(group["params"], group["noise_index"]):
                members.append(Member(parameter, group, index))
        return members

    def flats(self) -> list[Flat]:
        """The flats of all trainable parameters, built anew if parameters, groups, static options or entries of the
        state have changed; it is known where their weights are.
        """
        if self.key() == self._key:
            with suppress(Misplaced):
                self.gather()
                return self.built
        self._build()
        self._key = self.key()
        self.gather()
        return self.built

    def widths(self) -> list[Any]:
        """The values in all groups of what decides the width of samples."""
        widths: list[Any] = []
        for group in self.owner.param_groups:
            widths += map(group.get, self._widths)
        return widths

    def check_unchanged(self, widths: list[Any]) -> None:
        """Raise an error if widths are not these any more, or if the flats would have to be built anew, which cannot be
        while weights hold a sample.
        """
        now = self.widths()
        if now == widths and self.key() == self._key:
            return
        for name, value, before in zip(cycle(self._widths), now, widths, strict=False):
            if value != before:
                raise RuntimeError(
                    f"{name} must not change while the weights hold a sample, got {value!r} in place of {before!r}: "
                    "call eval() before changing it, and train() afterwards"
                )
        raise RuntimeError(
            "parameters, requires_grad, options and state must not change while the weights hold a sample, got other "
            "ones: call eval() before changing them, and train() afterwards"
        )

    def gather(self) -> None:
        """Look up where the weights of all flats are.

        Raises:
            Misplaced: They do not have the memory any more for which the flats were built; nothing has changed.
        """
        for flat in self.built:
            flat.weights = self.place(flat, flat.parameters)

    def place(self, flat: Flat, tensors: Sequence[Tensor], numbers: Any = None, *, what: str = "") -> Placed:
        """Look up where tensors of members of a flat are; of sharded ones, where the local part is.

        Args:
            flat: The flat.
            tensors: The tensors.
            numbers: Numbers of the members, by default all.
            what: What the tensors are, if not the parameters; they may then have any dtype.

        Raises:
            Misplaced: A tensor does not have the memory for which the flat was built.
        """
        shapes = flat.shapes if numbers is None else [flat.shapes[number] for number in numbers]
        parts = list(map(local, tensors)) if flat.is_sharded else tensors
        try:
            return placed(parts, shapes, flat.kind.device, flat.kind.weights, converts=bool(what))
        except Misplaced as error:
            number = error.number if numbers is None else numbers[error.number]
            name = self.name_of(flat.parameters[number])
            raise Misplaced(f"{what}parameter {name} {error}; nothing was changed", number) from None

    def key(self) -> list[Any]:
        """What the flats are built from: as long as it is the same, they are."""
        key: list[Any] = []
        for group in self.owner.param_groups:
            parameters = group["params"]
            key += id(group), group["seed"], group["perturb"], group["initial_precision"] is None
            key.append(group.get("prior_precision") == INIT)
            key += map(group.get, self._static)
            key += map(id, parameters)
            key += map(_REQUIRES_GRAD, parameters)
            key += map(type, parameters)  # a lazy parameter becomes an ordinary one
        key += map(id, self.owner.state.values())
        for flat in self.built:
            key += flat.identities()
        return key

    @torch.no_grad()
    def _build(self) -> None:
        alike: dict[Kind, list[Member]] = {}
        self.lazy = [m.parameter for m in self.members() if nn.parameter.is_lazy(m.parameter)]
        self.is_sharded = any(is_sharded(m.parameter) for m in self.members())
        for member in self.members():
            parameter = member.parameter
            if not parameter.requires_grad or nn.parameter.is_lazy(parameter):
                continue
            self._check(member)
            alike.setdefault(kind_of(member, self.rule, per_weight=self._has_prior(member)), []).append(member)
        self.built = [self._flat(kind, members) for kind, members in alike.items()]
        places = {flat.kind.device if flat.on_device and not flat.is_sharded else None for flat in self.built}
        self.on_device = len(places) == 1 and None not in places and noise.has_kernel(self.built[0].kind.device)
        for flat in self.built:
            flat.states = [self.owner.state[parameter] for parameter in flat.parameters]
            for number, state in enumerate(flat.states):
                state.update(flat.state_of(number))

    def _check(self, member: Member) -> None:
        """Raise an error for a parameter that cannot be trained, or whose state does not fit it."""
        parameter, name = member.parameter, self.name_of(member.parameter)
        if parameter.is_complex():
            raise ValueError(f"parameter {name} must be real, got dtype {parameter.dtype}")
        if not are_backed([local(parameter)]):
            raise RuntimeError(f"parameter {name} must have memory for its {parameter.numel()} elements, got less")
        state = self.owner.state.get(parameter) or {}
        fault = fault_in(state, parameter, self.rule)
        if "step" in state and fault is not None:
            raise RuntimeError(f"the state of parameter {name} {fault}: make a new optimizer after changing shapes")

    def _flat(self, kind: Kind, members: list[Member]) -> Flat:
        """A flat with the state of its members, which is the initial state where there is none yet."""
        remembered = self.rule.remembered(self.first)
        flat = Flat(kind, members, ["mean", *self.rule.state, *remembered, *(PER_WEIGHT if kind.per_weight else ())])
        states = [self.owner.state.get(member.parameter) or {} for member in members]
        new = [n for n, member in enumerate(members) if member.group.get("prior_precision") == INIT]
        new = [n for n in new if "step" not in states[n]]
        flat.priors[new] = _NARROWER * np.array(initial_priors([flat.parameters[n] for n in new]))
        for number, state in enumerate(states):
            self._fill(flat, number, state)
        numbers = flat.next_numbers(self.rule)
        for number, state in enumerate(states):
            if "step" in state:
                entries = {name: local(state[name]) for name in self.rule.state}
            else:
                entries = self.rule.init(flat.part("mean", number), flat.hyper(self.rule, number, numbers))
            for name in remembered:
                entries[name] = local(state[name]) if name in state else flat.part("mean", number)
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
        flats = self.flats() if self.owner.param_groups[0]["weights"] == "mean" else self.built
        places: dict[Tensor, tuple[Flat, int]] = {}
        for flat in flats:
            for number, parameter in enumerate(flat.parameters):
                places[parameter] = flat, number
        for member in self.members():
            if member.parameter not in places and self.owner.state.get(member.parameter):
                kind = kind_of(member, self.rule, per_weight=self._has_prior(member))
                places[member.parameter] = self._flat(kind, [member]), 0
        return places

    def hypers(self, places: Sequence[tuple[Flat, int]]) -> list[Hyper]:
        """Hyper-parameters in the next step of members of flats; a device is waited for once for each flat."""
        hypers, numbers = [], dict[Flat, dict[str, Any]]()
        for flat, number in places:
            if flat not in numbers:
                numbers[flat] = flat.next_numbers(self.rule)
            hypers.append(flat.hyper(self.rule, number, numbers[flat]))
        return hypers

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

    def read(
        self, model: nn.Module | None, sampled: Sequence[Flat], *, tracks_start: bool, temperature: float | None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, dict[str, Any]], float]:
        """Means and variances of the posterior by name, and what the precision of each noisy tensor comes from: the
        share of the initial precision in it, ``start_share``, and the ``prior_precision``, averaged over weights; and
        the temperature of the noise for which the widths were read.

        The share is ``B (initial_precision - lambda) sigma^2``, where ``B`` is the weight of the start in the running
        curvature. A device is waited for once for each flat, and once for all averages.

        Args:
            model: Module from which the names are taken, if not those of the groups and of the attached model.
            sampled: Flats whose weights hold a sample.
            tracks_start: Whether the share is known; it is ``None`` otherwise.
            temperature: That of the noise in training, of which the rule takes the posterior's; by default the groups'.
        """
        covered = self._covered(model)
        means, variances = dict[str, Tensor](), dict[str, Tensor]()
        names, averages = [], list[Tensor]()
        hypers = self.hypers(list(covered.values()))
        for (name, (flat, number)), hp in zip(covered.items(), hypers, strict=True):
            hp.temperature = hp.temperature if temperature is None else temperature
            mean, weights = flat.part("mean", number), flat.parameters[number].detach()
            if flat.is_sharded:
                weights = local(weights)
            if flat not in sampled:  # the weights hold the mean
                mean = weights if mean.dtype == weights.dtype else followed(mean, weights)
            means[name] = flat.whole(mean.clone(), number)
            variance = variances[name] = flat.whole(flat.variance(self.rule, number, hp), number)
            if not flat.kind.perturb:
                continue
            prior = hp.prior_precision * (hp.temperature > 0) if "prior_precision" in flat.groups[0] else 0.0
            start = hp.initial_weight * (hp.initial_precision - prior)
            if isinstance(start, Tensor):  # each weight has its own
                start = flat.whole(start.double(), number)
            if isinstance(prior, Tensor):
                prior = flat.whole(prior, number)
                prior = (prior * variance).sum() / variance.sum()
            share = (start * variance).clamp(0.0, 1.0).mean()
            names.append(name)
            for value in (share, prior if isinstance(prior, Tensor) else torch.full_like(share, prior)):
                averages.append(value.to(averages[0]) if averages else value)
        origins = {}
        values = torch.stack(averages).tolist() if averages else []
        for name, share, prior in zip(names, values[::2], values[1::2], strict=True):
            origins[name] = {"start_share": share if tracks_start else None, "prior_precision": prior}
        return means, variances, origins, float(hypers[0].temperature) if hypers else self.first["temperature"]

    def _covered(self, model: nn.Module | None) -> dict[str, tuple[Flat, int]]:
        """Flat and number in it of every parameter that a posterior covers, by name and in order."""
        places = self.places()
        if model is not None and self.is_sharded:
            spread(innermost(model))
        names = self.names() if model is None else names_in(model)
        covered: dict[str, tuple[Flat, int]] = {}
        seed = self.group_of(model)["seed"]
        for parameter, group, _ in self.members():
            if parameter not in names and group["perturb"] and group["seed"] == seed:
                if model is not None:
                    raise self.not_in_model(parameter)
                if parameter in places:
                    raise RuntimeError(
                        "posterior() must know the parameters' names: give it the model, construct the optimiser from "
                        "model.named_parameters(), or call attach(model)"
                    )
            if parameter in names and parameter in places:
                name = names[parameter]
                if name in covered:
                    raise RuntimeError(
                        f"posterior() must know parameters by different names, got {name!r} twice: take the names of "
                        "all parameters from one module that contains them, or give it the model"
                    )
                covered[name] = places[parameter]
        return covered

    def group_of(self, model: nn.Module | None) -> dict[str, Any]:
        """The first group with parameters of a model, or the first of all."""
        names = {} if model is None else names_in(model)
        for parameter, group, _ in self.members():
            if parameter in names:
                return group
        return self.first

    def not_in_model(self, parameter: Tensor) -> ValueError:
        """The error for a perturbed parameter that does not belong to the model."""
        return ValueError(
            f"model must have all perturbed parameters of the optimiser, got a model without "
            f"{self.name_of(parameter)} of shape {tuple(parameter.shape)} (those of a likelihood belong into a "
            "group with perturb=False)"
        )


def fault_in(state: Mapping[str, Any], parameter: Tensor, rule: Rule) -> str | None:
    """What is wrong with the state of a parameter, if it was not made for it: the end of a sentence about it."""
    for name in ("mean", *rule.state, *(PER_WEIGHT if "prior_mean" in state else ())):
        value, shape = state.get(name), tuple(parameter.shape)
        if not isinstance(value, Tensor):
            return f"must have a tensor {name!r} of shape {shape}, got {value!r}"
        if value.shape != parameter.shape:
            return f"must be of shape {shape}, got {tuple(value.shape)} for {name!r}"
        if value.dtype not in (torch.float32, torch.float64) or not are_backed([local(value)]):
            return f"must be float32 or float64 and in memory, got {value.dtype} for {name!r}"
    for name in COUNTERS:
        value = state.get(name)
        if not (isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)):
            return f"must have a number {name!r}, got {value!r}"
    return None


_REQUIRES_GRAD = attrgetter("requires_grad")
_NARROWER = 3.0
"""Factor of :func:`initial_priors` in the precision of the prior :data:`INIT`."""
