"""Methods that are called inside ``torch.compile`` and must run without compilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])


def uncompiled(method: F) -> F:
    """Make a method break the graph when it is called inside ``torch.compile``, as torch's own optimisers do."""
    kept: Any = torch._disable_dynamo(method)  # type: ignore[attr-defined]
    return kept  # type: ignore[no-any-return]
