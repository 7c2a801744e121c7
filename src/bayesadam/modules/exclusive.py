"""Changes of a model that are undone after use, such as samples in its tensors: one thread at a time makes them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesadam.checks import check_model
from bayesadam.modules.fsdp import unsharded
from bayesadam.modules.train_mode import FollowedTrain, quietly
from bayesadam.modules.wrappers import innermost, unwrapping

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


@contextmanager
def opened(model: nn.Module) -> Iterator[Parts]:
    """Context in which one thread has the model for itself, its weights are whole, and no follower is told of modes."""
    with exclusively(model) as parts, ExitStack() as stack:
        if parts.followed:
            stack.enter_context(quietly(parts.followed))
        if parts.sharded:
            stack.enter_context(unsharded(parts.sharded))
        yield parts


def matching_parameters(model: nn.Module, mean: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters of a model, or of the module that it wraps, with the names and shapes of a posterior's means.

    Raises:
        ValueError: The model's trainable parameters have other names or shapes.
    """
    check_model(model)
    parameters = dict(model.named_parameters())
    if not mean.keys() <= parameters.keys():
        for inner in unwrapping(model):
            parameters = dict(inner.named_parameters())
            if mean.keys() <= parameters.keys():
                break
    weights: dict[str, Tensor] = {}
    for name, value in mean.items():
        if name not in parameters:
            inside = (repr(n) for n, p in parameters.items() if n.endswith(f".{name}") and p.shape == value.shape)
            raise ValueError(
                f"the model must have a parameter {name!r} as the posterior does, got "
                f"{next(inside, 'none of that name')} (posterior(model) of an optimiser is that of the model alone)"
            )
        if parameters[name].shape != value.shape:
            raise ValueError(
                f"the model's parameter {name!r} must be of the posterior's shape {tuple(value.shape)}, "
                f"got {tuple(parameters[name].shape)}"
            )
        weights[name] = parameters[name]
    for name, parameter in parameters.items():
        if parameter.requires_grad and name not in mean:
            raise ValueError(f"the posterior must cover the model's trainable parameter {name!r}, got no such name")
    return weights


def matching_buffers(model: nn.Module, buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The buffers of a model with the names and shapes of a posterior's.

    Raises:
        ValueError: The model lacks one of them.
    """
    present = dict(innermost(model).named_buffers())
    for name, value in buffers.items():
        if name not in present or present[name].shape != value.shape:
            shape = f"one of shape {tuple(present[name].shape)}" if name in present else "none of that name"
            raise ValueError(
                f"the model must have a buffer {name!r} of the posterior's shape {tuple(value.shape)}, got {shape}"
            )
    return {name: present[name] for name in buffers}
