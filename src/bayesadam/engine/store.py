"""The persistent data of an optimiser: its groups and, for every parameter, the mean, the rule's tensors and
counters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bayesadam.engine.passes import follow_, numbers_of, own_prior_of, per_weight_of
from bayesadam.engine.rule import Rule, advance, initial_counters, start_precision
from bayesadam.sharding import full, local, own_part

COUNTERS = tuple(initial_counters())
_COUNTERS_OF = itemgetter(*COUNTERS)
_LOW = (torch.float16, torch.bfloat16)


class Owner(Protocol):
    """The part of an optimiser that is used here; groups and state may be replaced at any time, as by loading."""

    param_groups: list[dict[str, Any]]
    state: Any


@dataclass(frozen=True, eq=False, slots=True)
class Slot:
    """A parameter, its group, and its noise index, which is its position among all parameters."""

    group: dict[str, Any]
    index: int
    parameter: nn.Parameter

    @property
    def noisy(self) -> bool:
        """Whether it is perturbed while it is trainable."""
        return bool(self.group["perturb"]) and self.parameter.requires_grad


class Store:
    """The groups and the state of an optimiser, as the engine uses them.

    Args:
        owner: The optimiser.
        rule: Rule of its method.

    Attributes:
        moved: Functions that are called when parameters are replaced by others, with a mapping from old to new.
        start_prior: Function that puts the priors of the single weights into a new state, where they have their own.
    """

    def __init__(self, owner: Owner, rule: Rule) -> None:
        self.owner = owner
        self.rule = rule
        self.moved: Callable[[Mapping[Tensor, Tensor]], None] = lambda moved: None
        self.start_prior: Callable[[Slot, dict[str, Any]], None] = lambda slot, state: None
        self._key: list[int] = []
        self._slots: list[Slot] = []

    @property
    def first(self) -> dict[str, Any]:
        """The first group, whose entries include all those that are the same in all groups."""
        return self.owner.param_groups[0]

    def set_all(self, name: str, value: Any) -> None:
        """Set an entry of every group."""
        for group in self.owner.param_groups:
            group[name] = value

    def slots(self) -> list[Slot]:
        """All parameters; the same objects as long as groups and parameters do not change."""
        groups = self.owner.param_groups
        key = [each for group in groups for each in (id(group), *map(id, group["params"]))]
        if key != self._key:
            earlier = self._slots
            self._slots = [
                Slot(group, index, parameter)
                for group in groups
                for index, parameter in enumerate(group["params"], group["noise_index"])
            ]
            self._key = key
            self._follow(earlier)
        return self._slots

    def _follow(self, earlier: Sequence[Slot]) -> None:
        """Move the state to other parameters that were put in place of the old ones, such as shards of them."""
        pairs = list(zip(earlier, self._slots, strict=False))
        if len(earlier) != len(self._slots) or any(
            old.group is not new.group or old.parameter.shape != new.parameter.shape for old, new in pairs
        ):
            return
        moved: dict[Tensor, Tensor] = {
            old.parameter: new.parameter for old, new in pairs if old.parameter is not new.parameter
        }
        states = self.owner.state
        for old, new in moved.items():
            if old in states:
                state = states.pop(old)
                states[new] = {name: _as_placed(value, new) for name, value in state.items()}
        if moved:
            self.moved(moved)

    def trained(self) -> list[Slot]:
        """Slots of the parameters with a gradient."""
        return [slot for slot in self.slots() if slot.parameter.grad is not None and slot.parameter.requires_grad]

    def state_of(self, slot: Slot) -> dict[str, Any]:
        """State of a parameter, created at its first use."""
        states = self.owner.state
        if slot.parameter not in states:
            states[slot.parameter] = self.new_state(slot)
        state: dict[str, Any] = states[slot.parameter]
        return state

    def new_state(self, slot: Slot) -> dict[str, Any]:
        """Counters, the mean (the parameter's value in float32 or wider), and the rule's tensors, like the parameter.

        Raises:
            ValueError: The parameter is complex, which is possible only if it stays frozen.
        """
        parameter = slot.parameter
        if parameter.is_complex():
            raise ValueError(f"parameter {self.name_of(parameter)} must be real, got dtype {parameter.dtype}")
        dtype = torch.float32 if parameter.dtype in _LOW else parameter.dtype
        if slot.group["low_memory"] and dtype == parameter.dtype:
            mean = parameter.detach()  # the weights hold the mean, since they never got a sample
        else:
            mean = torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
            local(mean).copy_(local(parameter))
        state: dict[str, Any] = {**initial_counters(), "mean": mean}
        if slot.group.get("prior_precision") == INIT:
            state["prior_precision"] = initial_prior(parameter)
        self.start_prior(slot, state)
        self.start_rule(slot, state)
        return state

    def start_rule(self, slot: Slot, state: dict[str, Any]) -> None:
        """Set the rule's tensors to their initial values, given the mean and the prior in the state."""
        state.update(self.rule.init(state["mean"], hyper(slot.group, state, state)))

    def check_loaded(self) -> None:
        """Raise ``ValueError`` if a loaded state is not valid for these parameters together."""

    def center(self, slot: Slot, state: Mapping[str, Any]) -> Tensor:
        """A copy of the mean of a parameter that holds it."""
        mean: Tensor = state["mean"].clone()
        follow_(local(mean), local(slot.parameter))
        return mean

    def variance(self, slot: Slot, state: Mapping[str, Any]) -> Tensor:
        """Posterior variance as a new tensor; 0 for a parameter without noise."""
        spread = torch.zeros_like(state["mean"])
        if slot.group["perturb"]:
            views = {name: local(value) for name, value in state.items() if isinstance(value, Tensor)}
            local(spread).copy_(self.rule.precision(views, hyper(slot.group, state, views)).reciprocal_())
        return spread

    def names(self) -> dict[Tensor, str]:
        """Names of the parameters in groups that have names."""
        named = (group for group in self.owner.param_groups if "param_names" in group)
        return {p: n for group in named for p, n in zip(group["params"], group["param_names"], strict=True)}

    def name_of(self, parameter: Tensor) -> str:
        """The name of a parameter in messages: its own name, or its position if names are not known."""
        names = self.names()
        if parameter in names:
            return repr(names[parameter])
        return next(f"number {slot.index}" for slot in self.slots() if slot.parameter is parameter)

    def dense_gradient(self, parameter: Tensor) -> Tensor:
        """Gradient of a parameter.

        Raises:
            RuntimeError: The gradient is sparse.
        """
        grad = parameter.grad
        assert grad is not None
        if grad.is_sparse:
            raise RuntimeError(f"the gradient of parameter {self.name_of(parameter)} must be dense, got a sparse one")
        return grad


_NO_WIDTHS = ("params", "lr", "initial_lr", "weights", "noise_step", "skipped_steps", "discarded_steps", "counted")
"""Entries of a group that do not affect the width of a sample."""


def widths_in(group: Mapping[str, Any]) -> dict[str, Any]:
    """Entries of a group that may affect the width of a sample."""
    return {name: value for name, value in group.items() if name not in _NO_WIDTHS}


class NumbersCache:
    """The numbers of one walk, computed once for all parameters that share group and counters.

    Args:
        rule: The rule.
        earlier: Copies of groups, by their ids, whose entries count where they may affect the width of a sample.
    """

    def __init__(self, rule: Rule, earlier: Mapping[int, Mapping[str, Any]] | None = None) -> None:
        self.rule = rule
        self._earlier = {number: widths_in(group) for number, group in (earlier or {}).items()}
        self._known: dict[tuple[Any, ...], tuple[dict[str, float], dict[str, Any]]] = {}
        self._scaled: dict[tuple[Any, ...], dict[str, float]] = {}
        self._alive: list[Mapping[str, Any]] = []  # keeps the groups alive, so that their ids are unique

    def of(self, group: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
        """The numbers, without the scales of gradients; and the counters after one more step."""
        own = {**group, **self._earlier[id(group)]} if id(group) in self._earlier else group
        prior = state.get("prior_precision")
        if own.get("prior_precision") != INIT:
            prior = None
        elif type(prior) is not float:
            prior = _initial_prior_in(state)
        counters = _COUNTERS_OF(state)
        key = (id(group), counters, prior)
        known = self._known.get(key)
        if known is None:
            self._alive.append(group)
            before = dict(zip(COUNTERS, counters, strict=True))
            after = advance(before, own)
            known = self._known[key] = numbers_of(self.rule, own, before, after, prior), after
        return known

    def scaled(
        self, plain: dict[str, float], scale: float, factor: float = 1.0, share: float = 1.0
    ) -> dict[str, float]:
        """The same numbers with the factors of gradient and kept curvature, and the share of a new sample."""
        if scale == factor == share == 1.0:
            return plain
        key = (id(plain), scale, factor, share)
        if key not in self._scaled:
            self._scaled[key] = {**plain, "scale": scale, "factor": factor, "share": share}
        return self._scaled[key]


def hyper(group: Mapping[str, Any], counters: Mapping[str, Any], views: Mapping[str, Tensor]) -> dict[str, Any]:
    """Hyper-parameters of a rule: the group's values, the counters, and per-weight values if the state has them.

    Without a parameter's state, a prior precision from initial values stays the word for it.
    """
    hp: dict[str, Any] = {**group, **{name: counters[name] for name in COUNTERS}}
    hp["lr"] = float(group["lr"])
    hp["prior_mean"] = 0.0
    if hp.get("prior_precision") == INIT and "mean" in counters:
        hp["prior_precision"] = _initial_prior_in(counters)
    hp.update({name: views[name] for name in per_weight_of(views)})
    if "batch_size" in group:
        hp["batch_size"] = group["batch_size"] or 0.0
    known = "prior_precision" in group and not isinstance(hp["prior_precision"], str)
    if known and group["initial_precision"] is None:
        hp["initial_precision"] = start_precision(group, hp["prior_precision"])
    return hp


INIT = "init"
"""Value of ``prior_precision`` that stands for a separate prior of each parameter, from its initial values."""
_WIDER = 10.0


def initial_prior(parameter: Tensor) -> float:
    """Precision of a prior whose variance is ten times that of the parameter's values.

    This is the scale of its initialisation, about ``fan_in / 3`` for PyTorch's layers. It is rounded to a power of two,
    so that parameters of similar shape share it and are processed together. Values that are all equal (a shift of 0, a
    gain of 1) have no scale, and their variance is taken as 1.
    """
    values = full(parameter.detach()).double()
    variance = float(values.var(correction=0)) if values.numel() else 0.0
    if not 1e-12 < variance < math.inf:
        variance = 1.0
    return float(2.0 ** round(math.log2(1.0 / (_WIDER * variance))))


def _initial_prior_in(state: Mapping[str, Any]) -> float | None:
    """The prior precision from a parameter's initial values; ``None`` if each weight has its own.

    Raises:
        ValueError: The group had a number when the state was created.
    """
    if "prior_precision" not in state:
        raise ValueError(
            "prior_precision must be a number for parameters whose training began with a number (their initial values "
            f"are not known any more), got {INIT!r}"
        )
    return own_prior_of(state)


@torch.no_grad()
def _as_placed(value: Any, parameter: Tensor) -> Any:
    """A tensor of a parameter's state with another sharding; other values are returned as they are."""
    if not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    placed = torch.zeros_like(parameter, dtype=value.dtype, requires_grad=False)
    local(placed).copy_(own_part(parameter, full(value)))
    return placed
