"""Refusing reentrant activation checkpointing, which hides weights from derivatives without an error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction

from bayesadam.modules.calls import tensors_in

_CHECKPOINTED = CheckpointFunction.forward.__code__


class RefusingReentrant(TorchFunctionMode):
    """Context in which no reentrant checkpoint may compute with the given tensors.

    Such a checkpoint builds its graph only in ``loss.backward()``, so ``torch.autograd.grad`` would find no derivative
    with respect to weights that are used inside it, and treat it as zero.

    Args:
        tensors: Tensors by which derivatives are taken.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self._wanted = set(map(id, tensors))

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, unless it is refused.

        Raises:
            RuntimeError: A function of one of the tensors is called inside a reentrant checkpoint.
        """
        kwargs = kwargs or {}
        if not torch.is_grad_enabled() and _is_checkpointed():
            if any(id(tensor) in self._wanted for tensor in tensors_in((args, kwargs))):
                raise RuntimeError(
                    "activation checkpointing must be the non-reentrant one where derivatives of outputs are taken, "
                    "got a torch.utils.checkpoint with use_reentrant=True, inside which weights have no derivative: "
                    "use use_reentrant=False, or switch checkpointing off"
                )
        return func(*args, **kwargs)


def _is_checkpointed() -> bool:
    """Whether a reentrant checkpoint's forward pass is running."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not _CHECKPOINTED:
        frame = frame.f_back
    return frame is not None
