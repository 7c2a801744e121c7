"""Changes of a model that are undone after use: one thread at a time makes them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from bayesadam.checks import check_model

_RELEASED = threading.Condition()
_IN_USE: dict[int, int] = {}
"""The thread that has a module or tensor for itself, by the ``id`` of the module or tensor."""


@contextmanager
def exclusively(model: nn.Module) -> Iterator[None]:
    """Context that a thread enters before it puts samples into a model or changes its mode.

    Another thread waits at the beginning of its own block as long as its model has a module or tensor in common with
    this one. A thread may nest blocks. (``torch.func.functional_call`` is no way around this: it puts tensors into the
    model's modules as well, for the time of the call.)

    Raises:
        ValueError: The model is not a network.
    """
    check_model(model)
    thread = threading.get_ident()
    if _IN_USE.get(id(model)) == thread:
        yield
        return
    parts = set()
    for module in model.modules():
        parts |= {id(module), *map(id, module._parameters.values()), *map(id, module._buffers.values())}
    parts.discard(id(None))
    with _RELEASED:
        _RELEASED.wait_for(lambda: all(_IN_USE.get(part, thread) == thread for part in parts))
        taken = parts - _IN_USE.keys()
        _IN_USE.update(dict.fromkeys(taken, thread))
    try:
        yield
    finally:
        with _RELEASED:
            for part in taken:
                del _IN_USE[part]
            _RELEASED.notify_all()
