"""The parameters of an optimiser that are treated alike, with their state in one vector per name.

Parameters and gradients stay where they are. The tensors of ``optimizer.state`` are views of the vectors. Their
elements are in the order of the parameter's elements, whatever its memory layout. For a sharded parameter, they are the
shard of this rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bayesadam import noise
from bayesadam.core.passes import PER_WEIGHT
from bayesadam.core.printing import FIXED
from bayesadam.core.rule import COUNTERS, INITIAL_COUNTERS, Hyper, Rule, advanced, static_options
from bayesadam.modules.sharding import full, is_sharded, local, place, rank_and_size
from bayesadam.native.device import is_available
from bayesadam.native.memory import Placed

BLOCK = 16 * noise.TILE
"""Number of elements that PyTorch's operations work on at a time on a CPU, so that they stay in the cache."""
_LOW = (torch.float16, torch.bfloat16)
_OPTION = attrgetter("name", "static")


class Draw(NamedTuple):
    """The noise of a sample, for all parameters, whose groups have the seeds.

    Attributes:
        step: Number of the step.
        number: Number of the draw in it; two antithetic samples share one.
        negative: Whether the noise has the opposite sign, as that of the second one of an antithetic pair.
    """

    step: int
    number: int
    negative: bool


def draw_of(group: Mapping[str, Any], sample: int = 0, *, step: int | None = None) -> Draw:
    """The noise of a sample by its number in a step, by default the present one, for the options of a group. With
    ``rank_samples`` every process has other samples.
    """
    step = group["noise_step"] if step is None else step
    if group.get("rank_samples"):
        rank, size = rank_and_size()
        sample = sample * size + rank
    number, second = divmod(sample, 2) if group["antithetic"] else (sample, 0)
    return Draw(step, number, bool(second))


class Member(NamedTuple):
    """A parameter with its group and its noise index, which is its position among all parameters of the same seed."""

    parameter: nn.Parameter
    group: dict[str, Any]
    noise_index: int


class Piece(NamedTuple):
    """The elements ``start ... stop`` of a member, by its number in the flat."""

    number: int
    start: int
    stop: int


class Kind(NamedTuple):
    """What the members of a flat have in common.

    Attributes:
        dtype: Dtype of the state: float32, or float64.
        weights: Dtype of the parameters.
        device: Device of both.
        perturb: Whether they are perturbed.
        statics: The rule's static options.
        per_weight: Whether every weight has a prior of its own.
        default_start: Whether the initial precision is the rule's default.
        is_run: Whether the local part of each parameter is a contiguous run of the elements of the whole parameter.
    """

    dtype: torch.dtype
    weights: torch.dtype
    device: torch.device
    perturb: bool
    statics: tuple[tuple[str, Any], ...]
    per_weight: bool
    default_start: bool
    is_run: bool


def kind_of(member: Member, rule: Rule, *, per_weight: bool) -> Kind:
    """The kind of a member; only members of one kind are in one flat."""
    parameter, group, _ = member
    dtype = torch.float32 if parameter.dtype in _LOW else parameter.dtype
    return Kind(
        dtype,
        parameter.dtype,
        parameter.device,
        bool(group["perturb"]),
        static_options(rule, group),
        per_weight,
        group["initial_precision"] is None,
        not is_sharded(parameter) or len(noise_runs(member)) == 1,
    )


