"""The forward hook by which the inputs and outputs of a last layer are known."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.modules.calls import first_argument, version_of


class Observer:
    """A forward hook that takes down the inputs and outputs of a layer, and the outputs' version, while it has a list.

    It stays on the layer, since ``torch.compile`` follows hooks that were there before.
    """

    calls: list[tuple[Tensor, Tensor, int]] | None = None
    gradients = False
    """Whether gradients are enabled around the network."""

    def __call__(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        """Take down a call of the layer."""
        if self.calls is not None:
            if self.gradients and not torch.is_grad_enabled():
                raise RuntimeError(
                    "the last layer must be called with gradients enabled if they are outside of the network, got a "
                    "call without (torch.no_grad, or activation checkpointing with use_reentrant=True)"
                )
            self.calls.append((first_argument(args, kwargs), output, version_of(output)))
