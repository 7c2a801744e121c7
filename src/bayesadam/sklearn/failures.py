"""What becomes of an estimator if its training fails."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Call = TypeVar("Call", bound=Callable[..., Any])


def all_or_nothing(method: Call) -> Call:
    """Decorate a method that trains: if it raises an error, the estimator is what it was before the call.

    It trains also inside of ``torch.no_grad()`` and ``torch.inference_mode()``.
    """

    @functools.wraps(method)
    def trained(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = dict(vars(self))
        try:
            with torch.inference_mode(False), torch.enable_grad():
                return method(self, *args, **kwargs)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    return trained  # type: ignore[return-value]
