"""Activation checkpointing: parts of a forward pass that run again in the backward pass, with the same noise.

PyTorch lets code act around the second run only where ``torch.utils.checkpoint`` is called (``context_fn``), which is
in the user's model. The two objects that keep what is run again are therefore wrapped here, once for the process;
outside of :func:`recomputed_by` they do what they did before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

import torch
from torch.utils import checkpoint

Runner = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Runs a function of the model again: ``run(function, args, kwargs)``."""

_RUNNER: ContextVar[Runner | None] = ContextVar("runner", default=None)


def in_backward() -> bool:
    """Whether a backward pass is running in this thread."""
    return bool(torch._C._current_graph_task_id() != -1)


@contextmanager
def recomputed_by(run: Runner) -> Iterator[None]:
    """Return a context for a forward pass; what is checkpointed inside is run again by ``run``, in backward passes that
    may be after the context.
    """
    token = _RUNNER.set(run)
    try:
        yield
    finally:
        _RUNNER.reset(token)


def _again(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as it is to be run in the backward pass."""
    run = _RUNNER.get()
    if run is None:
        return function

    @wraps(function)
    def again(*args: Any, **kwargs: Any) -> Any:
        with recomputed_by(run):  # a checkpoint inside of a checkpoint
            return run(function, args, kwargs)

    return again


_forward, _start = checkpoint.CheckpointFunction.forward, checkpoint._CheckpointFrame.__init__


def _reentrant(ctx: Any, run_function: Callable[..., Any], *args: Any) -> Any:
    result = _forward(ctx, run_function, *args)  # type: ignore[no-untyped-call]
    ctx.run_function = _again(run_function)
    return result


def _other(frame: Any, recompute_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    _start(frame, _again(recompute_fn), *args, **kwargs)


checkpoint.CheckpointFunction.forward = staticmethod(_reentrant)  # type: ignore[method-assign]
checkpoint._CheckpointFrame.__init__ = _other  # type: ignore[method-assign,assignment]
