"""The gradients of all members of an ensemble, one member after another, and each member's own random numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from bayesadam.ensembles.minibatches import Minibatch

Loss = Callable[[Tensor, Tensor], Tensor]
"""Mean loss of a minibatch, from the outputs of a network and the targets."""


class Generators:
    """States of torch's generators, one for every member, so that each draws what it would draw alone."""

    def __init__(self, states: Sequence[list[Tensor]]) -> None:
        self.states = list(states)

    @contextmanager
    def of(self, member: int) -> Iterator[None]:
        """Context in which torch draws the numbers of a member; the generators are as before afterwards."""
        before = random_state()
        _set_random_state(self.states[member])
        try:
            yield
        finally:
            self.states[member] = random_state()
            _set_random_state(before)


class InTurn:
    """Networks whose gradients are computed one after another.

    Args:
        models: The networks.
        loss: Their loss.
        generators: Their random numbers.
        channels_last: Whether inputs are images that get the memory format ``channels_last``.
    """

    def __init__(
        self, models: Sequence[nn.Module], loss: Loss, generators: Generators, *, channels_last: bool = False
    ) -> None:
        self._models, self._loss, self._generators = models, loss, generators
        self._channels_last = channels_last

    def backward(self, batch: Minibatch) -> Tensor:
        """Set the gradients of all members; return their losses, ``(members,)``."""
        losses = []
        for member, model in enumerate(self._models):
            x, y = batch.of(member)
            x = with_channels_last(x) if self._channels_last else x
            model.zero_grad()
            with self._generators.of(member):
                loss = self._loss(model(x), y)
                torch.autograd.backward(loss)
            losses.append(loss.detach())
        return torch.stack(losses)


def random_state() -> list[Tensor]:
    """The states of torch's generators: that of the CPU, and those of GPUs if they are used."""
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return [torch.get_rng_state(), *on_gpus]


def _set_random_state(states: Sequence[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(states[1:])


def with_channels_last(x: Tensor) -> Tensor:
    """A copy of images in this memory format, which their strides also show if there is one channel."""
    return torch.empty_like(x, memory_format=torch.channels_last).copy_(x)
