"""How estimators train: with the threads for their rows, and if the training fails, they are what they were."""

from __future__ import annotations

import functools
from typing import Any

import torch

from bayesadam.tables.estimators.threads import Call, rows_of, threads_for


def all_or_nothing(method: Call) -> Call:
    """Decorate a method that trains: if it raises an error, the estimator is what it was before the call.

    It trains also inside of ``torch.no_grad()`` and ``torch.inference_mode()``, with the threads for its rows.
    """

    @functools.wraps(method)
    def trained(self: Any, X: Any, *args: Any, **kwargs: Any) -> Any:
        before = dict(vars(self))
        try:
            with torch.inference_mode(False), torch.enable_grad(), threads_for(rows_of(X)):
                return method(self, X, *args, **kwargs)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    return trained  # type: ignore[return-value]