class Flat:
    """Parameters of one kind, and their state.

    Args:
        kind: Kind of the members.
        members: The parameters.
        state_names: Names of the vectors, of which ``"mean"`` is one.

    Attributes:
        tensors: Vectors by name.
        states: The state of each member in the optimiser: views of the vectors and of the counters.
        weights: The local weights of the members, where they were found at the beginning of a call.
        launches: Passes over the members that were run before, by what they depend on.
        noise: The latest noise of all members, where PyTorch's operations work on all of them at a time.
        priors: Prior precisions from the parameters' initial values; NaN where the prior precision of the group is
            used.
    """

    def __init__(self, kind: Kind, members: Sequence[Member], state_names: Sequence[str]) -> None:
        self.kind, self.members = kind, list(members)
        self.parameters = [member.parameter for member in members]
        self.is_sharded = any(map(is_sharded, self.parameters))
        self.shapes = [local(parameter).shape for parameter in self.parameters]
        self.sizes = np.array([shape.numel() for shape in self.shapes], dtype=np.int64)
        self.ends = np.cumsum(self.sizes)
        self.starts = self.ends - self.sizes
        self.numel = int(self.sizes.sum())
        groups = {id(member.group): member.group for member in members}
        self.groups = list(groups.values())
        order = {key: i for i, key in enumerate(groups)}
        self.group_of = np.array([order[id(member.group)] for member in members])
        self.tensors = {name: self.vector() for name in state_names}
        self._host = np.array([[*INITIAL_COUNTERS, math.nan]] * len(members), dtype=np.float64)
        self.priors = self._host[:, len(COUNTERS)]
        self.noise_runs = list(map(noise_runs, members))
        self.launches: dict[Any, Any] = {}
        self.states: list[dict[str, Any]] = []
        self.weights = Placed((), (), True)
        self.noise: dict[Draw, Tensor] = {}

    @cached_property
    def on_device(self) -> bool:
        """Whether the counters are on the device, where the kernels of a GPU advance them."""
        return self.kind.is_run and is_available(self.kind.device)

    @property
    def is_whole(self) -> bool:
        """Whether PyTorch's operations work on all members at a time."""
        return self.kind.device.type != "cpu" or not self.kind.is_run

    @cached_property
    def numbers(self) -> Tensor:
        """A row of :data:`~bayesadam.core.rule.COUNTERS` and a prior precision for every parameter."""
        host = torch.from_numpy(self._host)
        return host.to(self.kind.device, copy=True) if self.on_device else host

    @property
    def counters(self) -> NDArray[np.float64]:
        """A row of :data:`~bayesadam.core.rule.COUNTERS` for every parameter; from a GPU this waits for it."""
        counters = self._host[:, : len(COUNTERS)]
        if self.on_device and "numbers" in vars(self):
            counters[:] = self.numbers[:, : len(COUNTERS)].cpu().numpy()
        return counters

    @cached_property
    def means(self) -> list[Tensor]:
        """The means of all members, in their local shapes."""
        return self.parts(self.tensors["mean"])

    def deviation(self, *, held: bool) -> str:
        """Where the deviation of a sample from the mean comes from, as in :class:`~bayesadam.core.passes.Pass`.

        While the weights hold the sample, it is the difference between weights and mean. Afterwards it is drawn again;
        on a GPU it always is, because drawing is faster than reading the weights. The difference is not exact if the
        weights have fewer bits than the mean.
        """
        if self.kind.dtype != self.kind.weights:
            return "exact"
        return "weights" if held and not self.on_device else "eps"

    def vector(self) -> Tensor:
        """A new vector of zeros."""
        return torch.zeros(self.numel, dtype=self.kind.dtype, device=self.kind.device)

    def part(self, name: str, number: int) -> Tensor:
        """The part of a vector that belongs to a member, in its local shape."""
        return self.tensors[name][self.starts[number] : self.ends[number]].view(self.shapes[number])

    def parts(self, vector: Tensor) -> list[Tensor]:
        """The parts of a vector of all members."""
        pieces = vector.split_with_sizes(self.sizes.tolist())
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def as_state(self, part: Tensor, number: int) -> Tensor:
        """A tensor of a member's local shape as an entry of the optimiser's state: sharded like the parameter."""
        parameter = self.parameters[number]
        if not self.is_sharded or not is_sharded(parameter):
            return part
        from torch.distributed.tensor import DTensor

        mesh, placements = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
        return DTensor.from_local(
            part, mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
        )

    def whole(self, part: Tensor, number: int) -> Tensor:
        """The whole of a tensor of a member's local shape, which is a collective call if it is sharded."""
        return full(self.as_state(part, number)) if self.is_sharded else part

    def state_of(self, number: int) -> dict[str, Any]:
        """The state of a member: views of the vectors and of the counters."""
        row = self.numbers[number]
        state: dict[str, Any] = {name: row[i] for i, name in enumerate(COUNTERS)}
        state.update({name: self.as_state(self.part(name, number), number) for name in self.tensors})
        if not self.kind.per_weight and not math.isnan(self.priors[number]):
            state["prior_precision"] = row[len(COUNTERS)]
        return state

    def identities(self) -> list[int]:
        """What changes if others replace entries of the state."""
        try:
            return list(map(id, chain.from_iterable(map(itemgetter("step", *self.tensors), self.states))))
        except KeyError:
            return []

    def before(self) -> dict[str, Any]:
        """The counters by name, each a float or an array with one for every member."""
        rows = self.counters if self.on_device else self._host[:, : len(COUNTERS)]
        values: Any = rows[0].tolist() if (rows == rows[0]).all() else list(rows.T)
        return dict(zip(COUNTERS, values, strict=True))

    def next_numbers(self, rule: Rule) -> dict[str, Any]:
        """The numbers of the next step, with the counters; from a GPU this waits for it."""
        return {**numbers_of(rule, self), **self.before()}

    def advance(self, chosen: NDArray[np.int64], rule: Rule, numbers: Mapping[str, Any]) -> None:
        """Set the counters of some members to their values after a step, computed from those in ``numbers``."""
        after = advanced(rule, Hyper(**numbers, **dict(self.kind.statics)))
        counters = self._host[:, : len(COUNTERS)]
        for column, name in enumerate(COUNTERS):
            value = after[name]
            counters[chosen, column] = value[chosen] if isinstance(value, np.ndarray) else value
        if self.on_device:
            self.numbers[:, : len(COUNTERS)].copy_(torch.from_numpy(counters))

    def hyper(self, rule: Rule, number: int, numbers: Mapping[str, Any]) -> Hyper:
        """Hyper-parameters of one member, in numbers and in tensors of its local shape.

        Args:
            rule: The rule.
            number: The member.
            numbers: Those of :meth:`next_numbers`.
        """
        hp = Hyper(**numbers, prior_mean=0.0, **dict(self.kind.statics))
        for name, value in numbers.items():
            if isinstance(value, np.ndarray):
                setattr(hp, name, float(value[number]))
        if self.kind.per_weight:
            for name in PER_WEIGHT:
                setattr(hp, name, self.part(name, number))
            if self.kind.default_start:
                hp.initial_precision = rule.default_start(hp)
        return hp

    def variance(self, rule: Rule, number: int, hp: Hyper) -> Tensor:
        """Posterior variance of a member with its :meth:`hyper`, in its local shape; 0 without noise."""
        state = {}
        for name in rule.state:
            state[name] = self.part(name, number)
        precision = rule.posterior_precision(state, hp)
        return precision.reciprocal() if self.kind.perturb else torch.zeros_like(precision)

    def blocks(self, numbers: NDArray[np.int64]) -> Iterator[list[Piece]]:
        """Divide some members into lists of consecutive pieces of at most ``BLOCK`` elements together; on a GPU, into
        one for every run of consecutive numbers.
        """
        limit = max(self.numel, 1) if self.is_whole else BLOCK
        pieces: list[Piece] = []
        room, previous = limit, -1
        for number in numbers.tolist():
            if pieces and number != previous + 1:
                yield pieces
                pieces, room = [], limit
            start, size, previous = 0, int(self.sizes[number]), number
            whole = not local(self.parameters[number]).is_contiguous()  # a part of it would be a copy
            while start < size:
                stop = size if whole else min(size, start + room)
                if stop < size:  # a tile of noise is not divided
                    stop -= (stop - start) % noise.TILE
                if stop > start:
                    pieces.append(Piece(number, start, stop))
                    room -= stop - start
                    start = stop
                if start < size or room <= 0:
                    yield pieces
                    pieces, room = [], limit
        if pieces:
            yield pieces

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """First columns of a kernel's table, for every member: see ``printing.FIXED``."""
        rows = np.zeros((len(self.members), FIXED), dtype=np.int64)
        rows[:, 0] = [first for ((_, first, _, _),) in self.noise_runs]
        rows[:, 1] = self.sizes
        rows[:, 2] = [noise.lanes_of(whole) for ((_, _, _, whole),) in self.noise_runs]
        rows[:, 3] = [member.noise_index for member in self.members]
        rows[:, 5:FIXED] = [divmod(member.group["seed"], 2**32)[::-1] for member in self.members]
        return rows


