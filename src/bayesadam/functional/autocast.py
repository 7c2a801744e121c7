"""Leaving autocast where low precision would do harm."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def without_autocast(tensors: Sequence[Tensor | None]) -> AbstractContextManager[Any]:
    """Return a context without autocast on the device of the tensors, inside of which products have their dtypes."""
    device = next(t.device.type for t in tensors if t is not None)
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()
