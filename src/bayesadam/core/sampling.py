"""Putting posterior samples into the weights and the mean back."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesadam.core import launch
from bayesadam.core.eager import Lists
from bayesadam.core.flat import Draw, Flat, draw_of, numbers_of
from bayesadam.core.layout import Layout
from bayesadam.modules.sharding import local
from bayesadam.native.memory import placed

MEAN, BLOCK, TRAIN = "mean", "block", "train"
"""Values of the entry ``"weights"`` of the groups, which says what the weights hold. If it is the mean, the weights are
authoritative, and the mean in the state is set to them. If it is a sample, inside a block or after ``train()``, the
mean in the state is authoritative.
"""


class Weights:
    """The parameters that hold a sample, as they were when it was drawn.

    An exception may come between any two operations, also one of a signal handler. What was written until then is
    found out afterwards, by :meth:`recover`.

    Args:
        layout: The flats of the optimiser.

    Attributes:
        flats: The flats whose members hold a sample.
        drawn: The noise of this sample.
        widths: What decided its width.
        writing: What is being written: the ``"first"`` sample, over means that are in the weights; or another one or
            the mean (``"next"``), while the mean is in the state. If it is not ``None`` at the beginning of a call, an
            exception has interrupted the one before.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.flats: list[Flat] = []
        self.drawn = Draw(0, 0, False)
        self._versions: list[list[tuple[int, int]]] = []  # of members' tensors, after the sample was written
        self.widths: list[Any] = []
        self.writing: str | None = None

    @property
    def held(self) -> str:
        """``MEAN``, ``BLOCK`` or ``TRAIN``."""
        held: str = self.layout.first["weights"]
        return held

    def perturbed(self) -> list[Flat]:
        """The flats whose members get noise."""
        return list(filter(attrgetter("kind.perturb"), self.layout.flats()))

    def resume(self) -> None:
        """Find out which parameters hold a sample, in a copy or after loading."""
        if self.held != MEAN:
            self.flats = self.perturbed()
            self.settle(draw_of(self.layout.first))

    @torch.inference_mode(False)
    @torch.no_grad()
    def recover(self) -> None:
        """Put right what an exception has interrupted: weights that were to get a sample hold the mean afterwards, and
        weights that held one hold it again.
        """
        if self.writing is None:
            return
        self.layout.gather()
        if self.writing == "first":
            for flat in self.flats:
                for value, sample, mean in zip(flat.weights.tensors, self._sample_of(flat), flat.means, strict=True):
                    value.copy_(torch.where(value == sample, mean.to(value.dtype), value))
        if self.writing == "first" or self.held == MEAN:
            self._end()
        elif self.held == TRAIN:
            for flat in self.flats:
                self.write(flat, np.arange(len(flat.members)), draw_of(self.layout.first), mean="state")
            self.settle(draw_of(self.layout.first))

    @torch.inference_mode(False)  # tensors that are made here must be usable in training
    @torch.no_grad()
    def perturb(self, sample: int, then: str) -> None:
        """Replace the mean in the weights of all perturbed parameters by a sample, and record ``then`` as what they
        hold.
        """
        self.flats, self.drawn = self.perturbed(), draw_of(self.layout.first, sample)
        self.writing = "first"
        for flat in self.flats:
            self.write(flat, np.arange(len(flat.members)), self.drawn, mean="weights")
        self.layout.set_all("weights", then)
        self.settle(self.drawn)

    def write(self, flat: Flat, chosen: Any, draw: Draw, *, mean: str, into: Lists | None = None) -> None:
        """Put a sample into the weights of some members of a flat.

        Args:
            flat: The flat.
            chosen: Numbers of the members.
            draw: Noise of the sample.
            mean: Where their mean is, as in :class:`~bayesadam.core.passes.Pass`.
            into: Tensors that get the sample in place of the weights, as ``"weights"``.
        """
        numbers = numbers_of(self.layout.rule, flat)
        launch.run(self.layout, flat, "sample", chosen, numbers, into or {}, {"next_eps": draw}, mean=mean)

    def _sample_of(self, flat: Flat, chosen: Any = None) -> list[Tensor]:
        """The sample ``drawn`` of some members, by default of all, from the mean in the state."""
        chosen = np.arange(len(flat.members)) if chosen is None else chosen
        samples = [torch.empty_like(weights) for weights in flat.weights.of(chosen).tensors]
        where = placed(samples, [each.shape for each in samples], flat.kind.device, flat.kind.weights)
        self.write(flat, chosen, self.drawn, mean="state", into={"weights": where})
        return samples

    def settle(self, draw: Draw) -> None:
        """Record that the members of :attr:`flats` hold a sample."""
        self.drawn = draw
        self._versions = list(map(_versions_of, self.flats))
        if self.held == TRAIN and not self.widths:
            self.widths = self.layout.widths()
        self.writing = None
        torch.clear_autocast_cache()

    @torch.inference_mode(False)
    @torch.no_grad()
    def restore(self) -> None:
        """Put the mean back wherever a sample was written."""
        self.layout.gather()
        self.writing = self.writing or "next"
        for flat in self.flats:
            torch._foreach_copy_(list(flat.weights.tensors), flat.means)
        self._end()

    def _end(self) -> None:
        """Record that all weights hold the mean."""
        self.layout.set_all("weights", MEAN)
        self.flats, self._versions, self.widths, self.writing = [], [], [], None
        torch.clear_autocast_cache()

    def mean_of(self, parameter: Tensor) -> Tensor | None:
        """The mean of a parameter that holds a sample, sharded like it and not to be changed; ``None`` of others."""
        for flat in self.flats if self.held != MEAN else ():
            for number, member in enumerate(flat.parameters):
                if member is parameter:
                    return flat.as_state(flat.part("mean", number), number)
        return None

    @torch.inference_mode(False)
    @torch.no_grad()
    def reconcile(
        self, among: Iterable[Tensor] | None = None, *, strict: bool = False, leaving: bool = False
    ) -> list[Tensor]:
        """Handle parameters that were modified externally while they held a posterior sample, as by loading a
        checkpoint.

        A sample that was written again is left as it is. Other values become the mean, and are replaced by the sample.

        Args:
            among: Parameters to look at; by default all.
            strict: Whether to refuse other values, since the step would use a gradient at other weights.
            leaving: Whether the mean is put into all weights next.

        Returns:
            The parameters whose mean is another one now.

        Raises:
            RuntimeError: Other values are refused; they are left in the weights.
        """
        self.layout.gather()
        others: list[Tensor] = []
        among = None if among is None else set(among)
        for flat, versions in zip(self.flats, self._versions, strict=True):
            now = _versions_of(flat)
            if now == versions:
                continue
            changed = [n for n, version in enumerate(now) if version != versions[n]]
            changed = [n for n in changed if among is None or flat.parameters[n] in among]
            rewritten = []
            for number, sample in zip(changed, self._sample_of(flat, np.array(changed)), strict=True):
                parameter, mean = flat.parameters[number], flat.part("mean", number)
                value = local(parameter).detach()
                if torch.equal(value, sample):
                    continue
                if strict:
                    raise RuntimeError(
                        f"parameter {self.layout.name_of(parameter)} must hold the sample that train() drew, got other "
                        "values: call train() after loading a checkpoint, and eval() before changing weights (a call "
                        "of eval() now takes the changed values as the mean); an embedding with max_norm changes them "
                        "in every forward pass"
                    )
                rewritten.append(number)
                if not torch.equal(value, mean.to(value.dtype)):
                    mean.copy_(value)
                    others.append(parameter)
            if rewritten and not leaving:
                self.write(flat, np.array(rewritten), self.drawn, mean="state")
            now = _versions_of(flat)
            for number in changed:
                versions[number] = now[number]
        return others


def _versions_of(flat: Flat) -> list[tuple[int, int]]:
    """Values that change whenever a parameter is written to or gets other memory, as by ``vector_to_parameters``."""
    return list(zip(map(attrgetter("_version"), flat.weights.tensors), flat.weights.addresses, strict=True))
