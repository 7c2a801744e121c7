"""Changes of a model that are undone after use: one thread at a time makes them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesadam.checks import check_model
from bayesadam.modules.train_mode import FollowedTrain

_RELEASED = threading.Condition()
_IN_USE: dict[int, int] = {}
"""The thread that has a module or tensor for itself, by the ``id`` of the module or tensor."""


class Parts:
    """The modules of a model, from one walk over them, and those among them that need care when it is used.

    Attributes:
        modules: All modules, parents first.
        changing: Those with a ``train`` method of their own, which may change more than the mode.
        followed: Replacements of ``train`` that tell followers of the mode.
        normalized: Batch norm layers with running statistics.
        padded: Embeddings with a padding row.
        sharded: Those that went through ``fully_shard``.
    """

    def __init__(self, model: nn.Module) -> None:
        self.modules = list(model.modules())
        self.changing: list[nn.Module] = []
        self.followed: list[FollowedTrain] = []
        self.normalized: list[_BatchNorm] = []
        self.padded: list[nn.Embedding] = []
        self.sharded: list[nn.Module] = []
        for module in self.modules:
            train = module.train
            if isinstance(train, FollowedTrain):
                self.followed.append(train)
            if getattr(train, "__func__", None) is not nn.Module.train:
                self.changing.append(module)
            if isinstance(module, _BatchNorm) and module.running_mean is not None:
                self.normalized.append(module)
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                self.padded.append(module)
            if hasattr(type(module), "_get_fsdp_state"):
                self.sharded.append(module)


@contextmanager
def exclusively(model: nn.Module) -> Iterator[Parts]:
    """Context that a thread enters before it puts samples into a model or changes its mode; it gives its parts.

    Another thread waits at the beginning of its own block as long as its model has a module or tensor in common with
    this one. A thread may nest blocks. (``torch.func.functional_call`` is no way around this: it puts tensors into the
    model's modules as well, for the time of the call.)

    Raises:
        ValueError: The model is not a network.
    """
    check_model(model)
    thread, parts = threading.get_ident(), Parts(model)
    if _IN_USE.get(id(model)) == thread:
        yield parts
        return
    wanted = set()
    for module in parts.modules:
        wanted |= {id(module), *map(id, module._parameters.values()), *map(id, module._buffers.values())}
    wanted.discard(id(None))
    with _RELEASED:
        while not set(map(_IN_USE.get, wanted)) <= {None, thread}:
            _RELEASED.wait()
        taken = wanted - _IN_USE.keys()
        _IN_USE.update(dict.fromkeys(taken, thread))
    try:
        yield parts
    finally:
        with _RELEASED:
            for part in taken:
                del _IN_USE[part]
            _RELEASED.notify_all()