def numbers_of(
    rule: Rule,
    flat: Flat,
    *,
    scale: float = 1.0,
    collected_scale: Any = 1.0,
    share: float = 1.0,
    groups: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """The numbers of the next step of a flat by name, each a float or an array with one for every member; without the
    counters. Unknown ones are NaN.

    Args:
        rule: The rule.
        flat: The flat.
        scale: Factor of the gradients; they are also negated where a loss is maximised.
        collected_scale: Factor of collected curvatures, one or one for every member.
        share: Weight of a new sample in the mean over samples.
        groups: Values of the flat's groups, if not the present ones.
    """
    several = []
    for group in flat.groups if groups is None else groups:
        replaced, (beta1, beta2) = rule.numbers(group), group["betas"]
        of_group = {
            "lr": float(group["lr"]),
            "beta1": float(beta1),
            "beta2": float(beta2),
            "num_data": float(group["num_data"]),
            "temperature": float(group["temperature"]),
            "scale": -scale if group["maximize"] else scale,
        }
        for name, is_static in (("initial_precision", False), ("prior_precision", False), *map(_OPTION, rule.options)):
            if name in group and not is_static:
                value = group[name]
                of_group[name] = math.nan if value is None or isinstance(value, str) else float(value)
        several.append({**of_group, **replaced})
    numbers: dict[str, Any] = several[0]
    if len(several) > 1:
        for name, value in numbers.items():
            values = [each[name] for each in several]
            numbers[name] = value if values.count(value) == len(values) else np.array(values)[flat.group_of]
    if not np.isnan(flat.priors).all():
        numbers["prior_precision"] = np.where(np.isnan(flat.priors), numbers["prior_precision"], flat.priors)
    if flat.kind.default_start:
        numbers["initial_precision"] = 0.0 if flat.kind.per_weight else rule.default_start(Hyper(**numbers))
    return {**numbers, "collected_scale": collected_scale, "share": share}


def noise_runs(member: Member) -> list[noise.Run]:
    """The runs of a parameter's noise that its local part takes."""
    full_shape, offset = place(member.parameter)
    return noise.runs_of(member.noise_index, local(member.parameter).shape, offset, full_shape)
