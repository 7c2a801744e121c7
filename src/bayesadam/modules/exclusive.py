"""Changes of a model that are undone after use, such as samples in its tensors: one thread at a time makes them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from operator import attrgetter

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesadam.checks import check_model
from bayesadam.modules.train_mode import FollowedTrain, quietly
from bayesadam.modules.wrappers import innermost, unwrapping

_RELEASED = threading.Condition()
_IN_USE: dict[int, int] = {}
"""The thread that has a module or tensor for itself, by the ``id`` of the module or tensor."""
_HELD: dict[int, tuple[int, Parts]] = {}
"""The thread that has a model for itself, and the model's parts, by the ``id`` of the model."""


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
    thread, held = threading.get_ident(), _HELD.get(id(model))
    if held is not None and held[0] == thread:
        yield held[1]
        return
    parts, wanted = Parts(model), set()
    for module in parts.modules:
        wanted |= {id(module), *map(id, module._parameters.values()), *map(id, module._buffers.values())}
    wanted.discard(id(None))
    with _RELEASED:
        while not set(map(_IN_USE.get, wanted)) <= {None, thread}:
            _RELEASED.wait()
        taken = wanted - _IN_USE.keys()
        _IN_USE.update(dict.fromkeys(taken, thread))
        _HELD[id(model)] = thread, parts
    try:
        yield parts
    finally:
        with _RELEASED:
            for part in taken:
                del _IN_USE[part]
            del _HELD[id(model)]
            _RELEASED.notify_all()


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[Parts]:
    """Context that sets the model to evaluation mode, and gives its parts; afterwards every module is back in its mode,
    by its own ``train``. Other threads wait for it.

    Modules with a ``train`` of their own may change their tensors, for example merge weights, and restore them only up
    to rounding. Their tensors are therefore saved and put back.
    """
    with exclusively(model) as parts:
        modes, before = list(map(attrgetter("training"), parts.modules)), []
        for module in parts.changing:
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                before.append((tensor, tensor.detach().clone()))
        try:
            if parts.changing or parts.followed or any(modes):
                model.eval()
            with quietly(parts.followed) if parts.followed else nullcontext():
                yield parts
        finally:
            for module, mode in zip(parts.modules, modes, strict=True):  # parents first
                if module.training != mode:
                    module.train(mode)
            for module, mode in zip(parts.modules, modes, strict=True):  # some never train, some have several parents
                if module.training != mode:
                    module.training = mode
            with torch.no_grad() if before else nullcontext():
                for tensor, value in before:
                    tensor.copy_(value)


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


def check_weights_are_used(model: nn.Module, names: Iterable[str]) -> None:
    """Refuse modules whose derivatives are not those of their outputs: modules that compute with merged or cached
    weights in evaluation mode, and embeddings that scale their gradients or change their weights in a forward pass.

    Args:
        model: The model in evaluation mode.
        names: Names of the weights by which derivatives are taken.

    Raises:
        ValueError: A module that has any of these weights changes its tensors when its mode changes, or is such an
            embedding.
    """
    parameters = dict(model.named_parameters())
    wanted = {id(parameters[name]) for name in names if name in parameters}
    for path, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and id(module.weight) in wanted:
            for option, plain in (("max_norm", None), ("scale_grad_by_freq", False)):
                value = getattr(module, option)
                if value != plain:
                    raise ValueError(
                        f"{option} of an embedding must be {plain} to take derivatives, got {value!r} in {path!r}"
                    )
    changing = Parts(model).changing
    for path, module in model.named_modules() if changing else ():
        if module not in changing or wanted.isdisjoint(map(id, module.parameters())):
            continue
        module.train()
        before = {name: tensor.clone() for name, tensor in _tensors(module).items()}
        module.eval()
        after = _tensors(module)
        if before.keys() != after.keys() or any(not torch.equal(before[name], after[name]) for name in before):
            raise ValueError(
                "model must compute with its weights themselves in eval mode, but for method='monte_carlo', got module "
                f"{path!r} ({type(module).__name__}), which merges or caches them when its mode changes"
            )


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """A module's own parameters, buffers and other tensors among its attributes."""
    named = {**vars(module), **module._parameters, **module._buffers}
    return {name: value.detach() for name, value in named.items() if isinstance(value, Tensor)}
