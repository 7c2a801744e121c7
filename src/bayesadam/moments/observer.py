"""The forward hook by which the inputs and outputs of a last layer are known."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Observer:
    """A forward hook that takes down the inputs and outputs of a layer, and the outputs' version, while it has a list.

    It stays on the layer, since ``torch.compile`` follows hooks that were there before.
    """

    calls: list[tuple[Tensor, Tensor, int]] | None = None
    gradients = False
    """Whether gradients are enabled around the network."""

    def __call__(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Take down a call of the layer."""
        if self.calls is not None:
            if self.gradients and not torch.is_grad_enabled():
                raise RuntimeError(
                    "the last layer must be called with gradients enabled if they are outside of the network, got a "
                    "call without (torch.no_grad, or activation checkpointing with use_reentrant=True)"
                )
            self.calls.append((inputs[0], output, version_of(output)))


def version_of(tensor: Tensor) -> int:
    """The number of changes in place so far; 0 in inference mode and in compiled code, where they are not counted."""
    return 0 if torch.compiler.is_compiling() or tensor.is_inference() else tensor._version
