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

_MAKE_RUNNER: ContextVar[Callable[[], Runner] | None] = ContextVar("make_runner", default=None)


def in_backward() -> bool:
    """Whether a backward pass is running in this thread."""
    return bool(torch._C._current_graph_task_id() != -1)


@contextmanager
def recomputed_by(make_runner: Callable[[], Runner]) -> Iterator[None]:
    """Return a context for a forward pass; what is checkpointed inside is run again by a runner.

    Args:
        make_runner: Called in the forward pass at every call of ``torch.utils.checkpoint``. Its result is used in the
            backward passes, which may be after the context.
    """
    token = _MAKE_RUNNER.set(make_runner)
    try:
        yield
    finally:
        _MAKE_RUNNER.reset(token)


def _again(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as it is to be run in the backward pass."""
    make_runner = _MAKE_RUNNER.get()
    if make_runner is None:
        return function
    run = make_runner()

    @wraps(function)
    def again(*args: Any, **kwargs: Any) -> Any:
        with recomputed_by(make_runner):  # a checkpoint inside of a checkpoint
            return run(function, args, kwargs)

    return again


def _wrap_checkpoints() -> None:
    forward = checkpoint.CheckpointFunction.forward  # reentrant
    start = checkpoint._CheckpointFrame.__init__  # non-reentrant

    @wraps(forward)
    def wrapped_forward(ctx: Any, run_function: Callable[..., Any], *args: Any) -> Any:
        result = forward(ctx, run_function, *args)  # type: ignore[no-untyped-call]
        ctx.run_function = _again(run_function)
        return result

    @wraps(start)
    def wrapped_start(frame: Any, recompute_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        start(frame, _again(recompute_fn), *args, **kwargs)

    checkpoint.CheckpointFunction.forward = staticmethod(wrapped_forward)  # type: ignore[method-assign]
    checkpoint._CheckpointFrame.__init__ = wrapped_start  # type: ignore[method-assign,assignment]


_wrap_checkpoints()
