"""Putting posterior samples into the weights and the mean back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesadam.core import launch
from bayesadam.core.flat import Draw, Flat, numbers_of
from bayesadam.core.layout import Layout
from bayesadam.sharding import local, rank_and_size

MEAN, BLOCK, TRAIN = "mean", "block", "train"
"""Values of the entry ``"weights"`` of the groups, which says what the weights hold. If it is the mean, the weights are
authoritative, and the mean in the state is set to them. If it is a sample, inside a block or after ``train()``, the
mean in the state is authoritative.
"""
WIDTHS = ("num_data", "temperature", "prior_precision", "initial_precision", "perturb")
"""Entries of every group that decide the width of a sample, in addition to some options of the rule."""


class Weights:
    """The parameters that hold a sample, as they were when it was drawn.

    Args:
        layout: The flats of the optimiser.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.flats: list[Flat] = []
        self.drawn = Draw(0, 0, 0, False)
        self._versions: list[list[tuple[int, int]]] = []  # of members' tensors, after the sample was written
        self._members: list[Any] = []
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

    def perturbed(self) -> list[Flat]:
        """The flats whose members get noise."""
        return [flat for flat in self.layout.flats() if flat.kind.perturb]

    def resume(self) -> None:
        """Find out which parameters hold a sample, in a copy or after loading."""
        self.flats = []
        if self.held != MEAN:
            self.settle(self.perturbed(), self.draw(0))

    def finish_block(self) -> None:
        """Put the mean back where a copy or a checkpoint was made inside a block."""
        if self.held == BLOCK:
            self.resume()
            self.restore()

    @torch.inference_mode(False)  # tensors that are made here must be usable in training
    @torch.no_grad()
    def perturb(self, sample: int, then: str) -> None:
        """Replace the mean in the weights of all perturbed parameters by a sample, and record ``then`` as what they
        hold.
        """
        flats, draw = self.perturbed(), self.draw(sample)
        self.flats, self.drawn = [], draw
        for flat in flats:
            self.write(flat, np.arange(len(flat.members)), draw, mean="weights")
            self.flats.append(flat)  # so that an error at the next one puts the mean back
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
        numbers = numbers_of(self.layout.rule, flat)
        launch.run(self.layout, flat, "sample", chosen, numbers, {}, {"eps": self.drawn, "next_eps": draw}, mean=mean)

    def settle(self, flats: Sequence[Flat], draw: Draw) -> None:
        """Record that the members of these flats hold a sample."""
        self.flats, self.drawn = list(flats), draw
        self._versions = [_versions_of(flat.parameters) for flat in self.flats]
        if not self._members:
            self._members, self._widths = self._members_now(), self._widths_now()
        torch.clear_autocast_cache()

    def _members_now(self) -> list[Any]:
        groups = self.layout.owner.param_groups
        return [
            each for g in groups for each in (id(g), *map(id, g["params"]), *[p.requires_grad for p in g["params"]])
        ]

    def _widths_now(self) -> dict[int, dict[str, Any]]:
        """What decides the width, by the identity of the group."""
        names = [*WIDTHS, *(option.name for option in self.layout.rule.options if option.width)]
        groups = self.layout.owner.param_groups
        return {id(group): {name: group[name] for name in names if name in group} for group in groups}

    def check_same(self) -> None:
        """Raise an error if groups, parameters or what decides the width have changed since the sample was drawn."""
        if self._members_now() != self._members:
            raise RuntimeError(
                "parameters and requires_grad must not change while the weights hold a sample, got other ones: call "
                "eval() before changing them, and train() afterwards"
            )
        for key, widths in self._widths_now().items():
            for name, value in widths.items():
                if value != self._widths[key][name]:
                    raise RuntimeError(
                        f"{name} must not change while the weights hold a sample, got {value!r} in place of "
                        f"{self._widths[key][name]!r}: call eval() before changing it, and train() afterwards"
                    )

    @torch.no_grad()
    def restore(self) -> None:
        """Put the mean back wherever a sample was written."""
        for flat in self.flats:
            chosen = np.arange(len(flat.members))
            self._recover(flat, chosen, launch.weights_of(flat, chosen))
        self.flats, self._versions, self._members, self._widths = [], [], [], {}
        self.layout.set_all("weights", MEAN)
        torch.clear_autocast_cache()

    def _recover(self, flat: Flat, chosen: Any, weights: Sequence[Tensor]) -> None:
        """Replace the samples of some members by the means. Means that are not stored are recomputed from the sample
        and its noise.
        """
        numbers: dict[str, Any] = {}
        if not flat.stored:
            groups = [{**group, **self._widths.get(id(group), {})} for group in flat.groups]
            numbers = numbers_of(self.layout.rule, flat, groups=groups)
        mean = "state" if flat.stored else "sample"
        launch.run(self.layout, flat, "restore", chosen, numbers, {"weights": weights}, {"eps": self.drawn}, mean=mean)

    @torch.inference_mode(False)
    @torch.no_grad()
    def mean_of(self, parameter: Tensor) -> Tensor:
        """The mean of a parameter, sharded like it and not to be changed, whatever the weights hold."""
        places = ((flat, n) for flat in self.flats for n, member in enumerate(flat.parameters) if member is parameter)
        flat, number = next(places, (None, 0))
        if flat is None or self.held == MEAN:
            return parameter.detach()
        if flat.stored:
            return flat.as_state(flat.part("mean", number), number)
        mean = local(parameter).detach().clone()
        self._recover(flat, np.array([number]), [mean])
        return flat.as_state(mean, number)

    @torch.inference_mode(False)
    @torch.no_grad()
    def reconcile(self, accept: str, among: Iterable[Tensor] | None = None, *, leaving: bool = False) -> list[Tensor]:
        """Handle parameters that were modified externally while they held a posterior sample, as by loading a
        checkpoint.

        A sample that was written again is always accepted. A mean that is not stored is taken from the present values:
        it is computed from them as a sample if ``accept`` is ``"sample"`` or with ``leaving``; otherwise it is these
        values.

        Args:
            accept: What else is accepted: nothing (``"sample"``), since the step would use a gradient at other weights;
                the ``"mean"``, which is replaced by the sample; or ``"any"`` values, which become the mean.
            among: Parameters to look at; by default all.
            leaving: Whether the mean is put into all weights next.

        Returns:
            The parameters whose values became the mean.

        Raises:
            RuntimeError: Other values are not accepted; they are left in the weights.
        """
        others: list[Tensor] = []
        among = None if among is None else set(among)
        for flat, versions in zip(self.flats, self._versions, strict=True):
            now = _versions_of(flat.parameters)
            changed = [] if now == versions else [n for n, version in enumerate(now) if version != versions[n]]
            changed = [n for n in changed if among is None or flat.parameters[n] in among]
            if not changed:
                continue
            values = [local(flat.parameters[n]).detach().clone() for n in changed]
            if flat.stored:
                self.write(flat, np.array(changed), self.drawn, mean="state")
            elif accept != "sample" and not leaving:
                self.write(flat, np.array(changed), self.drawn, mean="weights")
            for number, value in zip(changed, values, strict=True) if flat.stored else ():
                parameter, mean = flat.parameters[number], flat.part("mean", number)
                is_mean = accept != "sample" and torch.equal(value, mean.to(value.dtype))
                if is_mean or torch.equal(local(parameter), value):
                    continue
                if accept != "any":
                    local(parameter).copy_(value)
                    raise RuntimeError(
                        f"parameter {self.layout.name_of(parameter)} must hold the sample that train() drew, got other "
                        "values: call train() after loading a checkpoint, and eval() before changing weights (a call "
                        "of eval() now takes the changed values as the mean); an embedding with max_norm changes them "
                        "in every forward pass"
                    )
                mean.copy_(value)
                others.append(parameter)
            if others and flat.stored and not leaving:
                self.write(flat, np.array(changed), self.drawn, mean="state")
            for number in changed:
                (versions[number],) = _versions_of([flat.parameters[number]])
        return others

    def release(self) -> list[Tensor]:
        """End drop-in training: put the mean back, except where weights were modified externally; these values become
        the mean.

        Returns:
            The parameters that were modified externally.
        """
        others = self.reconcile("any", leaving=True) if self.held == TRAIN else []
        self.restore()
        return others


def _versions_of(parameters: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Values that change whenever a parameter is written to or gets other memory, as by ``vector_to_parameters``."""
    tensors = list(map(local, parameters))
    return list(zip(map(attrgetter("_version"), tensors), map(Tensor.data_ptr, tensors), strict=True))
