"""Putting posterior samples into the weights and the mean back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesadam.core import launch
from bayesadam.core.dense import Dense
from bayesadam.core.draws import Draw
from bayesadam.core.flat import Flat, numbers_of
from bayesadam.core.layout import Layout
from bayesadam.core.passes import Pass
from bayesadam.sharding import local, rank_and_size

MEAN, BLOCK, TRAIN = "mean", "block", "train"
"""What the weights hold, as the groups' ``"weights"`` says: the mean, which is then authoritative (the state's follows
it); or a sample, inside a block or after ``train()``, and then the state's mean is authoritative."""
WIDTHS = ("num_data", "temperature", "prior_precision", "initial_precision", "perturb")
"""Entries of every group on which the width of a sample depends; a rule's options may be further ones."""


def pass_of(layout: Layout, flat: Flat, kind: str, **entries: Any) -> Pass:
    """A pass over the members of a flat."""
    first = flat.groups[0]
    return Pass(
        layout.rule,
        kind,
        flat.kind.statics,
        stored=flat.stored,
        per_weight=flat.kind.per_weight,
        has_prior="prior_precision" in first,
        default_start=flat.kind.default_start,
        guarded=flat.on_device and kind == "update",
        **entries,
    )


class Weights:
    """The parameters that hold a sample, as they were when it was drawn.

    Args:
        layout: The flats of the optimiser.
        dense: The joint posterior of all weights, if its covariance is full.
    """

    def __init__(self, layout: Layout, dense: Dense | None = None) -> None:
        self.layout, self.dense = layout, dense
        self.flats: list[Flat] = []
        self.drawn = Draw(0, 0, 0, False)
        self._versions: list[list[tuple[int, int]]] = []  # of members, after the sample was written
        self._groups: list[Any] = []
        self._widths: dict[int, dict[str, Any]] = {}

    @property
    def held(self) -> str:
        """``MEAN``, ``BLOCK`` or ``TRAIN``."""
        held: str = self.layout.first["weights"]
        return held

    def holds_sample(self, parameter: Tensor) -> bool:
        """Whether a parameter holds a sample at this moment."""
        return self.held != MEAN and any(parameter is p for flat in self.flats for p in flat.parameters)

    def draw(self, sample: int, *, ahead: int = 0) -> Draw:
        """The noise of a sample of this step, or of a step ``ahead`` of it."""
        first = self.layout.first
        if first["rank_samples"]:
            rank, size = rank_and_size()
            sample = sample * size + rank
        return Draw(first["seed"], first["noise_step"] + ahead, sample, first["antithetic"])

    def resume(self) -> None:
        """Find out which parameters hold a sample, in a copy or after loading."""
        self.flats = []
        if self.held != MEAN:
            self.drawn = self.draw(0)
            self.settle([flat for flat in self.layout.flats() if flat.kind.perturb], self.drawn)

    @torch.inference_mode(False)  # tensors that are made here must be usable in training
    @torch.no_grad()
    def perturb(self, sample: int, then: str) -> None:
        """Put a sample into the weights of all perturbed parameters, which hold their mean, and set ``then``."""
        flats, draw = [flat for flat in self.layout.flats() if flat.kind.perturb], self.draw(sample)
        if self.dense is not None:
            self.dense.prepare(flats, draw)  # which may fail
        for flat in flats:
            self.write(flat, np.arange(len(flat.members)), draw, mean="weights")
        self.layout.set_all("weights", then)
        self.settle(flats, draw)

    def write(self, flat: Flat, chosen: Any, draw: Draw, *, mean: str) -> None:
        """Put a sample into the weights of some members of a flat.

        Args:
            flat: The flat.
            chosen: Numbers of the members.
            draw: Noise of the sample.
            mean: Where their mean is, as in :class:`~bayesadam.core.passes.Pass`.
        """
        if self.dense is not None:
            self.dense.write(flat, follow=mean == "weights")
            return
        work = pass_of(self.layout, flat, "sample", mean=mean)
        numbers = numbers_of(self.layout.rule, flat)
        lists = {"weights": launch.weights_of(flat, chosen)}
        draws = {"next_eps": draw, "eps": self.drawn}
        launch.run(work, flat, chosen, numbers, lists, draws, compile=self.layout.first["compile"])

    def settle(self, flats: Sequence[Flat], draw: Draw) -> None:
        """Record that the members of these flats hold a sample."""
        self.flats, self.drawn = list(flats), draw
        self._versions = [[_version_of(p) for p in flat.parameters] for flat in self.flats]
        if not self._groups:
            self._groups = self._groups_now()
            self._widths = {id(group): self._widths_of(group) for group in self.layout.owner.param_groups}
        torch.clear_autocast_cache()

    def _groups_now(self) -> list[Any]:
        groups = self.layout.owner.param_groups
        return [
            each for g in groups for each in (id(g), *map(id, g["params"]), *[p.requires_grad for p in g["params"]])
        ]

    def _widths_of(self, group: dict[str, Any]) -> dict[str, Any]:
        names = [*WIDTHS, *(option.name for option in self.layout.rule.options if option.width)]
        return {name: group[name] for name in names if name in group}

    def check_same(self) -> None:
        """Raise an error if groups, parameters or what decides the width have changed since the sample was drawn."""
        if self._groups_now() != self._groups:
            raise RuntimeError(
                "parameters and requires_grad must not change while the weights hold a sample, got other ones: call "
                "eval() before changing them, and train() afterwards"
            )
        for group in self.layout.owner.param_groups:
            for name, value in self._widths[id(group)].items():
                if group[name] != value:
                    raise RuntimeError(
                        f"{name} must not change while the weights hold a sample, got {group[name]!r} in place of "
                        f"{value!r}: call eval() before changing it, and train() afterwards"
                    )

    @torch.no_grad()
    def restore(self) -> None:
        """Put the mean back wherever a sample was written."""
        for flat in self.flats:
            chosen = np.arange(len(flat.members))
            self._recover(flat, chosen, launch.weights_of(flat, chosen))
        self.flats, self._versions, self._groups = [], [], []
        self.layout.set_all("weights", MEAN)
        torch.clear_autocast_cache()

    def _recover(self, flat: Flat, chosen: Any, weights: Sequence[Tensor]) -> None:
        """Replace samples of some members by the means; where these are not stored, at the width of the sample."""
        work = pass_of(self.layout, flat, "restore", mean="state" if flat.stored else "sample")
        numbers: dict[str, Any] = {}
        if not flat.stored:
            groups = [{**group, **self._widths.get(id(group), {})} for group in flat.groups]
            numbers = numbers_of(self.layout.rule, flat, groups=groups)
        lists, compile = {"weights": weights}, self.layout.first["compile"]
        launch.run(work, flat, chosen, numbers, lists, {"eps": self.drawn}, compile=compile)

    @torch.inference_mode(False)
    @torch.no_grad()
    def mean_of(self, parameter: Tensor) -> Tensor:
        """The mean of a parameter that holds a sample, local and not to be changed."""
        for flat in self.flats:
            for number, member in enumerate(flat.parameters):
                if member is parameter:
                    if flat.stored:
                        return flat.part(flat.tensors["mean"], number)
                    mean = local(parameter).detach().clone()
                    self._recover(flat, np.array([number]), [mean])
                    return mean
        raise KeyError("the parameter holds no sample")

    def changed(self, among: Iterable[Tensor] | None = None) -> list[tuple[Flat, list[int]]]:
        """Members that were written to since the sample was put into them, by flat."""
        chosen = None if among is None else set(among)
        found = []
        for flat, versions in zip(self.flats, self._versions, strict=True):
            now = [_version_of(parameter) for parameter in flat.parameters]
            changed = [] if now == versions else [n for n, version in enumerate(now) if version != versions[n]]
            numbers = [n for n in changed if chosen is None or flat.parameters[n] in chosen]
            if numbers:
                found.append((flat, numbers))
        return found

    @torch.inference_mode(False)
    @torch.no_grad()
    def reconcile(
        self, *, allow_mean: bool = False, adopt: bool = False, among: Iterable[Tensor] | None = None
    ) -> None:
        """Handle parameters that were modified externally while they held a posterior sample, as by loading a
        checkpoint.

        The same sample is accepted. If ``allow_mean``, the mean is replaced by the sample; if ``adopt``, any other
        value becomes the new mean. Otherwise an error is raised, since the step would use a gradient at other weights.
        """
        for flat, numbers in self.changed(among):
            chosen, found = self._rewritten(flat, numbers)
            if not flat.stored:
                if allow_mean or adopt:  # its mean is known no more
                    self.write(flat, chosen, self.drawn, mean="weights")
                self._remember(flat, numbers)
                continue
            for number, value, mean in self._foreign(flat, numbers, found, allow_mean=allow_mean):
                if not adopt:
                    local(flat.parameters[number]).copy_(value)
                    raise RuntimeError(
                        f"parameter {self.layout.name_of(flat.parameters[number])} must hold the sample that train() "
                        "drew, got other values: call train() after loading a checkpoint, and eval() before changing "
                        "weights (a call of eval() now takes the changed values as the mean)"
                    )
                mean.copy_(value)
            self.write(flat, chosen, self.drawn, mean="state")
            self._remember(flat, numbers)

    def _rewritten(self, flat: Flat, numbers: list[int]) -> tuple[Any, list[Tensor]]:
        """Put the sample into members again, and return their numbers and their values before."""
        chosen = np.array(numbers)
        found = [local(flat.parameters[number]).detach().clone() for number in numbers]
        if flat.stored:
            self.write(flat, chosen, self.drawn, mean="state")
        return chosen, found

    def _foreign(
        self, flat: Flat, numbers: list[int], found: list[Tensor], *, allow_mean: bool
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Number, value and mean of those members whose value was not their sample, nor, if allowed, their mean."""
        for number, value in zip(numbers, found, strict=True):
            mean = flat.part(flat.tensors["mean"], number)
            is_mean = allow_mean and torch.equal(value, mean.to(value.dtype))
            if not is_mean and not torch.equal(local(flat.parameters[number]), value):
                yield number, value, mean

    def _remember(self, flat: Flat, numbers: Iterable[int]) -> None:
        versions = self._versions[self.flats.index(flat)]
        for number in numbers:
            versions[number] = _version_of(flat.parameters[number])

    @torch.inference_mode(False)
    @torch.no_grad()
    def release(self) -> list[Tensor]:
        """End drop-in training: put the mean back, except where weights were modified externally; these values become
        the mean.

        Returns:
            The parameters that were modified externally.
        """
        others: list[Tensor] = []
        for flat, numbers in self.changed() if self.held == TRAIN else []:
            if not flat.stored:
                continue
            _, found = self._rewritten(flat, numbers)
            for number, value, mean in self._foreign(flat, numbers, found, allow_mean=True):
                mean.copy_(value)
                others.append(flat.parameters[number])
        self.restore()
        return others


def _version_of(parameter: Tensor) -> tuple[int, int]:
    """What changes when others write to a parameter, or give it other memory, as by ``vector_to_parameters``."""
    tensor = local(parameter)
    return tensor._version, tensor.data_ptr()
